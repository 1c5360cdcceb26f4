package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestResume(t *testing.T) {
	b := newBench(t)
	task := b.task("sleeper", v1alpha1.ReasonSuspended)
	playManager(b, &v1alpha1.TaskList{}, func(t *v1alpha1.Task) bool {
		if t.Spec.Resume == nil {
			return false
		}
		t.Status.Resume = &v1alpha1.OperationStatus{ID: t.Spec.Resume.ID, State: v1alpha1.OperationCompleted}
		setSucceeded(t, v1alpha1.ReasonRunning)
		return true
	})
	out, _ := b.must("resume", "sleeper", "--prompt", "Go on.", "--on-drift", "preserve")
	wantText(t, "output", "task.clew.dev/sleeper resumed\n", out)
	b.get(task)
	want := v1alpha1.Resume{ID: "cli-abcdefgh", Mode: v1alpha1.ResumeContinue, Prompt: "Go on.", OnDrift: v1alpha1.OnDriftPreserve, Placement: v1alpha1.PlacementAny}
	if diff := cmp.Diff(want, *task.Spec.Resume); diff != "" {
		t.Errorf("spec.resume (-want +got):\n%s", diff)
	}
	if got := task.Spec.OperatingMode; got != v1alpha1.OperatingModeRunning {
		t.Errorf("operating mode: got %s, want Running", got)
	}
	owned := ""
	for _, m := range task.ManagedFields {
		if m.Manager == fieldManager {
			owned = m.FieldsV1.GetRawString()
		}
	}
	if !strings.Contains(owned, `"f:resume"`) || strings.Contains(owned, `"f:template"`) {
		t.Errorf("the plugin must own f:resume and not f:template; it owns %s", owned)
	}
	_, _, err := b.clew("", "resume", "sleeper")
	wantError(t, err, "is already active (Running)")
}

func TestResumeRemovesThePromptOfAnEarlierRequest(t *testing.T) {
	b := newBench(t)
	task := b.task("again", v1alpha1.ReasonSuspended)
	task.Spec.OperatingMode = v1alpha1.OperatingModeRunning
	task.Spec.Resume = &v1alpha1.Resume{ID: "first", Prompt: "Only this once."}
	b.try(server.Client.Update(b.ctx, task))
	b.must("resume", "again", "--wait=false")
	b.get(task)
	want := v1alpha1.Resume{ID: "cli-abcdefgh", Mode: v1alpha1.ResumeContinue, OnDrift: v1alpha1.OnDriftFail, Placement: v1alpha1.PlacementAny}
	if diff := cmp.Diff(want, *task.Spec.Resume); diff != "" {
		t.Errorf("spec.resume (-want +got):\n%s", diff)
	}
}

func TestResumeRaisesTheBudget(t *testing.T) {
	b := newBench(t)
	task := b.task("spent", v1alpha1.ReasonBudgetExceeded)
	task.Spec.Budget = &v1alpha1.Budget{ToolCalls: ptr.To[int64](10), CostMicroUSD: ptr.To[int64](500)}
	b.try(server.Client.Update(b.ctx, task))
	task.Status.Spent = &v1alpha1.Spent{ToolCalls: 12, CostMicroUSD: 400}
	b.try(server.Client.Status().Update(b.ctx, task))
	_, _, err := b.clew("", "resume", "spent", "--wait=false")
	wantError(t, err, "task spent cannot continue: the task has spent 12 of the 10 tool calls that budget.toolCalls allows; raise it with --budget toolCalls=NUMBER")
	_, _, err = b.clew("", "resume", "spent", "--wait=false", "--budget", "toolCalls=20,costMicroUSD=300")
	wantError(t, err, "--budget costMicroUSD=NUMBER")
	_, _, err = b.clew("", "resume", "spent", "--budget", "dollars=5")
	wantError(t, err, "--budget has dollars=5; it must be one or more of inputTokens, outputTokens, costMicroUSD, toolCalls, checkpoints, each from 1 to 1000000000000000")
	b.must("resume", "spent", "--wait=false", "--budget", "toolCalls=20")
	if b.get(task); *task.Spec.Budget.ToolCalls != 20 || *task.Spec.Budget.CostMicroUSD != 500 || task.Spec.Resume == nil {
		t.Errorf("the budget is %+v, resume %+v", task.Spec.Budget, task.Spec.Resume)
	}
}

