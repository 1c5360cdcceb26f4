package prepare_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/refname"
)

// editJournal changes the journal of a volume at rest.
func editJournal(t *testing.T, w *daemontest.World, change func(*journal.State)) {
	t.Helper()
	j, err := journal.Open(filepath.Join(w.Root, "clew", "journal.json"), nil)
	if err == nil {
		err = j.Update(func(s *journal.State) error { change(s); return nil })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// stored returns a file of a checkpoint in the gitstore, without its last line break.
func stored(t *testing.T, w *daemontest.World, number int64, name string) string {
	t.Helper()
	return strings.TrimSuffix(w.Git.Run(t, filepath.Join(w.Git.Dir, "store.git"), "show", refname.Code(w.UID, number)+":"+name), "\n")
}

// interruptedRewind returns a task whose second attempt was killed during a rewind that had changed
// nothing yet.
func interruptedRewind(t *testing.T, op *daemonapi.Operation, when, stage string) *daemontest.World {
	t.Helper()
	w := three(t)
	home(w, "in no checkpoint")
	if _, done := prepareCrashing(t, w, 2, op, &crashing{when: when}); done {
		t.Fatal("it was not killed")
	}
	editJournal(t, w, func(s *journal.State) { s.Rewind.Stage = stage })
	return w
}

// stagesBefore are the stages of a rewind that has changed nothing, and steps at which it is killed.
var stagesBefore = []struct{ name, when, stage string }{
	{"before the checkpoint", "before checkpoint", journal.RewindBegun},
	{"with the checkpoint", "after push", journal.RewindBegun},
	{"with the checkpoint pushed", "after push", journal.RewindSaved},
}

// TestAnInterruptedRewindFindsDrift: what somebody changed since the kill is treated as onDrift
// says, and a checkpoint has it before the rewind changes files.
func TestAnInterruptedRewindFindsDrift(t *testing.T) {
	t.Parallel()
	for _, stage := range stagesBefore {
		for onDrift, before := range map[v1alpha1.OnDrift]string{"Preserve": "by hand", "Override": "changed by 2"} {
			t.Run(stage.name+"/"+string(onDrift), func(t *testing.T) {
				t.Parallel()
				op := rewindTo(1, "Code", "Discard")
				op.OnDrift = onDrift
				w := interruptedRewind(t, op, stage.when, stage.stage)
				w.Write("a.txt", "by hand\n")
				r := w.Prepare(3, op)
				expect(t, "what drifted", r.DriftedFiles, []string{"a.txt"})
				expect(t, "a.txt", w.Read("a.txt"), "a\n")
				expect(t, "a.txt before the rewind", stored(t, w, r.FromCheckpoint, "a.txt"), before)
			})
		}
	}
}

// TestAnInterruptedRewindFailsOnDrift: and nothing of it is in the way of the next one.
func TestAnInterruptedRewindFailsOnDrift(t *testing.T) {
	t.Parallel()
	for _, stage := range stagesBefore {
		t.Run(stage.name, func(t *testing.T) {
			t.Parallel()
			op := rewindTo(1, "Code", "Discard")
			w := interruptedRewind(t, op, stage.when, stage.stage)
			w.Write("a.txt", "by hand\n")
			for n := int64(3); n <= 4; n++ {
				r := prepare.Run(t.Context(), w.PrepareConfig(n, op))
				expect(t, "reason", r.Reason, "DriftDetected")
				expect(t, "what drifted", r.DriftedFiles, []string{"a.txt"})
			}
			expect(t, "a.txt", w.Read("a.txt"), "by hand\n")
			expect(t, "the journal's rewind", state(t, w).Rewind, nil)

			w.Prepare(5, &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "on", OnDrift: "Preserve"})
			expect(t, "a.txt after the resume", w.Read("a.txt"), "by hand\n")
			expect(t, "the trigger of the newest checkpoint", latest(w).GetTrigger(), "Drift")
		})
	}
}

// TestTheNewestAnswerToDriftCounts: of the operation that the pod brings, not of the one that was
// interrupted.
func TestTheNewestAnswerToDriftCounts(t *testing.T) {
	t.Parallel()
	w := interruptedRewind(t, rewindTo(1, "Code", "Discard"), "after push", journal.RewindSaved)
	w.Write("a.txt", "by hand\n")
	w.Prepare(3, &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "on", OnDrift: "Preserve"})
	expect(t, "a.txt", w.Read("a.txt"), "a\n")
	var from int64
	for _, d := range state(t, w).Done {
		from = max(from, d.From)
	}
	expect(t, "a.txt before the rewind", stored(t, w, from, "a.txt"), "by hand")
}

