package prepare_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// expectFenced expects that prepare failed since it saw a newer attempt.
func expectFenced(t *testing.T, r daemonapi.PrepareResult, newest int64) {
	t.Helper()
	want := daemonapi.PrepareResult{Reason: "Fenced", NewestAttempt: newest, Message: r.Message}
	if d := cmp.Diff(want, r); d != "" {
		t.Fatalf("result (-want +got):\n%s", d)
	}
}

// storesGoBack makes the history store know no attempt after the given one. The Kubernetes
// API is restored from an older copy, too, so the next pod has an attempt number that was
// used before.
func storesGoBack(w *daemontest.World, attempt int64) {
	w.Server.RollBack(w.UID, 3)
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { k.Attempt = attempt })
}

// TestAVolumeSaysWhichAttemptItHasSeen: the manager and the history store were restored
// from older copies, and do not know.
func TestAVolumeSaysWhichAttemptItHasSeen(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Prepare(7, nil)
	storesGoBack(w, 1)
	r := prepare.Run(t.Context(), w.PrepareConfig(2, nil))
	expectFenced(t, r, 7)
	if r := w.Prepare(8, nil); r.NewestAttempt != 0 {
		t.Errorf("the newest attempt is %v, want 0: %+v", r.NewestAttempt, r)
	}
	expect(t, "conversation", w.Lines(), callsOfThree)
}

// TestTheGitstoreSaysWhichAttemptItHasSeen: the volume is new, and no agent may be started
// that would be ended at its first checkpoint.
func TestTheGitstoreSaysWhichAttemptItHasSeen(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Git.Fence(7)
	storesGoBack(w, 1)
	w.LoseVolume()
	r := prepare.Run(t.Context(), w.PrepareConfig(2, nil))
	expectFenced(t, r, 7)
	w.Prepare(8, nil)
}

// TestTheGitstoreIsAskedThoughTheVolumeIsNotNew: when the gitstore ended the previous
// attempt, the volume was too full to journal the number. No agent may be started only to
// be ended.
func TestTheGitstoreIsAskedThoughTheVolumeIsNotNew(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Git.Fence(7)
	r := prepare.Run(t.Context(), w.PrepareConfig(2, nil))
	expectFenced(t, r, 7)
	w.Prepare(7, nil)
}

// TestTheGitstoreIsAskedBeforeTheFirstAttempt: only the gitstore still knows the task. The
// volume is new, and the history store and the manager know of no attempt.
func TestTheGitstoreIsAskedBeforeTheFirstAttempt(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Git.Fence(7)
	w.Server.Forget(w.UID)
	w.LoseVolume()
	r := prepare.Run(t.Context(), w.PrepareConfig(1, nil))
	expectFenced(t, r, 7)
}

// TestNoAgentWaitsForAGitstoreThatIsAway: the fence is not checked if the gitstore is down.
func TestNoAgentWaitsForAGitstoreThatIsAway(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Git.SetDown(true)
	w.Prepare(2, nil)
}

// TestAFullVolumeStartsNoAgent: an attempt that cannot be journalled fails with advice.
func TestAFullVolumeStartsNoAgent(t *testing.T) {
	t.Parallel()
	w := three(t)
	if err := os.Symlink("/dev/full", filepath.Join(w.Paths().State, "journal.json.new")); err != nil {
		t.Fatal(err)
	}
	r := prepare.Run(t.Context(), w.PrepareConfig(2, nil))
	expect(t, "result", daemonapi.PrepareResult{Reason: r.Reason, Permanent: r.Permanent}, daemonapi.PrepareResult{Reason: "VolumeFull", Permanent: true})
	if strings.Count(r.Message, "enlarge") != 1 {
		t.Errorf("the message %q does not say once to enlarge the volume", r.Message)
	}
}