func TestResumeRaisesTheDeadline(t *testing.T) {
	b := newBench(t)
	task := b.task("late", v1alpha1.ReasonDeadlineExceeded)
	task.Spec.DeadlineSeconds = ptr.To[int64](60)
	b.try(server.Client.Update(b.ctx, task))
	task.Status.ActiveSeconds = 67
	b.try(server.Client.Status().Update(b.ctx, task))
	_, _, err := b.clew("", "resume", "late", "--wait=false")
	wantError(t, err, "the agent of task late has run for 67 seconds, and deadlineSeconds is 60: to continue, raise it with --deadline-seconds")
	_, _, err = b.clew("", "resume", "late", "--wait=false", "--deadline-seconds", "67")
	wantError(t, err, "deadlineSeconds is 67")
	_, _, err = b.clew("", "resume", "late", "--deadline-seconds", "0")
	wantError(t, err, "--deadline-seconds is 0; it must be from 1 to 31536000")
	b.must("resume", "late", "--wait=false", "--deadline-seconds", "68")
	if b.get(task); *task.Spec.DeadlineSeconds != 68 || task.Spec.Resume == nil {
		t.Errorf("deadlineSeconds is %d, resume %+v", *task.Spec.DeadlineSeconds, task.Spec.Resume)
	}
}

func TestAResumeFromACheckpointSaysWhatIsKept(t *testing.T) {
	b := newBench(t)
	b.checkpoint(b.task("returner", v1alpha1.ReasonSuspended), 1)
	playManager(b, &v1alpha1.TaskList{}, func(t *v1alpha1.Task) bool {
		if t.Spec.Resume == nil {
			return false
		}
		t.Status.Resume = &v1alpha1.OperationStatus{ID: t.Spec.Resume.ID, State: v1alpha1.OperationCompleted,
			ToCheckpoint: 1, FromCheckpoint: 4, Preserved: "clew/before/resume-cli-abcdefgh"}
		setSucceeded(t, v1alpha1.ReasonRunning)
		return true
	})
	out, _ := b.must("resume", "returner", "--from-checkpoint", "1", "--yes")
	wantText(t, "output", "task.clew.dev/returner resumed from checkpoint 1; the previous state is kept as checkpoint 4 and branch clew/before/resume-cli-abcdefgh\n", out)
}

func TestResumeInAMode(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want v1alpha1.Resume
	}{
		"clean": {[]string{"--clean", "--prompt", "Review it."}, v1alpha1.Resume{Mode: v1alpha1.ResumeClean, Prompt: "Review it."}},
		"from a checkpoint": {[]string{"--from-checkpoint", "1", "--yes", "--additional-context", "The tests failed."}, v1alpha1.Resume{
			Mode: v1alpha1.ResumeFromCheckpoint, CheckpointRef: &v1alpha1.NameReference{Name: "again-1"}, AdditionalContext: "The tests failed."}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			task := b.task("again", v1alpha1.ReasonSuspended)
			b.checkpoint(task, 1)
			// What an earlier resume set is gone.
			task.Spec.OperatingMode = v1alpha1.OperatingModeRunning
			task.Spec.Resume = &v1alpha1.Resume{ID: "earlier", Mode: v1alpha1.ResumeFromCheckpoint, CheckpointNumber: ptr.To[int64](7), AdditionalContext: "Old."}
			b.try(server.Client.Update(b.ctx, task))
			b.must(append([]string{"resume", "again", "--wait=false"}, test.args...)...)
			b.get(task)
			test.want.ID, test.want.OnDrift, test.want.Placement = "cli-abcdefgh", v1alpha1.OnDriftFail, v1alpha1.PlacementAny
			if diff := cmp.Diff(test.want, *task.Spec.Resume); diff != "" {
				t.Errorf("spec.resume (-want +got):\n%s", diff)
			}
		})
	}
	b := newBench(t)
	b.task("again", v1alpha1.ReasonSuspended)
	_, _, err := b.clew("", "resume", "again", "--from-checkpoint", "9")
	wantError(t, err, "has no checkpoint number 9")
}

