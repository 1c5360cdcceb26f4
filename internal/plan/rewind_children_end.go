package plan

import (
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// backTo returns the number of the attempt whose end counts once the rewind in progress is complete: the task has
// followed its parent back to where that attempt had ended it, or it ended the task after it had carried the rewind
// out, which a later one only reports; 0 if none does.
func (d *decision) backTo() int64 {
	op, p := d.s.Rewind, d.s.Parent
	if end := settledBy(d.s.Attempts, 0); op != nil && op.MovedIn != 0 && end != nil && isEnd(end) && end.attempt == op.MovedIn {
		return op.MovedIn
	}
	if op == nil || op.Scope != v1alpha1.RewindBoth || p == nil || p.Rewind == nil || p.Rewind.ID != op.ID {
		return 0
	}
	former := slices.DeleteFunc(slices.Clone(d.s.Attempts), func(a v1alpha1.Attempt) bool { return a.Number > p.Rewind.Attempt })
	if s := settledBy(former, 0); s == nil || !isEnd(s) {
		return 0
	}
	return p.Rewind.Attempt
}
