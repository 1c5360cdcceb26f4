package plan

import (
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

// RewindDone is what is recorded about a rewind that the history store knows to be complete, and the
// status does not.
type RewindDone struct {
	// Known is false while the history store cannot be asked.
	Known bool
	Found history.Rewind
}

// DoneRewind returns the id of the rewind of o.Task that the history store knows to be complete, and that is new
// or in progress in the status; "" if there is none. History has to be observed before.
func DoneRewind(o Observed) string {
	id := ""
	if s := o.Task.Status.Rewind; s != nil && s.State == v1alpha1.OperationInProgress {
		id = s.ID
	} else if r := NewRewind(o.Task); r != nil {
		id = r.ID
	}
	d := decision{o: o}
	if id == "" || !d.operationRecorded(daemonapi.OperationDoneKey(daemonapi.OperationRewind, id)) {
		return ""
	}
	return id
}

// lacksDone reports whether the status lacks an attempt that has ended and a rewind that was carried out, and
// the history store cannot say now what that has done. Nothing is decided before.
func (d *decision) lacksDone() bool {
	_, end := d.unlistedEnd()
	id := DoneRewind(d.o)
	return end != nil && id != "" && !d.o.RewindDone.Known && (d.rewinding() || !handled(d.s, daemonapi.OperationRewind, id))
}

// doneRewind returns what is recorded of a rewind that the status lacks, and that the history store knows to be
// complete; nil if there is nothing. known is false while the store cannot say so.
func (d *decision) doneRewind(id string) (done *history.Rewound, known bool) {
	if DoneRewind(d.o) != id {
		return nil, true
	}
	return d.o.RewindDone.Found.Rewound, d.o.RewindDone.Known
}

// knowsDone reports whether it is known whether a rewind is done that the status lacks.
func (d *decision) knowsDone(id string) bool {
	_, known := d.doneRewind(id)
	return known
}

// asDone sets what a rewind has done, as it is recorded.
func asDone(op *v1alpha1.OperationStatus, done *history.Rewound) {
	op.Scope, op.Paths, op.FromCheckpoint, op.ToCheckpoint = v1alpha1.RewindScope(done.Scope), done.Paths, done.From, done.To
}

// wentBeforeAll reports whether an operation is the rewind that the history store knows to have gone to before
// the first checkpoint.
func (d *decision) wentBeforeAll(op *v1alpha1.OperationStatus) bool {
	done := d.o.RewindDone.Found
	return op == d.s.Rewind && done.ID == op.ID && done.Rewound != nil && done.Rewound.To == 0
}
