package prepare_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/refname"
)

// TestFilesAreCopiedFromAnotherTask: whatever kills prepare on the way, the task starts with its
// own repository and conversation, the selected files, and one event that says how many.
func TestFilesAreCopiedFromAnotherTask(t *testing.T) {
	t.Parallel()
	source := three(t)
	from := daemonapi.Source{TaskUID: source.UID, TaskName: "source", Checkpoint: 2, Commit: checkpointRecord(source, 2).GetCommit(), CopyFiles: []string{"a.*"}}
	branch, _ := branchOf(t, source)
	for at := 1; ; at++ {
		w := source.Fork(fmt.Sprintf("copy-%d", at), from)
		w.Prompt = "Do it."
		where, done := prepareCrashing(t, w, 1, nil, &crashing{at: at})
		w.Prepare(1, nil)
		expect(t, "a.txt, killed "+where, w.Read("a.txt"), "changed by 2\n")
		expect(t, "conversation, killed "+where, w.Lines(), []string{"user Do it."})
		now, _ := branchOf(t, w)
		expect(t, "branch, killed "+where, now, branch)
		var told []string
		w.Server.Inspect(w.UID, func(k *daemontest.Task) {
			for _, r := range k.Records {
				if e := r.GetEvent(); e != nil && e.GetReason() == v1alpha1.EventFilesCopied {
					told = append(told, e.GetMessage())
				}
			}
		})
		expect(t, "events, killed "+where, strings.Join(told, "; "), "the task starts with 1 file of "+from.String())
		if done {
			break
		}
	}

	from.CopyFiles = []string{"a.*", "nothing/**"}
	w := source.Fork("nothing", from)
	r := prepare.Run(t.Context(), w.PrepareConfig(1, nil))
	expect(t, "reason", r.Reason, v1alpha1.ReasonPathNotFound)
	expect(t, "permanent", r.Permanent, true)
	if !strings.Contains(r.Message, `"nothing/**" selects no file`) {
		t.Errorf("the message is %q", r.Message)
	}
}

// TestACopyGoesOnWithoutItsSource: once the files are there.
func TestACopyGoesOnWithoutItsSource(t *testing.T) {
	t.Parallel()
	source := three(t)
	from := daemonapi.Source{TaskUID: source.UID, Checkpoint: 2, CopyFiles: []string{"a.txt"}}
	w := source.Fork("copy", from)
	w.Prepare(1, nil)
	expect(t, "states on the volume", statesOf(t, w, source.UID), "")
	attempt(w, 1, func(a *daemontest.Shim) { step(w, a, "c1", "c", "c") })
	from.Commit = "0000000000000000000000000000000000000000"
	w.Source = &from
	w.Prepare(2, nil)
	expect(t, "a.txt", w.Read("a.txt"), "changed by 2\n")
}

// statesOf returns the commits of a task's states that refs of a volume keep.
func statesOf(t *testing.T, w *daemontest.World, uid string) string {
	t.Helper()
	out := w.Git.Run(t, "", "--git-dir", filepath.Join(w.Paths().State, "git"), "for-each-ref", "--format=%(objectname)", refname.OfTask(uid)+"state", "refs/clew-remote")
	return strings.Join(slices.Compact(strings.Fields(out)), " ")
}