func TestResumeWithLimits(t *testing.T) {
	b := newBench(t)
	task := b.task("again", v1alpha1.ReasonSuspended)
	b.must("resume", "again", "--wait=false", "--prompt", "Go on.", "--context-messages", "20", "--context-tool-calls", "0", "--context-summary", "exclude")
	b.get(task)
	limits, err := json.Marshal(task.Spec.Resume.Context)
	b.try(err)
	wantText(t, "spec.resume.context", `{"messages":20,"toolCalls":0,"summary":"Exclude"}`, string(limits))
	for _, test := range []struct{ flag, value, err string }{
		{"--context-messages", "-1", "from 0 to 10000"},
		{"--context-bytes", "10", "from 1000 to 1000000"},
		{"--context-summary", "maybe", "must be one of Include, Exclude"},
	} {
		_, _, err := b.clew("", "resume", "again", test.flag, test.value)
		wantError(t, err, test.err)
	}
}

// The modes have the names of spec.resume.mode; two of them have flags of their own as well.
func TestTheModeOfAResume(t *testing.T) {
	b := newBench(t)
	task := b.task("again", v1alpha1.ReasonSuspended)
	b.checkpoint(task, 1)
	b.withHistory(map[string]any{"GET tasks/again/diff/rewind": effect()})
	for line, want := range map[string]string{
		"":                     "Continue",
		"--mode clean":         "Clean",
		"--mode Clean --clean": "Clean",
		"--from-checkpoint 1":  "FromCheckpoint",
		"--mode FromCheckpoint --from-checkpoint 1": "FromCheckpoint",
	} {
		out, _ := b.must(append([]string{"resume", "again", "--dry-run=client", "-o", "jsonpath={.spec.resume.mode}"}, strings.Fields(line)...)...)
		wantText(t, "the mode of "+line, want, out)
	}
	for line, want := range map[string]string{
		"--mode FromCheckpoint":            "name it with --from-checkpoint NUMBER",
		"--mode Clean --from-checkpoint 1": "remove it or --mode Clean",
		"--mode Continue --clean":          "remove it or --mode Continue",
		"--prompt=":                        "--prompt is empty; leave it out",
		"--clean --from-checkpoint 1":      "use only one of --clean and --from-checkpoint: the one keeps",
		"--mode hop":                       "must be one of Continue, Clean, FromCheckpoint, RestartPhase",
	} {
		_, _, err := b.clew("", append([]string{"resume", "again"}, strings.Fields(line)...)...)
		wantError(t, err, want)
	}
}