// TestAnInterruptedRewindKeepsWhatIsInNoFile: such as a branch that somebody made since the kill.
func TestAnInterruptedRewindKeepsWhatIsInNoFile(t *testing.T) {
	t.Parallel()
	for _, stage := range stagesBefore {
		t.Run(stage.name, func(t *testing.T) {
			t.Parallel()
			op := rewindTo(1, "Code", "Discard")
			w := interruptedRewind(t, op, stage.when, stage.stage)
			gitIn(t, w, "switch", "--quiet", "-c", "by-hand")
			r := w.Prepare(3, op)
			expect(t, "the branch", gitIn(t, w, "branch", "--list", "by-hand"), "")
			w.Prepare(4, rewindTo(r.FromCheckpoint, "Code", "Discard"))
			expect(t, "the branch after the way back", gitIn(t, w, "symbolic-ref", "--short", "HEAD"), "by-hand")
		})
	}
}

// TestDriftAfterHalfARewind: the conversation had moved when the volume was lost, and the next
// prepare was killed, too. The rewind cannot end there, and waits for somebody to say what becomes
// of what was changed then.
func TestDriftAfterHalfARewind(t *testing.T) {
	t.Parallel()
	w := three(t)
	op := rewindTo(1, "Both", "Discard")
	if _, done := prepareCrashing(t, w, 2, op, &crashing{when: "after move " + daemonapi.OperationKey(op.Kind, op.ID)}); done {
		t.Fatal("it was not killed")
	}
	w.LoseVolume()
	c, restores := &crashing{}, 0
	c.each = func() {
		if c.log[len(c.log)-1] == "before restore" {
			if restores++; restores == 2 {
				panic(crash{})
			}
		}
	}
	if _, done := prepareCrashing(t, w, 3, op, c); done {
		t.Fatal("it was not killed again")
	}
	editJournal(t, w, func(s *journal.State) { s.Rewind.Stage = journal.RewindSaved })
	w.Write("a.txt", "by hand\n")
	for n := int64(4); n <= 5; n++ {
		expect(t, "reason", prepare.Run(t.Context(), w.PrepareConfig(n, op)).Reason, "DriftDetected")
	}
	w.Prepare(6, &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "on", OnDrift: "Preserve"})
	expect(t, "a.txt", w.Read("a.txt"), "a\n")
	expect(t, "conversation", w.Lines()[:3], callsOfThree[:3])
	expect(t, "the journal's rewind", state(t, w).Rewind, nil)
	var kept string
	for _, n := range known(w) {
		if checkpointRecord(w, n).GetTrigger() == "Drift" {
			kept = stored(t, w, n, "a.txt")
		}
	}
	expect(t, "a.txt kept", kept, "by hand")
}

// interruptedCheckout returns a task whose second attempt was killed during a checkout, its
// checkout, and the branch that HEAD was on.
func interruptedCheckout(t *testing.T, when string) (w *daemontest.World, c *daemonapi.Checkout, main string) {
	t.Helper()
	w = three(t)
	main = agentGit(t, w, "symbolic-ref", "HEAD")
	c = checkoutOf("c", branchFrom(4, "one"))
	if _, killed := (&crashing{}).kill(t, withBranches(w, 2, nil, c, c.Branch), when); !killed {
		t.Fatal("it was not killed")
	}
	return w, c, main
}

