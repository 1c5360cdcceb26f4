package family

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/toolcall"
)

// maxListed is how many tasks are listed.
const maxListed = 100

// list lists the tasks of a supervisor, those that work first.
func (f *Family) list(ctx context.Context, supervisor history.Task, in toolcall.ListInput) (reply, error) {
	of, _, err := f.of(supervisor)
	if err != nil {
		return reply{}, err
	}
	chosen := sorted(of.all)
	if in.Phase != "" {
		chosen = slices.DeleteFunc(chosen, func(t *v1alpha1.Task) bool { return phaseOf(t) != in.Phase })
	}
	if len(chosen) == 0 {
		return reply{text: of.none(in.Phase), data: map[string]any{"tasks": []item{}, "more": 0}}, nil
	}
	shown := chosen[:min(len(chosen), maxListed)]
	items, err := f.items(ctx, supervisor.Namespace, of, shown)
	if err != nil {
		return reply{}, err
	}
	text := fmt.Sprintf("You have %s: %s.", counted(int64(len(of.all)), "task"), of.counts())
	if in.Phase != "" {
		text += fmt.Sprintf(" Of the phase %s:", in.Phase)
	}
	var b strings.Builder
	b.WriteString(text)
	for _, i := range items {
		b.WriteString("\n" + i.line() + i.details())
	}
	more := len(chosen) - len(shown)
	if more > 0 {
		fmt.Fprintf(&b, "\nand %d more, which are not listed: name a phase to see only its tasks.", more)
	}
	return reply{text: b.String(), data: map[string]any{"tasks": items, "more": more}}, nil
}

// items describes tasks, with what is recorded of their newest checkpoints.
func (f *Family) items(ctx context.Context, namespace string, of tasks, some []*v1alpha1.Task) ([]item, error) {
	uids := make([]string, 0, len(some))
	for _, t := range some {
		uids = append(uids, string(t.UID))
	}
	sizes, err := f.store.LatestCheckpoints(ctx, namespace, uids)
	if err != nil {
		return nil, err
	}
	byUID := map[string]history.CheckpointSize{}
	for _, s := range sizes {
		byUID[s.TaskUID] = s
	}
	items := make([]item, 0, len(some))
	for _, t := range some {
		items = append(items, of.itemOf(t, byUID[string(t.UID)]))
	}
	return items, nil
}

// none says that there is no task, or none of a phase.
func (of tasks) none(phase string) string {
	if len(of.all) == 0 {
		return "You have no tasks yet. task_create makes one."
	}
	var phases []string
	for _, t := range of.all {
		if p := phaseOf(t); p != "" && !slices.Contains(phases, p) && len(phases) < maxNamed {
			phases = append(phases, p)
		}
	}
	text := fmt.Sprintf("None of your %s was made in the phase %q.", counted(int64(len(of.all)), "task"), clip.Marked(phase, 100))
	if len(phases) > 0 {
		text += " Theirs are " + strings.Join(phases, ", ") + "."
	}
	return text
}

// phaseOf returns the phase of its contract in which a task was made.
func phaseOf(t *v1alpha1.Task) string {
	if c := t.Status.Contract; c != nil {
		return c.Phase
	}
	return ""
}
