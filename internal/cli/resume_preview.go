package cli

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// preview prints what the rewind will do with which a resume from a checkpoint begins. It is an
// error if that would be refused.
func (o *resume) preview(ctx context.Context, s *session, task *v1alpha1.Task, id string, from *v1alpha1.Checkpoint) error {
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
	rows = append(rows, []string{"  the agent", "continues from there"})
	fmt.Fprintln(w, style.bold("Resume of task "+task.Name+" from a checkpoint"))
	if err := table(w, nil, append(rows, effect.changes(style)...)); err != nil {
		return err
	}
	return effect.printFiles(w, style)
}
