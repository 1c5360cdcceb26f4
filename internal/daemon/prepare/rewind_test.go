package prepare_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

func TestRewindScopes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		scope        string
		one, a, home string
		conversation []string
		position     int64
	}{
		{"Both", "1\n", "a\n", "1", callsOfThree[:3], 3},
		{"Code", "1\n", "a\n", "3", callsOfThree, 0},
		{"Conversation", "1\n", "changed by 2\n", "1", callsOfThree[:3], 3},
	}
	for _, tt := range tests {
		t.Run(tt.scope, func(t *testing.T) {
			w := three(t)
			before, op := w.Tree(), rewindTo(1, tt.scope, "Discard")
			r := w.Prepare(2, op)
			want := daemonapi.PrepareResult{Reason: "Prepared", OperationKind: "Rewind", Operation: op.ID, FromCheckpoint: 4, ToCheckpoint: 1, ToPosition: tt.position}
			expect(t, "result", r, want)
			expect(t, "one.txt", w.Read("one.txt"), tt.one)
			expect(t, "a.txt", w.Read("a.txt"), tt.a)
			expect(t, "home", readHome(w), tt.home)
			expect(t, "conversation", w.Lines(), tt.conversation)
			expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Number: 5, Trigger: "Rewound", Durable: true})
			after := w.Tree()
			// Repeated by pods of this and later attempts, the operation does nothing.
			expect(t, "result", w.Prepare(2, op), want)
			expect(t, "result", w.Prepare(3, op), want)
			expect(t, "tree", w.Tree(), after)
			if c := latest(w); c.GetNumber() != 5 {
				t.Fatalf("the number is %v, want 5: %+v", c.GetNumber(), c)
			}
			// And it can be undone.
			w.Prepare(4, rewindTo(4, "Both", "Discard"))
			expect(t, "tree", w.Tree(), before)
			expect(t, "home", readHome(w), "3")
			expect(t, "conversation", w.Lines(), callsOfThree)
		})
	}
}

// toPosition rewinds the conversation to a position, and the agent's state to an earlier
// checkpoint, which is at position current.
func toPosition(position, checkpoint, current int64) *daemonapi.Operation {
	op := rewindTo(checkpoint, "Conversation", "Discard")
	op.ID, op.Position, op.CheckpointPosition = fmt.Sprintf("position-%d", position), position, current
	return op
}

// TestRewindToAPosition: the conversation moves to the position, the agent's state to the
// checkpoint before it, and the files stay.
func TestRewindToAPosition(t *testing.T) {
	t.Parallel()
	w := three(t)
	files, op := w.Tree(), toPosition(5, 1, 3)
	want := daemonapi.PrepareResult{Reason: "Prepared", OperationKind: "Rewind", Operation: op.ID, FromCheckpoint: 4, ToCheckpoint: 1, ToPosition: 5}
	for n := int64(2); n < 4; n++ {
		expect(t, "result", w.Prepare(n, op), want)
		expect(t, "conversation", w.Lines(), callsOfThree[:5])
		expect(t, "home", readHome(w), "1")
		expect(t, "tree", w.Tree(), files)
	}
	// The server remembers what the volume has lost.
	w.LoseVolume()
	want.FromCheckpoint, want.Restored = 0, true
	expect(t, "result", w.Prepare(4, op), want)
	expect(t, "conversation", w.Lines(), callsOfThree[:5])
	expect(t, "home", readHome(w), "1")
	// With the files, the conversation goes to the checkpoint's position, whatever position
	// is named.
	both := toPosition(5, 2, 5)
	both.ID, both.Scope, both.Position = "both", "Both", 7
	if r := w.Prepare(5, both); r.ToPosition != 5 {
		t.Fatalf("the position is %v, want 5: %+v", r.ToPosition, r)
	}
	expect(t, "home", readHome(w), "2")
	expect(t, "conversation", w.Lines(), callsOfThree[:5])
	// An impossible position changes nothing.
	for _, bad := range []*daemonapi.Operation{toPosition(8, 1, 3), toPosition(3, 2, 5)} {
		bad.ID += "-bad"
		expectFailed(t, w.Prepare(6, bad), bad.ID, "PrepareFailed")
	}
	expect(t, "home", readHome(w), "2")
}