// A resume from a checkpoint shows what its rewind does, as a rewind would; a dry run nothing else.
func TestAResumeFromACheckpointShowsWhatItWouldDo(t *testing.T) {
	b := newBench(t)
	task := b.task("returner", v1alpha1.ReasonSuspended)
	b.checkpoint(task, 1)
	preview := effect()
	preview.Stops = nil
	r := b.withHistory(map[string]any{"GET tasks/returner/diff/rewind": preview})
	out, errOut := b.must("resume", "returner", "--from-checkpoint", "1", "--prompt", "The other way.", "--dry-run=client", "-o", "yaml")
	wantText(t, "query", "branch=clew%2Fbefore%2Fresume-cli-abcdefgh&checkpointRef=returner-1&id=resume-cli-abcdefgh&limit=15&preserve=Branch&scope=Both", r.query())
	wantParts(t, "the preview", errOut, "Resume of task returner from a checkpoint\n", "keeps 4 of 9 messages; 5 go", "as branch clew/before/resume-cli-abcdefgh",
		"20 files changed, +30 -12", "src/00.go (deleted)")
	wantParts(t, "the manifest", out, "mode: FromCheckpoint", "name: returner-1", "prompt: The other way.")
	if b.get(task); task.Spec.Resume != nil {
		t.Errorf("a dry run requested %+v", task.Spec.Resume)
	}
	r.answers["GET tasks/returner/diff/rewind"] = metav1.Status{Code: 400, Reason: metav1.StatusReasonBadRequest, Message: `Checkpoint "returner-1" is damaged`}
	_, _, err := b.clew("", "resume", "returner", "--from-checkpoint", "1")
	wantError(t, err, "is damaged")
	if b.get(task); task.Spec.Resume != nil {
		t.Errorf("a resume that would be refused was requested: %+v", task.Spec.Resume)
	}
}

// What a rewind asks about, a resume asks about as well.
func TestAResumeAsksBeforeFilesGo(t *testing.T) {
	b := newBench(t)
	task := b.task("returner", v1alpha1.ReasonSuspended)
	b.checkpoint(task, 1)
	b.withHistory(map[string]any{"GET tasks/returner/diff/rewind": effect()})
	const asks = "Resume? [y/N]"
	for _, args := range [][]string{{"--from-checkpoint", "1"}, {"--on-drift", "override"}} {
		args = append([]string{"resume", "returner", "--wait=false"}, args...)
		_, _, err := b.clew("", args...)
		wantError(t, err, "there is no terminal to ask \"Resume?\": add --yes to proceed")
		_, errOut, err := b.clew("n\n", args...)
		wantError(t, err, "cancelled: nothing was changed")
		wantParts(t, "the question", errOut, asks)
		if b.get(task); task.Spec.Resume != nil {
			t.Fatalf("%v was requested without a yes: %+v", args, task.Spec.Resume)
		}
		if _, errOut = b.must(append(args, "--dry-run=server")...); strings.Contains(errOut, asks) {
			t.Errorf("a dry run asks:\n%s", errOut)
		}
	}
	_, errOut, err := b.clew("n\n", "resume", "returner", "--on-drift", "override")
	wantError(t, err, "cancelled")
	wantParts(t, "what it is about", errOut, "discards files changed while the task was not running, if its next pod finds any (they are not kept")
	_, errOut, err = b.clew("y\n", "resume", "returner", "--from-checkpoint", "1", "--wait=false")
	b.try(err)
	wantParts(t, "the question", errOut, asks)
	if b.get(task); task.Spec.Resume == nil {
		t.Error("nothing was requested after a yes")
	}
}

// Nothing goes, so nothing is asked.
func TestAResumeFromTheCurrentStateDoesNotAsk(t *testing.T) {
	b := newBench(t)
	b.task("sleeper", v1alpha1.ReasonSuspended)
	if _, errOut := b.must("resume", "sleeper", "--on-drift", "preserve", "--wait=false"); strings.Contains(errOut, "[y/N]") {
		t.Errorf("it asks:\n%s", errOut)
	}
}

func TestACleanResumeSaysWhatKeepsTheFormerConversation(t *testing.T) {
	clean := &resume{clean: true}
	wantText(t, "the outcome", "resumed; the former conversation is kept as checkpoint 7", clean.outcome(&v1alpha1.OperationStatus{FromCheckpoint: 7}, nil))
	wantText(t, "the outcome of what is not known", "resumed", clean.outcome(&v1alpha1.OperationStatus{}, nil))
	wantText(t, "the outcome of another resume", "resumed", (&resume{}).outcome(&v1alpha1.OperationStatus{FromCheckpoint: 7}, nil))
}
