package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// leader creates a suspended supervisor whose contract is in its second phase, with two unfinished children.
func (b *bench) leader() *v1alpha1.Task {
	b.Helper()
	lead := builders.Task("lead", builders.InNamespace(b.namespace), builders.Suspended, func(t *v1alpha1.Task) {
		t.Spec.Role, t.Spec.Contract = v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "port"}
	})
	b.try(server.Client.Create(b.ctx, lead))
	setSucceeded(lead, v1alpha1.ReasonSuspended)
	lead.Status.Contract = &v1alpha1.ContractStatus{Name: "port", Phase: v1alpha1.PhaseSpecify, Entered: []v1alpha1.EnteredPhase{
		{Phase: v1alpha1.PhaseResearch}, {Phase: v1alpha1.PhaseSpecify, Checkpoint: 2}}}
	lead.Status.Children = &v1alpha1.ChildrenStatus{Total: 5, Running: 2, Completed: 3, Unfinished: []string{"lead-a", "lead-b"}}
	b.try(server.Client.Status().Update(b.ctx, lead))
	b.checkpoint(lead, 1)
	b.checkpoint(lead, 2)
	return lead
}

func TestAPhaseThatBeginsAgain(t *testing.T) {
	for name, test := range map[string]struct {
		args       []string
		phase      string
		checkpoint string
	}{
		"the current one": {nil, "", "checkpoint 2"},
		"an earlier one":  {[]string{"--phase", "Research"}, "Research", "checkpoint 1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			lead := b.leader()
			b.withHistory(map[string]any{"GET tasks/lead/diff/rewind": effect()})
			_, errOut := b.must(append([]string{"resume", "lead", "--mode", "RestartPhase", "--yes", "--wait=false"}, test.args...)...)
			wantParts(t, "the preview", squeezed(errOut), "from the start of phase ", "to "+test.checkpoint, "of the contract port",
				"stops 2 unfinished children, each until it is resumed: lead-a, lead-b")
			b.get(lead)
			want := v1alpha1.Resume{ID: "cli-abcdefgh", Mode: v1alpha1.ResumeRestartPhase, Phase: test.phase, OnDrift: v1alpha1.OnDriftFail, Placement: v1alpha1.PlacementAny}
			if diff := cmp.Diff(want, *lead.Spec.Resume); diff != "" {
				t.Errorf("spec.resume (-want +got):\n%s", diff)
			}
		})
	}
}

// A supervisor that waits for its children runs.
func TestAPhaseOfASupervisorThatRunsBeginsAgain(t *testing.T) {
	b := newBench(t)
	lead := b.leader()
	builders.Running(lead)
	b.try(server.Client.Update(b.ctx, lead))
	setSucceeded(lead, v1alpha1.ReasonRunning)
	b.try(server.Client.Status().Update(b.ctx, lead))
	b.withHistory(map[string]any{"GET tasks/lead/diff/rewind": effect()})
	_, errOut, err := b.clew("n\n", "resume", "lead", "--mode", "RestartPhase")
	wantError(t, err, "cancelled")
	wantParts(t, "the preview", squeezed(errOut), "the agent is stopped first, then continues from there (the task is Running now)",
		"stops 2 unfinished children, each until it is resumed: lead-a, lead-b; they go on until the supervisor is back there")
	for _, args := range [][]string{nil, {"--clean"}, {"--from-checkpoint", "1"}} {
		_, _, err = b.clew("", append([]string{"resume", "lead"}, args...)...)
		wantError(t, err, "task lead is already active (Running), so there is nothing to resume; to suspend it first, run `kubectl clew suspend lead -n "+b.namespace+"`")
	}

	_, errOut = b.must("resume", "lead", "--mode", "RestartPhase", "--yes", "--wait=false")
	wantParts(t, "the preview", squeezed(errOut), "is stopped first")
	b.get(lead)
	if r := lead.Spec.Resume; r == nil || r.Mode != v1alpha1.ResumeRestartPhase || lead.Spec.OperatingMode != v1alpha1.OperatingModeRunning {
		t.Errorf("the spec has %+v, %s", r, lead.Spec.OperatingMode)
	}

	lead.Status.Resume = &v1alpha1.OperationStatus{ID: "cli-abcdefgh", State: v1alpha1.OperationInProgress}
	b.try(server.Client.Status().Update(b.ctx, lead))
	_, _, err = b.clew("", "resume", "lead", "--mode", "RestartPhase", "--yes")
	wantError(t, err, "resume cli-abcdefgh of task lead is in progress; wait until")
}

func TestWhichPhasesCannotBeginAgain(t *testing.T) {
	b := newBench(t)
	lead := b.leader()
	b.task("worker", v1alpha1.ReasonSuspended)
	for _, test := range []struct {
		args []string
		err  string
	}{
		{[]string{"worker", "--mode", "RestartPhase"}, "task worker leads no contract"},
		{[]string{"lead", "--mode", "RestartPhase", "--phase", "Review"}, "was in the phase Review; it is in Specify"},
		{[]string{"lead", "--phase", "Research"}, "--phase goes with --mode RestartPhase only"},
		{[]string{"lead", "--mode", "RestartPhase"}, "a confirmation is needed"},
	} {
		_, _, err := b.clew("", append([]string{"resume"}, test.args...)...)
		wantError(t, err, test.err)
	}

	b.get(lead)
	lead.Status.Contract.Entered = nil // as with a manager of an older version
	b.try(server.Client.Status().Update(b.ctx, lead))
	_, _, err := b.clew("", "resume", "lead", "--mode", "RestartPhase")
	wantError(t, err, "entered the phase Specify before Clew noted where phases begin")
}