func TestRewindKeepsWhatStood(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"Branch", "Stash"} {
		t.Run(mode, func(t *testing.T) {
			w := three(t)
			op := rewindTo(1, "Both", mode)
			op.Branch = map[string]string{"Branch": "before/it"}[mode]
			r := w.Prepare(2, op)
			ref := "refs/stash"
			if mode == "Branch" {
				ref = "refs/heads/before/it"
				expect(t, "name", r.Preserved, "before/it")
				if !slices.Contains(w.Git.Refs(t, "store"), "refs/heads/clew/task/before/it") {
					t.Fatal("the gitstore does not have the branch")
				}
			}
			expect(t, "a.txt there", w.Git.Run(t, w.Path(""), "show", ref+":a.txt"), "changed by 2")
			expect(t, "branch", w.Git.Run(t, w.Path(""), "symbolic-ref", "HEAD"), "refs/heads/main")
		})
	}
}

// TestRewindOfAKilledTask: a state that is in no checkpoint yet gets one first.
func TestRewindOfAKilledTask(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Prepare(2, nil)
	d := w.Start(2)
	a := w.Dial("s2")
	w.Write("unsaved", "work\n")
	a.Say(`{"type":"tool_call","id":"4","name":"x"}`)
	a.Recorded()
	killed := w.CopyVolume()
	r := killed.Prepare(3, rewindTo(2, "Both", "Discard"))
	expect(t, "the checkpoint before the rewind", r.FromCheckpoint, 5)
	expectCheckpoint(t, checkpointRecord(killed, 5), &daemonv1.CheckpointRecord{Number: 5, Trigger: "PreRewind", Durable: true})
	expect(t, "unsaved", killed.Read("unsaved"), "")
	killed.Prepare(4, rewindTo(5, "Both", "Discard"))
	expect(t, "unsaved", killed.Read("unsaved"), "work\n")
	expect(t, "conversation", killed.Lines(), append(slices.Clone(callsOfThree), "call 4", "interrupted 4"))
	d.End()
}

// TestRewindKeepsWhatIsInNoFile: only the index, a ref or the agent's state may have
// changed since the last checkpoint.
func TestRewindKeepsWhatIsInNoFile(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*testing.T, *daemontest.World)
		kept   func(*testing.T, *daemontest.World) string
	}{
		{"index", func(t *testing.T, w *daemontest.World) { w.Git.Run(t, w.Path(""), "add", "one.txt") },
			func(t *testing.T, w *daemontest.World) string {
				return w.Git.Run(t, w.Path(""), "ls-files", "one.txt")
			}},
		{"ref", func(t *testing.T, w *daemontest.World) { w.Git.Run(t, w.Path(""), "tag", "new") },
			func(t *testing.T, w *daemontest.World) string { return w.Git.Run(t, w.Path(""), "tag") }},
		{"home", func(t *testing.T, w *daemontest.World) { home(w, "edited") },
			func(t *testing.T, w *daemontest.World) string { return readHome(w) }},
	}
	arranged := three(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := arranged.Copy(t)
			tt.change(t, w)
			want := tt.kept(t, w)
			r := w.Prepare(2, rewindTo(1, "Both", "Discard"))
			expect(t, "the checkpoint before the rewind", r.FromCheckpoint, 5)
			expect(t, "its trigger", checkpointRecord(w, 5).GetTrigger(), "PreRewind")
			if tt.kept(t, w) == want {
				t.Fatal("the rewind changed nothing")
			}
			w.Prepare(3, rewindTo(5, "Both", "Discard"))
			expect(t, "what was kept", tt.kept(t, w), want)
		})
	}
}

func TestLocksOfAKilledAgentAreCleared(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Write(".git/index.lock", "half an index")
	w.Write(".git/refs/heads/main.lock", "half a ref")
	w.Prepare(2, nil)
	w.Git.Run(t, w.Path(""), "add", "one.txt")
	w.Git.Run(t, w.Path(""), "commit", "--quiet", "-m", "it works again")
}

