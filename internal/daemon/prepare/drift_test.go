package prepare_test

import (
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// What a rewind keeps of files that were changed while the task was not running: everything, as a
// checkpoint and in the branch, or nothing at all. Previews and results say so.
func TestARewindKeepsWhatHasDriftedOrDiscardsItForGood(t *testing.T) {
	t.Parallel()
	for onDrift, kept := range map[v1alpha1.OnDrift]string{v1alpha1.OnDriftPreserve: "edited by hand", v1alpha1.OnDriftOverride: "1"} {
		t.Run(string(onDrift), func(t *testing.T) {
			w := three(t)
			left := latest(w).GetNumber()
			w.Write("one.txt", "edited by hand\n")
			op := rewindTo(1, "Both", "Branch")
			op.Branch, op.OnDrift = "before/it", onDrift
			r := w.Prepare(2, op)
			expect(t, "the files that drifted", r.DriftedFiles, []string{"one.txt"})
			expect(t, "the branch with the state before", gitIn(t, w, "show", "before/it:one.txt"), kept)
			before := left
			if onDrift == v1alpha1.OnDriftPreserve {
				before += 2 // one of the drift, and one from before the rewind
			}
			expect(t, "the checkpoint with the state before", r.FromCheckpoint, before)
		})
	}
}

// A pod that was killed behind its operation has carried it out, whatever the next one finds.
func TestAnOperationThatIsDoneIsReportedWithTheDriftThatIsFoundBehindIt(t *testing.T) {
	t.Parallel()
	for kind, op := range map[string]*daemonapi.Operation{
		daemonapi.OperationRewind: rewindTo(1, "Both", "Branch"),
		daemonapi.OperationResume: {Kind: daemonapi.OperationResume, ID: "on", Prompt: "Mind this."},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := three(t)
			op.OnDrift = v1alpha1.OnDriftPreserve
			w.Prepare(2, op)
			w.Write("one.txt", "edited by hand\n")
			r := prepare.Run(t.Context(), w.PrepareConfig(3, op))
			if r.Reason != v1alpha1.ReasonDriftDetected || !r.Permanent || r.OperationKind != kind || r.Operation != op.ID || r.Failed != nil {
				t.Errorf("the result is %+v", r)
			}
		})
	}
}