// TestAnInterruptedCheckoutLeavesDriftAlone: HEAD returns to where it was, files stay as somebody
// made them, and whoever knows what to do about them says so.
func TestAnInterruptedCheckoutLeavesDriftAlone(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before checkpoint", "after push", "before checkout", "after checkout"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			w, c, main := interruptedCheckout(t, when)
			w.Write("a.txt", "by hand\n")
			r := prepare.Run(t.Context(), withBranches(w, 3, nil, c, c.Branch))
			expect(t, "reason", r.Reason, "DriftDetected")
			expect(t, "a.txt", w.Read("a.txt"), "by hand\n")
			expect(t, "HEAD", agentGit(t, w, "symbolic-ref", "HEAD"), main)
			expect(t, "the journal's checkout", state(t, w).Checkout, nil)
			kept := &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "keep", OnDrift: "Preserve"}
			r = prepare.Run(t.Context(), withBranches(w.Copy(t), 4, kept, c, c.Branch))
			expect(t, "reason of the checkout of other files", r.Checkout.Reason, "WorktreeDiffers")

			over := &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "over", OnDrift: "Override"}
			r = prepare.Run(t.Context(), withBranches(w, 4, over, c, c.Branch))
			expect(t, "reason without drift", r.Reason+r.Checkout.Reason, "Prepared")
			expect(t, "a.txt without drift", w.Read("a.txt"), "changed by 2\n")
			onBranch(t, "without drift", w, "one", r.Branches[0].Commit)
		})
	}
}

// TestAnInterruptedCheckoutLeavesHeadToWhoMovedIt: neither it nor its end brings HEAD elsewhere
// without a checkpoint that has where it was.
func TestAnInterruptedCheckoutLeavesHeadToWhoMovedIt(t *testing.T) {
	t.Parallel()
	w, c, _ := interruptedCheckout(t, "before checkout")
	gitIn(t, w, "switch", "--quiet", "-c", "by-hand")
	r := prepareBranches(t, withBranches(w, 3, nil, c, c.Branch), present)
	onBranch(t, "after the checkout", w, "one", r.Branches[0].Commit)
	w.Prepare(4, rewindTo(r.Checkout.FromCheckpoint, "Code", "Discard"))
	expect(t, "HEAD after the way back", agentGit(t, w, "symbolic-ref", "--short", "HEAD"), "by-hand")
}

// TestACheckoutThatIsGivenUpTouchesOnlyHeadAndIndex: somebody has made a branch meanwhile.
func TestACheckoutThatIsGivenUpTouchesOnlyHeadAndIndex(t *testing.T) {
	t.Parallel()
	w, c, main := interruptedCheckout(t, "before checkout")
	if _, killed := (&crashing{}).kill(t, withBranches(w, 3, nil, c, c.Branch), "after checkout"); !killed {
		t.Fatal("it was not killed again")
	}
	gitIn(t, w, "branch", "by-hand")
	r := prepareBranches(t, withBranches(w, 4, nil, c, c.Branch), present)
	if !strings.Contains(r.Checkout.Message, "did not come to its end in 2 starts") {
		t.Errorf("the message is %q", r.Checkout.Message)
	}
	expect(t, "HEAD", agentGit(t, w, "symbolic-ref", "HEAD"), main)
	expect(t, "the other branch", gitIn(t, w, "branch", "--list", "by-hand"), "by-hand")
}

// kill runs prepare until the step with a name.
func (c *crashing) kill(t *testing.T, cfg prepare.Config, when string) (r daemonapi.PrepareResult, killed bool) {
	t.Helper()
	c.when = when
	return c.run(t.Context(), cfg, c)
}