func TestRewindToADamagedCheckpointTouchesNothing(t *testing.T) {
	t.Parallel()
	w := three(t)
	before := w.Tree()
	// Damage every object that only checkpoint 1 needs: its tree.
	tree := checkpointRecord(w, 1).GetTree()
	damage(t, w, tree)
	damageStored(t, w, tree)
	op := rewindTo(1, "Both", "Discard")
	r := w.Prepare(2, op)
	expectFailed(t, r, op.ID, "CheckpointCorrupted")
	// The manager reports of every failed rewind that everything is unchanged.
	if strings.Contains(r.Failed.Message, "nothing was") {
		t.Errorf("it is said twice: %s", r.Failed.Message)
	}
	expect(t, "tree", w.Tree(), before)
	expect(t, "conversation", w.Lines(), callsOfThree)
	w.Prepare(3, nil)
	w.Prepare(4, rewindTo(2, "Both", "Discard")) // others stay usable
}

// The volume alone is damaged: the gitstore has what it lacks.
func TestADamagedCheckpointOnTheVolumeIsFetchedAgain(t *testing.T) {
	t.Parallel()
	w := three(t)
	first := checkpointRecord(w, 1)
	for _, id := range []string{first.GetCommit(), first.GetTree(), first.GetStateCommit()} {
		damage(t, w, id)
	}
	r := w.Prepare(2, rewindTo(1, "Both", "Discard"))
	if r.Reason != "Prepared" || r.Failed != nil {
		t.Fatalf("the rewind failed: %+v %+v", r, r.Failed)
	}
	w.Prepare(3, rewindTo(2, "Both", "Discard"))
}

// damage makes an object of the daemon's repository unreadable, loose or packed.
func damage(t *testing.T, w *daemontest.World, id string) {
	t.Helper()
	damageIn(t, filepath.Join(w.Root, "clew", "git", "objects"), id)
}

// damageStored makes an object of the gitstore's repository unreadable.
func damageStored(t *testing.T, w *daemontest.World, id string) {
	t.Helper()
	damageIn(t, filepath.Join(w.Git.Dir, "store.git", "objects"), id)
}

func damageIn(t *testing.T, objects, id string) {
	t.Helper()
	if loose := filepath.Join(objects, id[:2], id[2:]); flip(t, loose, 20) {
		return
	}
	indexes, _ := filepath.Glob(filepath.Join(objects, "pack", "*.idx"))
	for _, index := range indexes {
		in, err := os.Open(index)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("git", "show-index")
		cmd.Stdin = in
		out, err := cmd.Output()
		in.Close()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			var offset int64
			if fields := strings.Fields(line); fields[1] == id {
				fmt.Sscan(fields[0], &offset)
				flip(t, strings.TrimSuffix(index, ".idx")+".pack", offset+8)
				return
			}
		}
	}
	t.Fatalf("there is no object %s", id)
}

// flip changes one byte of a file, if the file exists.
func flip(t *testing.T, path string, at int64) bool {
	t.Helper()
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	data[at] ^= 0xff
	os.Chmod(path, 0o600)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return true
}

