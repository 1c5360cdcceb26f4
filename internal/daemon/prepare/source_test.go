package prepare_test

import (
	"slices"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// forkOfThree is a fork that has worked for a while, and its source.
func forkOfThree(t *testing.T) (source, fork *daemontest.World) {
	t.Helper()
	source = three(t)
	fork = source.Fork("fork", daemonapi.Source{TaskUID: source.UID, Checkpoint: 2, Commit: checkpointRecord(source, 2).GetCommit(), IncludeConversation: true, Position: 5})
	fork.Prompt = "Do something else."
	fork.Prepare(1, nil)
	attempt(fork, 1, func(a *daemontest.Shim) { step(fork, a, "f1", "f", "f") })
	return source, fork
}

// ofTheFork is the fork's own part of the conversation, after what it may have inherited.
var ofTheFork = []string{"user Do something else.", "call f1", "result f1"}

// TestForkContinuesThoughTheHistoryHasLostItsSource: the store went back to before both, and
// the source never runs again. The fork's volume has all that it needs.
func TestForkContinuesThoughTheHistoryHasLostItsSource(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	t.Parallel()
	source, w := forkOfThree(t)
	w.Server.Forget(source.UID)
	w.Server.Forget(w.UID)
	// Shorter than the wait for the source, and long enough to open a spool whose lock a
	// process that is just being started still holds.
	w.SourceWait, w.RetryFor = 3*time.Second, 2*time.Second
	tree := w.Tree()
	w.Prepare(2, nil)
	expect(t, "conversation", w.Lines(), append([]string{"system gap of 5"}, ofTheFork...))
	expect(t, "records that are lost", lost(w), int64(5))
	expect(t, "files", w.Tree(), tree)
	attempt(w, 2, func(a *daemontest.Shim) { step(w, a, "f2", "f2", "f") })
	w.Prepare(3, nil)
	expect(t, "conversation", w.Lines(), append([]string{"system gap of 5"}, append(slices.Clone(ofTheFork), "call f2", "result f2")...))
}

// TestRunningForkContinuesThoughTheHistoryHasLostItsSource: its records wait on its volume
// meanwhile, and its end is not held up for ever.
func TestRunningForkContinuesThoughTheHistoryHasLostItsSource(t *testing.T) {
	t.Parallel()
	source, w := forkOfThree(t)
	w.Prepare(2, nil)
	w.SourceWait = time.Second
	attempt(w, 2, func(a *daemontest.Shim) {
		step(w, a, "f2", "f2", "f")
		w.Server.Forget(source.UID)
		w.Server.Forget(w.UID)
		step(w, a, "f3", "f3", "f")
	})
	expect(t, "conversation", w.Lines(), append([]string{"system gap of 5"}, append(slices.Clone(ofTheFork), "call f2", "result f2", "call f3", "result f3")...))
}

// TestAForkWaitsForItsSource: the source's daemon sends the checkpoint again.
func TestAForkWaitsForItsSource(t *testing.T) {
	t.Parallel()
	source, w := forkOfThree(t)
	before := w.Lines()
	w.Server.Forget(source.UID)
	w.Server.Forget(w.UID)
	w.SourceWait, w.RetryFor = time.Hour, 2*time.Second
	done := make(chan daemonapi.PrepareResult)
	cfg := w.PrepareConfig(2, nil)
	go func() { done <- prepare.Run(t.Context(), cfg) }()
	source.Prepare(2, nil)
	expect(t, "reason", (<-done).Reason, "Prepared")
	expect(t, "conversation", w.Lines(), before)
	expect(t, "records that are lost", lost(w), int64(0))
}

// TestAForkDoesNotStartWithoutItsSource: a fork that has nothing yet begins with everything
// from its source, or waits.
func TestAForkDoesNotStartWithoutItsSource(t *testing.T) {
	t.Parallel()
	source := three(t)
	w := source.Fork("fork", daemonapi.Source{TaskUID: source.UID, TaskName: "source", Checkpoint: 2,
		Commit: checkpointRecord(source, 2).GetCommit(), IncludeConversation: true})
	w.SourceWait = time.Nanosecond
	w.Server.Forget(source.UID)
	for range 2 {
		r := prepare.Run(t.Context(), w.PrepareConfig(1, nil))
		if r.Reason != "CheckpointNotFound" || r.Permanent {
			t.Errorf("the reason is %s, permanent %v, want CheckpointNotFound for now: %+v", r.Reason, r.Permanent, r)
		}
		expect(t, "message", r.Message, "the history store does not have, or has lost, checkpoint 2 of task source (UID "+source.UID+
			"), from which this task starts. That task's pod sends it again, within minutes if it is running. "+
			"If that task has stopped, resume it or, once completed, rewind it to its latest checkpoint. "+
			"If that task or its volume is gone, start a new task from another checkpoint")
	}
	source.Prepare(2, nil)
	w.Prepare(1, nil)
	expect(t, "conversation", w.Lines()[:5], callsOfThree[:5])
}
