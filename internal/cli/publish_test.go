package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// publishes returns what playManager needs to answer a request to publish to a branch.
func publishes(branch string, status metav1.ConditionStatus, reason, message string) func(*v1alpha1.Task) bool {
	return func(t *v1alpha1.Task) bool {
		if t.Spec.Publish == nil || t.Spec.Publish.Branch != branch {
			return false
		}
		if reason != v1alpha1.ReasonPublishPending {
			t.Status.Publish = &v1alpha1.PublishStatus{Request: branch}
		}
		apimeta.SetStatusCondition(&t.Status.Conditions, metav1.Condition{
			Type: v1alpha1.TaskPublished, Status: status, Reason: reason, Message: message, ObservedGeneration: t.Generation, LastTransitionTime: metav1.NewTime(noon),
		})
		return true
	}
}

func TestPublish(t *testing.T) {
	b := newBench(t)
	b.task("other", v1alpha1.ReasonCompleted)
	const held = "c0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ff"
	task := b.task("worker", v1alpha1.ReasonCompleted)
	task.Status.Publish = &v1alpha1.PublishStatus{Checkpoint: 3, HeldCommit: held}
	b.try(server.Client.Status().Update(b.ctx, task))
	for text, args := range map[string][]string{
		"has no spec.publish: name a branch":                                             {"worker"},
		"--when must be one of completed, suspended, checkpoint, called, not \"always\"": {"worker", "--branch", "b", "--when", "always"},
		"branch must be a plain git branch name":                                         {"worker", "--branch", "a..b"},
		`there is no task "nobody"`:                                                      {"nobody", "--branch", "b"},
		"waits for an approval is not abcabca but " + held:                               {"worker", "--branch", "b", "--approve", "abcabca"},
		"is not c0ffee but " + held:                                                      {"worker", "--branch", "b", "--approve", "c0ffee"},
		"nothing waits for an approval":                                                  {"other", "--branch", "b", "--approve", held},
		"branch can only be below refs/heads/ or refs/f":                                 {"worker", "--branch", "refs/tags/b"},
	} {
		_, _, err := b.clew("", append([]string{"publish"}, args...)...)
		wantError(t, err, text)
	}
	out, _ := b.must("publish", "worker", "--branch", "clew/fix", "--dry-run")
	wantText(t, "the dry run", "task.clew.dev/worker publishing requested (server dry run)\n", out)

	playManager(b, &v1alpha1.TaskList{}, publishes("clew/fix", metav1.ConditionUnknown, v1alpha1.ReasonPublishPending, "it is published when it is completed"))
	out, _ = b.must("publish", "worker", "--branch", "clew/fix")
	wantText(t, "output for a task that is not completed", "task.clew.dev/worker publishing requested: it is published when it is completed\n", out)
	playManager(b, &v1alpha1.TaskList{}, publishes("clew/fix-2", metav1.ConditionTrue, v1alpha1.ReasonPublished, "checkpoint 3 is at refs/heads/clew/fix as abc"))
	out, _ = b.must("publish", "worker", "--when", "suspended", "--approve", "c0ffeec", "--branch", "clew/fix-2")
	wantText(t, "output", "task.clew.dev/worker published: checkpoint 3 is at refs/heads/clew/fix as abc\n", out)
	b.get(task)
	got := task.Spec.Publish
	want := []any{"cli-abcdefgh", "clew/fix-2", v1alpha1.PublishSuspended, held}
	if diff := cmp.Diff(want, []any{got.ID, got.Branch, got.When, got.ApprovedCommit}); diff != "" {
		t.Errorf("spec.publish (-want +got):\n%s", diff)
	}

	playManager(b, &v1alpha1.TaskList{}, publishes("clew/none", metav1.ConditionTrue, v1alpha1.ReasonNothingToPublish, "checkpoint 3 has nothing new"))
	out, _ = b.must("publish", "worker", "--branch", "clew/none")
	wantText(t, "output for a task that changed nothing", "task.clew.dev/worker publishing requested: checkpoint 3 has nothing new\n", out)
	_, _, err := b.clew("", "publish", "worker", "--branch", "b", "--on-diverged", "force")
	wantError(t, err, `--on-diverged must be one of fail, force-with-lease, not "force"`)
	playManager(b, &v1alpha1.TaskList{}, publishes("clew/fix-3", metav1.ConditionFalse, v1alpha1.ReasonDiverged, "others have pushed to it"))
	_, _, err = b.clew("", "publish", "worker", "--branch", "clew/fix-3")
	wantError(t, err, "the work was not published: others have pushed to it (Diverged)")
}

