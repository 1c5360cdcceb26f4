package record

import (
	"slices"

	"github.com/clew-dev/clew/internal/conversation"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Progress is what was done since the last checkpoint: calls answered, records made.
func (r *Recorder) Progress() (answers, records int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answers, r.records
}

// Unchanged begins counting calls anew: there was nothing to take a checkpoint of.
func (r *Recorder) Unchanged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = 0
}

// Checkpointed begins counting anew.
func (r *Recorder) Checkpointed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers, r.records = 0, 0
}

// Answered is the call whose result was recorded last, and how many calls of
// this process and the spool it began with were answered.
func (r *Recorder) Answered() (call string, results int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.results
}

// count keeps track of calls as their records get to disk.
func (r *Recorder) count(rec *daemonv1.Record) {
	if rec.GetPiece() != nil {
		return // its message counts
	}
	r.records++
	if call := rec.GetMessage().GetToolCall(); call != nil {
		if len(r.open) == conversation.MaxOpenCalls {
			r.open = slices.Delete(r.open, 0, 1)
		}
		r.open = append(r.open, call.GetId())
	}
	if result := rec.GetMessage().GetToolResult(); result != nil {
		r.last = result.GetCallId()
		if i := slices.Index(r.open, result.GetCallId()); i >= 0 {
			r.open = slices.Delete(r.open, i, i+1)
			r.answers++
			r.results++
		}
	}
}

// Replay counts what an earlier process put into the spool.
func (r *Recorder) Replay() error {
	after := r.spool.First() - 1
	for {
		records, err := r.spool.Read(after, maxBatch, 1<<20)
		if err != nil || len(records) == 0 {
			return err
		}
		for _, rec := range records {
			after = rec.GetSequence()
			if rec.GetCheckpoint() != nil && !rec.GetCheckpoint().GetDurable() {
				r.answers, r.records = 0, 0
			} else {
				r.count(rec)
			}
		}
	}
}
