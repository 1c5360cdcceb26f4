package cli

import (
	"testing"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestDrift(t *testing.T) {
	b := newBench(t)
	task := b.task("fix-login", v1alpha1.ReasonSuspended)
	r := b.withHistory(map[string]any{diffRequest: someDiff()})
	out, errOut := b.must("drift", "fix-login")
	wantText(t, "output", "", out)
	wantParts(t, "standard error", errOut, "nothing of task fix-login was changed while it was not running")

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

func TestADiffMayNameWhatHasDrifted(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{diffRequest: historyv1.Diff{}})
	b.must("diff", "fix-login", "3", "drift")
	wantText(t, "query", "format=patch&from=3&to=drift", r.query())
}
