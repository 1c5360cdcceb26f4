package cli

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// preview prints what the rewind will do with which a resume from a checkpoint begins. It is an
// error if that would be refused.
func (o *resume) preview(ctx context.Context, s *session, task *v1alpha1.Task, id string, from *v1alpha1.Checkpoint, phase string) error {
	branch := daemonapi.ResumeBranch(id)
	params := url.Values{"id": {"resume-" + id}, "branch": {branch}, "limit": {strconv.Itoa(shownFiles)},
		"preserve": {string(v1alpha1.PreserveBranch)}, "scope": {string(v1alpha1.RewindBoth)}}
	if from.Name == "" {
		params.Set("checkpointNumber", strconv.FormatInt(from.Status.Number, 10))
	} else {
		params.Set("checkpointRef", from.Name)
	}
	setOnDrift(params, o.onDrift)
	effect, err := s.effectOf(ctx, task, params)
	if err != nil {
		return err
	}
	if !o.dryRun.changes() && !prints(o.print) {
		branch = daemonapi.ResumeBranch("ID") // the resume itself will have another id
	}
	w := o.previewOf(&o.dryRun, o.print)
	style := styleFor(w)
	rows := [][]string{
		{"  to", fmt.Sprintf("checkpoint %d", from.Status.Number)},
		{"  rewinds", rewinds(v1alpha1.RewindBoth, nil)},
	}
	onDrift, state := v1alpha1.OnDrift(o.onDrift.value), "the current state"
	if onDrift == v1alpha1.OnDriftOverride {
		state += ", without what is discarded,"
	}
	rows = append(rows, effect.movedBack(from)...)
	rows = append(rows, effect.conversation()...)
	rows = append(rows, driftRow("resume", task, onDrift)...)
	rows = append(rows,
		[]string{"  preserves", state + " as a checkpoint, and as branch " + branch + " in the agent's repository"})
	rows = append(rows, branchesGo(v1alpha1.RewindBoth, nil)...)
	rows = append(rows, phaseRows(task, phase)...)
	agent := "continues from there"
	if active(task) {
		agent = stoppedFirst(task)
	}
	rows = append(rows, []string{"  the agent", agent})
	rows = append(rows, effect.stopped()...)
	title := " from a checkpoint"
	if phase != "" {
		title = " from the start of phase " + phase
	}
	fmt.Fprintln(w, style.bold("Resume of task "+task.Name+title))
	if err := table(w, nil, append(rows, effect.changes(style)...)); err != nil {
		return err
	}
	return effect.printFiles(w, style)
}

// previewPhase shows what a resume does that begins a phase again.
func (o *resume) previewPhase(ctx context.Context, s *session, task *v1alpha1.Task, id string) error {
	start, err := o.phaseStart(task)
	if err != nil {
		return err
	}
	list, err := s.checkpoints(ctx, task.Name)
	if err != nil {
		return err
	}
	from, err := s.anyCheckpoint(ctx, list, task, strconv.FormatInt(start.Start(), 10))
	if err != nil {
		return err
	}
	return o.preview(ctx, s, task, id, from, start.Phase)
}

// phaseStart returns where the phase began that is to begin again.
func (o *resume) phaseStart(task *v1alpha1.Task) (v1alpha1.EnteredPhase, error) {
	contract := task.Status.Contract
	if task.Spec.Role != v1alpha1.RoleSupervisor || contract == nil {
		return v1alpha1.EnteredPhase{}, fmt.Errorf("task %s leads no contract, so no phase can begin again; leave out --mode RestartPhase", task.Name)
	}
	switch i := contract.Find(o.phase); {
	case i >= 0:
		return contract.Entered[i], nil
	case o.phase == "" || o.phase == contract.Phase:
		return v1alpha1.EnteredPhase{}, fmt.Errorf("the contract %s entered the phase %s before Clew noted where phases begin; use --from-checkpoint with one of that time", contract.Name, contract.Phase)
	}
	return v1alpha1.EnteredPhase{}, fmt.Errorf("Clew has not noted that the contract %s was in the phase %s; it is in %s, and --phase names one that it has been in", contract.Name, o.phase, contract.Phase)
}

// phaseRows say what begins again, and what becomes of the children that have not finished.
func phaseRows(task *v1alpha1.Task, phase string) [][]string {
	if phase == "" {
		return nil
	}
	rows := [][]string{{"  begins again", "phase " + phase + " of the contract " + task.Status.Contract.Name}}
	if c := task.Status.Children; c != nil && len(c.Unfinished) > 0 {
		n := int(c.Total - c.Completed - c.Failed)
		text := fmt.Sprintf("%d unfinished children, each until it is resumed: %s", n, some(c.Unfinished, n))
		if active(task) {
			text += "; they go on until the supervisor is back there"
		}
		rows = append(rows, []string{"  stops", text})
	}
	return rows
}

// some lists names, of n in all.
func some(names []string, n int) string {
	text := strings.Join(names, ", ")
	if more := n - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
