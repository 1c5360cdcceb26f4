package prepare_test

import (
	"slices"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// TestARewindOfFilesKilledAtEveryStage: each kind of target, with each way to preserve the state
// before it.
func TestARewindOfFilesKilledAtEveryStage(t *testing.T) {
	if testing.Short() {
		t.Skip("kills at every stage: make test runs it")
	}
	t.Parallel()
	arranged := staged(t)
	origin, second := firstCommit(t, arranged), checkpointRecord(arranged, 2).GetCommit()
	for name, cell := range map[string]struct {
		files                daemonapi.RewindFiles
		one, a, three, index string
		undone               []string
	}{
		"paths of a checkpoint":      {daemonapi.RewindFiles{Checkpoint: 1, Paths: []string{"a.txt", "three"}}, "1\n", "a\n", "", "one.txt", []string{"a.txt", "three"}},
		"paths of a commit":          {daemonapi.RewindFiles{Commit: origin, Paths: []string{"*.txt"}}, "", "a\n", "3\n", "one.txt", []string{"*.txt"}},
		"a commit of the origin":     {daemonapi.RewindFiles{Commit: origin}, "", "a\n", "3\n", "one.txt", []string{"**"}},
		"the commit of a checkpoint": {daemonapi.RewindFiles{Commit: second}, "1\n", "changed by 2\n", "", "one.txt", []string{"**"}},
		"the undo of one":            {daemonapi.RewindFiles{Checkpoint: 1, Paths: []string{"**"}}, "1\n", "a\n", "", "one.txt", []string{"**"}},
	} {
		for _, preserve := range []string{"Branch", "Stash", "Discard"} {
			t.Run(name+" "+preserve, func(t *testing.T) {
				t.Parallel()
				op := rewindTo(0, "Code", preserve)
				op.ID, op.Files = "files-"+preserve, &cell.files
				preserved := map[string]string{"Branch": "clew/before-" + op.ID, "Stash": "refs/stash"}[preserve]
				killAtEveryStage(t, arranged, op, func(t *testing.T, w *daemontest.World) {
					t.Helper()
					expect(t, "one.txt", w.Read("one.txt"), cell.one)
					expect(t, "a.txt", w.Read("a.txt"), cell.a)
					expect(t, "three", w.Read("three/ignored"), cell.three)
					expect(t, "index", w.Git.Run(t, w.Path(""), "ls-files", "one.txt"), cell.index)
					expect(t, "conversation", w.Lines(), callsOfThree)
					expect(t, "home", readHome(w), "3")
					expect(t, "number", latest(w).GetNumber(), 6)
					expect(t, "trigger", latest(w).GetTrigger(), "Rewound")
					expectPreserved(t, w, op, preserved)
					rewound := ends(t, w, op.ID)
					expect(t, "the checkpoint that an undo restores", rewound.GetFromCheckpoint(), 5)
					if !slices.Equal(rewound.GetPaths(), cell.undone) {
						t.Fatalf("an undo restores %q, want %q", rewound.GetPaths(), cell.undone)
					}
				})
			})
		}
	}
}
