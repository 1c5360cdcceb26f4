package verification

import (
	"maps"
	"slices"
	"time"

	"github.com/clew-dev/clew/internal/history"
)

const (
	// minTurn and maxTurn bound how long a part may take: it is twice as long after each turn in
	// which it was not done, since what it reads may be large.
	minTurn, maxTurn = 30 * time.Second, 4 * time.Minute
	// restOfNamespace is how long a namespace waits for the turns of others, as a multiple of what
	// its own took, and leastRest what is not worth a rest.
	restOfNamespace, leastRest = 9, 10 * time.Second
)

// turns are the shares of the namespaces in what one server verifies. The zero value is ready for
// use.
type turns struct {
	// longer are the turns of the tasks whose last one did not suffice, by UID.
	longer map[string]time.Duration
	// rests are until when namespaces rest, by name.
	rests map[string]time.Time
}

// of returns how long the next part of a task may take.
func (t *turns) of(task history.Task) time.Duration { return max(minTurn, t.longer[task.UID]) }

// took records that a part took some time, and whether it is done.
func (t *turns) took(part history.Verification, taken time.Duration, done bool, now time.Time) {
	task := part.Task
	if t.rests == nil {
		t.longer, t.rests = map[string]time.Duration{}, map[string]time.Time{}
	}
	longer := min(2*t.of(task), maxTurn)
	delete(t.longer, task.UID)
	if !done {
		t.longer[task.UID] = longer
	}
	if rest := restOfNamespace * taken; rest >= leastRest {
		t.rests[part.Turn] = now.Add(rest)
	}
}

// resting returns the namespaces that rest.
func (t *turns) resting(now time.Time) []string {
	maps.DeleteFunc(t.rests, func(_ string, until time.Time) bool { return !now.Before(until) })
	return slices.Sorted(maps.Keys(t.rests))
}