// A task that was rewound is not completed by itself, so that what it waits for would never come.
func TestPublishOfATaskThatWaitsForAResume(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonRewound)
	task.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Name: "worker-7", Number: 7}
	b.try(server.Client.Status().Update(b.ctx, task))
	for _, when := range []string{"", "completed", "suspended"} {
		_, _, err := b.clew("", "publish", "worker", "--branch", "clew/fix", "--when", when)
		wantError(t, err, "task worker was rewound and waits for a resume")
		wantError(t, err, "`kubectl clew publish worker --checkpoint 7 --branch clew/fix -n "+b.namespace+"`, or add --when checkpoint")
	}
	if b.get(task); task.Spec.Publish != nil {
		t.Errorf("requested %+v", task.Spec.Publish)
	}
	b.must("publish", "worker", "--branch", "clew/fix", "--when", "checkpoint", "--wait=false")
	b.must("publish", "worker", "--wait=false")
}

// A supervisor whose agent publishes by its tool publishes nothing else, so that there is nothing to wait for.
func TestPublishOfASupervisorWhoseAgentDoes(t *testing.T) {
	b := newBench(t)
	lead := b.member("lead", nil, v1alpha1.ReasonRunning)
	const called = "task.clew.dev/lead is published whenever its agent calls the tool publish"
	for range 2 {
		out, _ := b.must("publish", "lead", "--branch", "clew/port", "--when", "called")
		wantText(t, "output for one whose agent runs", called+"; if it was started without that tool, it has it from its next start on: suspend and resume the task\n", out)
	}
	b.get(lead)
	lead.Status.Attempts[len(lead.Status.Attempts)-1].Outcome = v1alpha1.AttemptSuspended
	b.try(server.Client.Status().Update(b.ctx, lead))
	out, _ := b.must("publish", "lead", "--when", "called")
	wantText(t, "output for one whose agent does not", called+"\n", out)
	b.get(lead)
	if p := lead.Spec.Publish; p == nil || p.When != v1alpha1.PublishCalled || p.Branch != "clew/port" {
		t.Fatalf("spec.publish is %+v", p)
	}
	lead.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Name: "lead-4", Number: 4}
	b.try(server.Client.Status().Update(b.ctx, lead))
	for branch, args := range map[string][]string{"clew/port": nil, "clew/other": {"--branch", "clew/other"}} {
		_, _, err := b.clew("", append([]string{"publish", "lead"}, args...)...)
		wantError(t, err, "the agent of task lead publishes by its tool, and nothing else is published (spec.publish.when is Called)")
		wantError(t, err, "`kubectl clew publish lead --checkpoint 4 --branch "+branch+" -n "+b.namespace+"`, or add --when completed")
	}
	before := lead.ResourceVersion
	if b.get(lead); lead.ResourceVersion != before {
		t.Error("something was written before it was refused")
	}
	b.must("publish", "lead", "--when", "completed", "--wait=false")
	b.get(lead)
	lead.Spec.Tools = []v1alpha1.AgentTool{v1alpha1.ToolCheckpoint}
	b.try(server.Client.Update(b.ctx, lead))
	_, _, err := b.clew("", "publish", "lead", "--when", "called")
	wantError(t, err, "the agent of task lead has no tool publish, since spec.tools does not name it")
	b.task("worker", v1alpha1.ReasonRunning)
	_, _, err = b.clew("", "publish", "worker", "--branch", "b", "--when", "called")
	wantError(t, err, "only a supervisor's agent has the tool publish")
}

func TestPublishWaitsForAPushThatIsAnnounced(t *testing.T) {
	for reason, want := range map[string]verdict{
		v1alpha1.ReasonPublishPending: {done: true}, // it has to wait for the task
		v1alpha1.ReasonPublishing:     {state: "soon"},
		v1alpha1.ReasonPushAnnounced:  {state: "soon"},
	} {
		task := &v1alpha1.Task{}
		apimeta.SetStatusCondition(&task.Status.Conditions, metav1.Condition{Type: v1alpha1.TaskPublished, Status: metav1.ConditionUnknown, Reason: reason, Message: "soon"})
		if got := (&publish{}).judge(task); got != want {
			t.Errorf("with %s it is %+v, want %+v", reason, got, want)
		}
	}
}
