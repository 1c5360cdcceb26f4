package family

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/toolcall"
)

const (
	// settling is how long a wait looks for tasks that it does not find: one that was just made may not be
	// known yet.
	settling = time.Second
	// lookEvery is how often a wait looks, at most: tasks may change at any rate.
	lookEvery = 250 * time.Millisecond
)

// wait returns once tasks have stopped, all of them or any, or says how they stand when ctx ends.
func (f *Family) wait(ctx context.Context, supervisor history.Task, in toolcall.WaitInput) (reply, error) {
	if len(in.Tasks) > toolcall.MaxNames {
		return reply{}, refuse("The call names %d tasks, and may name %d: leave tasks out to wait for all of yours.", len(in.Tasks), toolcall.MaxNames)
	}
	wanted, err := f.settle(ctx, supervisor, in.Tasks)
	if err != nil {
		return reply{}, err
	}
	for {
		looked := time.Now()
		found, changed, err := f.awaitedOf(supervisor, wanted)
		if err != nil {
			return reply{}, err
		}
		if isOver(found, in.Any) || !awaitChange(ctx, changed, looked) {
			break
		}
	}
	of, _, err := f.of(supervisor)
	if err != nil {
		return reply{}, err
	}
	switch found := of.follow(wanted); {
	case len(wanted) == 0:
		return of.nothingToWaitFor(), nil
	case len(found.unfinished) == 0 || in.Any && len(found.stopped) > 0:
		return found.ended(of), nil
	default:
		return found.unended(of, in), nil
	}
}

// isOver reports whether a wait for tasks is over, all of them or any. A task that is gone is nil.
func isOver(found []*v1alpha1.Task, anyOf bool) bool {
	stopped := 0
	for _, t := range found {
		if t == nil || stateOf(t).stopped() {
			stopped++
		}
	}
	return stopped == len(found) || anyOf && stopped > 0
}

// awaitChange waits until tasks may have changed and it is time to look at them again, and reports whether
// it is before ctx ends.
func awaitChange(ctx context.Context, changed <-chan struct{}, looked time.Time) bool {
	select {
	case <-changed:
	case <-ctx.Done():
		return false
	}
	select {
	case <-time.After(time.Until(looked.Add(lookEvery))):
		return true
	case <-ctx.Done():
		return false
	}
}

// settle returns the tasks that a wait is for, and looks for a moment if there are none, or not all.
func (f *Family) settle(ctx context.Context, supervisor history.Task, names []string) ([]awaited, error) {
	ctx, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	for {
		looked := time.Now()
		of, changed, err := f.of(supervisor)
		if err != nil {
			return nil, err
		}
		wanted, err := of.wanted(names)
		if err == nil && len(wanted) > 0 || !awaitChange(ctx, changed, looked) {
			return wanted, err
		}
	}
}

// awaited is a task that is waited for.
type awaited struct {
	uid  types.UID
	name string
}

// wanted returns the tasks that an agent names, or else all that work or wait.
func (of tasks) wanted(names []string) (all []awaited, err error) {
	for _, name := range names {
		t, err := of.find(name)
		if err != nil {
			return nil, err
		}
		if a := (awaited{t.UID, of.nameOf(t)}); !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	if len(names) > 0 {
		return all, nil
	}
	for _, t := range of.all {
		if !stateOf(t).stopped() {
			all = append(all, awaited{t.UID, of.nameOf(t)})
		}
	}
	return all, nil
}

func (of tasks) nothingToWaitFor() reply {
	text := "You have no tasks to wait for. task_create makes one."
	if len(of.all) > 0 {
		text = fmt.Sprintf("None of your tasks works or waits: of %d, %s. task_list says how each one stands.", len(of.all), of.counts())
	}
	return reply{text: text, data: followed{}.data(false)}
}

// followed is how awaited tasks stand.
type followed struct{ stopped, unfinished []item }

// follow returns how awaited tasks stand.
func (of tasks) follow(wanted []awaited) (found followed) {
	byUID := map[types.UID]*v1alpha1.Task{}
	for _, t := range of.all {
		byUID[t.UID] = t
	}
	for _, a := range wanted {
		i := item{Task: a.name, State: deleted}
		if t := byUID[a.uid]; t != nil {
			i = of.itemOf(t, history.CheckpointSize{})
		}
		if i.State.stopped() {
			found.stopped = append(found.stopped, i)
		} else {
			found.unfinished = append(found.unfinished, i)
		}
	}
	return found
}

// ended is the answer once the wait is over.
func (found followed) ended(of tasks) reply {
	var b strings.Builder
	switch {
	case len(found.unfinished) > 0:
		fmt.Fprintf(&b, "%s stopped, and %d not yet:", have(len(found.stopped)), len(found.unfinished))
	case len(found.stopped) == 1:
		b.WriteString("It has stopped:")
	default:
		fmt.Fprintf(&b, "All %d have stopped:", len(found.stopped))
	}
	lines(&b, found.stopped)
	if len(found.unfinished) > 0 {
		b.WriteString("\nStill at work, or waiting:")
		lines(&b, found.unfinished)
	}
	fmt.Fprintf(&b, "\nOf all your tasks: %s. task_diff shows what one has changed, task_history what was said in it.", of.counts())
	return reply{text: b.String(), data: found.data(false)}
}

// unended is the answer if the wait is not over in time. Which tasks are meant is said in full: of those
// that stop between two calls, the next call would know nothing if it named none.
func (found followed) unended(of tasks, in toolcall.WaitInput) reply {
	var b strings.Builder
	fmt.Fprintf(&b, "%s not stopped yet:", have(len(found.unfinished)))
	lines(&b, found.unfinished)
	if len(found.stopped) > 0 {
		b.WriteString("\nStopped:")
		lines(&b, found.stopped)
	}
	names := []string{}
	for _, i := range slices.Concat(found.stopped, found.unfinished) {
		names = append(names, i.Task)
	}
	again := "Call task_wait again to go on waiting"
	if named, err := json.Marshal(names); err == nil && in.Any && len(names) <= toolcall.MaxNames {
		again += ", with tasks " + string(named) + " and any"
	}
	fmt.Fprintf(&b, "\nOf all your tasks: %s. %s, or go on with your own work meanwhile.", of.counts(), again)
	return reply{text: b.String(), data: found.data(true)}
}

// have begins a sentence about a number of tasks.
func have(n int) string {
	if n == 1 {
		return "1 task has"
	}
	return fmt.Sprintf("%d tasks have", n)
}

// lines writes a line for each of the first items.
func lines(b *strings.Builder, items []item) {
	for _, i := range items[:min(len(items), maxListed)] {
		b.WriteString("\n" + i.line() + i.details())
	}
	if more := len(items) - maxListed; more > 0 {
		fmt.Fprintf(b, "\nand %d more", more)
	}
}

// data is how awaited tasks stand, for programs. waiting says that the wait is not over.
func (found followed) data(waiting bool) any {
	cut := func(items []item) []item { return append([]item{}, items[:min(len(items), maxListed)]...) }
	return map[string]any{
		"waiting": waiting, "stopped": cut(found.stopped), "unfinished": cut(found.unfinished),
		"more": max(len(found.stopped)-maxListed, 0) + max(len(found.unfinished)-maxListed, 0),
	}
}
