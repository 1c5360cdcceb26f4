package cli

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestDrift(t *testing.T) {
	b := newBench(t)
	task := b.task("fix-login", v1alpha1.ReasonSuspended)
	r := b.withHistory(map[string]any{diffRequest: someDiff()})
	out, errOut := b.must("drift", "fix-login")
	wantText(t, "output", "", out)
	wantText(t, "standard error", "nothing of task fix-login is known to have changed while it was not running: that is found when it next starts\n", errOut)
	task.Status.Attempts = []v1alpha1.Attempt{{Number: 1, PodName: "a", Outcome: v1alpha1.AttemptCompleted}, {Number: 2, PodName: "b", Outcome: v1alpha1.AttemptBlocked}}
	b.try(server.Client.Status().Update(b.ctx, task))
	_, errOut = b.must("drift", "fix-login")
	wantText(t, "standard error", "nothing of task fix-login was found changed when attempt 1 started; what was changed since then is found when the task next starts\n", errOut)

	task.Status.Drift = &v1alpha1.DriftStatus{Attempt: 2, Checkpoint: 3, FileCount: 5, Commit: "d0d0",
		Files: []v1alpha1.ChangedFile{{Path: "a.go", Action: v1alpha1.FileModified}, {Path: "b.png", Action: v1alpha1.FileAdded}}}
	b.try(server.Client.Status().Update(b.ctx, task))
	out, errOut = b.must("drift", "fix-login")
	wantParts(t, "the patch", out, "diff --git a/a.go b/a.go\n")
	wantText(t, "standard error", "5 files of task fix-login changed while it was not running since checkpoint 3\n"+
		"`kubectl clew resume fix-login --on-drift preserve` keeps the changes, `--on-drift override` discards them\n", errOut)
	wantText(t, "query", "format=patch&from=previous&ignored=true&to=drift&uid="+string(task.UID), r.query())
	out, _ = b.must("drift", "fix-login", "--stat")
	wantParts(t, "the summary", out, "c (deleted)", "5 files changed")
	out, _ = b.must("drift", "fix-login", "--name-only")
	wantText(t, "the paths", "a.go\nb.png\nc\ne\nf\n", out)
	out, _ = b.must("drift", "fix-login", "-o", "json")
	if got := decode[v1alpha1.DriftStatus](t, out); got.FileCount != 5 || len(got.Files) != 2 {
		t.Errorf("printed %+v", got)
	}
	_, _, err := b.clew("", "drift", "fix-login", "--stat", "--name-only")
	wantError(t, err, "use only one of --stat and --name-only")

	// The files are no longer in the gitstore, or never were: the status names the first.
	r.answers[diffRequest] = nil
	out, errOut = b.must("drift", "fix-login")
	wantText(t, "the list", "a.go\nb.png (added)\n", out)
	wantParts(t, "standard error", errOut, "how they differ is not known any more", "and 3 more files\n")
	task.Status.Drift = &v1alpha1.DriftStatus{Attempt: 2, Checkpoint: 3, ExpectedHead: &v1alpha1.HeadStatus{Branch: "main", Commit: "0123456789abcdef"}, Head: &v1alpha1.HeadStatus{Branch: "by-hand"}}
	b.try(server.Client.Status().Update(b.ctx, task))
	out, errOut = b.must("drift", "fix-login")
	wantText(t, "output", "", out)
	wantText(t, "standard error", "the HEAD of its repository was moved from commit 0123456789ab of branch main to no commit of branch by-hand\n", errOut)
}

func TestDriftSaysWhatBecameOfTheFiles(t *testing.T) {
	b := newBench(t)
	task := b.task("fix-login", v1alpha1.ReasonDriftDetected)
	b.driftsInto(task)
	b.withHistory(map[string]any{diffRequest: someDiff()})
	task.Spec.Resume = &v1alpha1.Resume{ID: "more", Prompt: "More."}
	b.try(server.Client.Update(b.ctx, task))
	task.Status.Resume = &v1alpha1.OperationStatus{ID: "more", State: v1alpha1.OperationFailed, Reason: v1alpha1.ReasonDriftDetected}
	b.try(server.Client.Status().Update(b.ctx, task))
	_, errOut := b.must("drift", "fix-login")
	wantParts(t, "the advice", errOut, "`--on-drift override` discards them\nrepeat `--prompt`, too: the agent has not got the prompt of the resume that failed\n")
	wantError(t, judgeResume(task, "more").err, "discard them with --on-drift override; repeat --prompt, too: the agent has not got it")
	task.Status.Resume.Reason = v1alpha1.ReasonCheckpointCorrupted
	wantError(t, judgeResume(task, "more").err, "(CheckpointCorrupted); repeat --prompt, too: the agent has not got it")
	task.Status.Drift.Commit = ""
	for reason, sentence := range map[string]string{
		v1alpha1.EventDriftOverridden: "attempt 2 discarded these changes: they are not kept\n",
		v1alpha1.EventDriftPreserved:  "attempt 2 kept these changes as a checkpoint\n",
	} {
		setDrifted(task, metav1.ConditionFalse, reason)
		b.try(server.Client.Status().Update(b.ctx, task))
		_, errOut = b.must("drift", "fix-login")
		wantParts(t, "what became of them", errOut, "since checkpoint 3\n"+sentence)
	}
	setDrifted(task, metav1.ConditionFalse, v1alpha1.EventDriftPreserved)
	b.try(server.Client.Status().Update(b.ctx, task))
	c := b.checkpoint(task, 4)
	c.Status.Trigger, c.Status.Attempt = v1alpha1.TriggerDrift, 2
	b.try(server.Client.Status().Update(b.ctx, c))
	_, errOut = b.must("drift", "fix-login")
	wantParts(t, "what keeps them", errOut, "attempt 2 kept these changes as checkpoint 4: `kubectl clew diff fix-login previous 4 -n "+b.namespace+"` shows them\n")
}

func TestADiffMayNameWhatHasDrifted(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{diffRequest: historyv1.Diff{}})
	b.must("diff", "fix-login", "3", "drift")
	wantText(t, "query", "format=patch&from=3&to=drift", r.query())
	for _, word := range []string{"drift", "live"} {
		b.must("diff", "fix-login", word)
		wantText(t, "query", "format=patch&from=latest&to="+word, r.query())
	}
}