// TestKilledAtEveryStep kills prepare before and after every call of repository and server,
// each time in a world of its own, and lets the next pod finish the same operation. The
// outcome must be that of an undisturbed run.
func TestKilledAtEveryStep(t *testing.T) {
	if testing.Short() {
		t.Skip("kills at every step: make test runs it")
	}
	t.Parallel()
	scenarios := []struct {
		name    string
		arrange func(t *testing.T) *daemontest.World
		op      *daemonapi.Operation
		expect  func(t *testing.T, w *daemontest.World)
	}{
		{"rewind", three, &daemonapi.Operation{Kind: daemonapi.OperationRewind, ID: "r", Checkpoint: 1, Scope: "Both", Preserve: "Branch"},
			func(t *testing.T, w *daemontest.World) {
				expect(t, "conversation", w.Lines(), callsOfThree[:3])
				expect(t, "home", readHome(w), "1")
				expect(t, "trigger", latest(w).GetTrigger(), "Rewound")
				expect(t, "number", latest(w).GetNumber(), 5)
			}},
		{"rewind to a position", three, toPosition(5, 1, 3),
			func(t *testing.T, w *daemontest.World) {
				expect(t, "conversation", w.Lines(), callsOfThree[:5])
				expect(t, "home", readHome(w), "1")
				expect(t, "a.txt", w.Read("a.txt"), "changed by 2\n")
				expect(t, "number", latest(w).GetNumber(), 5)
			}},
		{"rewind to before any checkpoint", three, toPosition(1, 0, 0),
			func(t *testing.T, w *daemontest.World) {
				expect(t, "conversation", w.Lines(), callsOfThree[:1])
				expect(t, "home", readHome(w), "")
				expect(t, "a.txt", w.Read("a.txt"), "changed by 2\n")
				expect(t, "trigger", latest(w).GetTrigger(), "Rewound")
				expect(t, "number", latest(w).GetNumber(), 5)
			}},
		{"rewind of a fork to what it began with", forked, toFloor(4),
			func(t *testing.T, w *daemontest.World) {
				expect(t, "conversation", w.Lines(), forkLines[:4])
				expect(t, "home", readHome(w), "1")
				expect(t, "f", w.Read("f"), "f\n")
				expect(t, "number", latest(w).GetNumber(), 2)
			}},
		{"lost volume", func(t *testing.T) *daemontest.World { w := three(t); w.LoseVolume(); return w }, nil,
			func(t *testing.T, w *daemontest.World) {
				expect(t, "conversation", w.Lines(), callsOfThree)
				expect(t, "home", readHome(w), "3")
				expect(t, "number", latest(w).GetNumber(), 4)
			}},
		{"first start", func(t *testing.T) *daemontest.World { return daemontest.NewWorld(t, files) }, nil,
			func(t *testing.T, w *daemontest.World) {
				expect(t, "conversation", w.Lines(), []string{"user Do it."})
			}},
		{"resume", three, &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "r", Prompt: "More."},
			func(t *testing.T, w *daemontest.World) {
				expect(t, "conversation", w.Lines(), append(slices.Clone(callsOfThree), "user More."))
			}},
	}
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			killAtEveryStep(t, sc.arrange(t), sc.op, stride(2), sc.expect)
		})
	}
}

// killAtEveryStep kills prepare before or after every call, or every few, of an operation.
func killAtEveryStep(t *testing.T, arranged *daemontest.World, op *daemonapi.Operation, stride int, expect func(*testing.T, *daemontest.World)) {
	t.Helper()
	o := undisturbed(t, arranged, op, expect)
	for at := 1; ; at += stride {
		if !o.kill(t, arranged, &crashing{at: at}) {
			t.Logf("%d steps", at-1)
			return
		}
	}
}

// killAtEveryStage kills prepare at the first and the last call of every stage of a rewind that
// the journal has, and as often before it has one; with CLEW_SOAK=1 at every call.
func killAtEveryStage(t *testing.T, arranged *daemontest.World, op *daemonapi.Operation, expect func(*testing.T, *daemontest.World)) {
	t.Helper()
	o := undisturbed(t, arranged, op, expect)
	w := arranged.Copy(t)
	ends, stages := map[string][2]int{}, []string{}
	c := &crashing{fine: true}
	c.each = func() {
		stage := ""
		if r := state(t, w).Rewind; r != nil {
			stage = r.Stage
		}
		first, ok := ends[stage]
		if !ok {
			stages, first[0] = append(stages, stage), c.step+1
		}
		ends[stage] = [2]int{first[0], c.step + 1}
	}
	if where, done := prepareCrashing(t, w, 2, op, c); !done {
		t.Fatalf("it was killed %s", where)
	}
	want := []string{"", journal.RewindBegun, journal.RewindSaved, journal.RewindRestoring, journal.RewindRestored, journal.RewindMoved, journal.RewindMarked}
	if op.Files != nil && op.Files.Checkpoint > 0 {
		// This run has verified the checkpoint before, and does not ask for it again.
		want = slices.DeleteFunc(want, func(stage string) bool { return stage == journal.RewindSaved })
	}
	if !slices.Equal(stages, want) {
		t.Fatalf("the stages in which something is called are %q, want %q", stages, want)
	}
	if os.Getenv("CLEW_SOAK") == "1" {
		ends = map[string][2]int{}
		for at := 1; at <= c.step; at++ {
			ends[fmt.Sprint(at)] = [2]int{at, at}
		}
	}
	for stage, at := range ends {
		for _, at := range slices.Compact(at[:]) {
			if !o.kill(t, arranged, &crashing{at: at, fine: true}) {
				t.Fatalf("step %d of stage %q was not reached", at, stage)
			}
		}
	}
}

// outcome is what an operation leads to, wherever it is killed.
type outcome struct {
	op           *daemonapi.Operation
	tree, status string
	expect       func(*testing.T, *daemontest.World)
}

func undisturbed(t *testing.T, arranged *daemontest.World, op *daemonapi.Operation, expect func(*testing.T, *daemontest.World)) outcome {
	t.Helper()
	w := arranged.Copy(t)
	w.Prepare(2, op)
	expect(t, w)
	return outcome{op, fmt.Sprint(w.Tree()), gitStatus(t, w), expect}
}

// kill kills prepare, and expects the next pods to end as one that is not disturbed. It returns
// false if prepare ended before.
func (o outcome) kill(t *testing.T, arranged *daemontest.World, c *crashing) bool {
	t.Helper()
	w := arranged.Copy(t)
	where, done := prepareCrashing(t, w, 2, o.op, c)
	if done {
		return false
	}
	// The pod is lost; the manager gives the next one the same operation, since
	// no success was reported. An init container may be killed again.
	if _, done := prepareCrashing(t, w, 3, o.op, &crashing{at: c.at/2 + 1}); !done {
		w.Prepare(4, o.op)
	}
	if tree := fmt.Sprint(w.Tree()); tree != o.tree {
		t.Fatalf("killed %s: the tree is %v and should be %v", where, tree, o.tree)
	}
	if got := gitStatus(t, w); got != o.status {
		t.Fatalf("killed %s: git status says\n%s\nand should say\n%s", where, got, o.status)
	}
	o.expect(t, w)
	return true
}

func TestRewindIsFinishedWhateverTheNextPodIsAskedFor(t *testing.T) {
	t.Parallel()
	w := three(t)
	op := rewindTo(1, "Both", "Discard")
	if _, done := prepareCrashing(t, w, 2, op, &crashing{when: "before restore"}); done {
		t.Fatal("it was not killed")
	}
	w.Prepare(3, nil)
	expect(t, "conversation", w.Lines(), callsOfThree[:3])
	expect(t, "a.txt", w.Read("a.txt"), "a\n")
}

// TestVolumeLostInMidRewind: after the conversation has moved, before the checkpoint
// Rewound is durable.
func TestVolumeLostInMidRewind(t *testing.T) {
	if testing.Short() {
		t.Skip("loses the volume at every step: make test runs it")
	}
	t.Parallel()
	for name, op := range map[string]*daemonapi.Operation{"paths": pathsTo(1, "Discard", "a.txt", "three"), "Both": rewindTo(1, "Both", "Discard"), "Code": rewindTo(1, "Code", "Discard"),
		"Conversation": rewindTo(1, "Conversation", "Discard"), "position": toPosition(5, 1, 3), "before any checkpoint": toPosition(1, 0, 0)} {
		t.Run(name, func(t *testing.T) {
			w := three(t)
			undisturbed := w.Copy(t)
			undisturbed.Prepare(2, op)
			if _, done := prepareCrashing(t, w, 2, op, &crashing{when: "after move Rewind/" + op.ID}); done {
				t.Fatal("it was not killed")
			}
			w.LoseVolume()
			r := w.Prepare(3, op)
			expect(t, "operation", r.Operation, op.ID)
			if op.Files == nil {
				expect(t, "target", r.ToCheckpoint, op.Checkpoint)
			}
			expect(t, "tree", w.Tree(), undisturbed.Tree())
			expect(t, "home", readHome(w), readHome(undisturbed))
			expect(t, "conversation", w.Lines(), undisturbed.Lines())
			w.LoseVolume()
			w.Prepare(4, op) // done: a plain start
			expect(t, "tree", w.Tree(), undisturbed.Tree())
			expect(t, "conversation", w.Lines(), undisturbed.Lines())
		})
	}
}
