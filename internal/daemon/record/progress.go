package record

import (
	"slices"

	"github.com/clew-dev/clew/internal/conversation"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Progress returns how many calls were answered and how many records were written since
// the last checkpoint.
func (r *Recorder) Progress() (answers, records int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answers, r.records
}

// Unchanged resets the count of answered calls, because nothing has changed that a
// checkpoint would hold.
func (r *Recorder) Unchanged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = 0
}

// Checkpointed resets the counts of Progress.
func (r *Recorder) Checkpointed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers, r.records = 0, 0
}

// Answered returns the most recently completed call, and how many calls were
// answered in the records of this process and of the spool that it started with.
func (r *Recorder) Answered() (call string, results int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.results
}

// Calls returns how many calls were made in the records of this process and of the spool that it started
// with, how many have no result yet, and whether the newest message is a result.
func (r *Recorder) Calls() (made, open int, settled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made, len(r.open), r.settled
}

// NextAnswer returns a channel that is closed when the next call of a tool that is open has its result.
func (r *Recorder) NextAnswer() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answered.Next()
}

// count updates the counts for a record that was written to disk.
func (r *Recorder) count(rec *daemonv1.Record) {
	if rec.GetPiece() != nil {
		return // the message that it belongs to is counted
	}
	r.records++
	r.delivered.note(rec)
	if m := rec.GetMessage(); m != nil {
		r.settled = m.GetToolResult() != nil
	}
	if call := rec.GetMessage().GetToolCall(); call != nil {
		if len(r.open) == conversation.MaxOpenCalls {
			r.open = slices.Delete(r.open, 0, 1)
		}
		r.open = append(r.open, call.GetId())
		r.made++
	}
	if result := rec.GetMessage().GetToolResult(); result != nil {
		r.last = result.GetCallId()
		if i := slices.Index(r.open, result.GetCallId()); i >= 0 {
			r.open = slices.Delete(r.open, i, i+1)
			r.answers++
			r.results++
			r.answered.Announce()
		}
	}
}

// Replay counts the records that an earlier process left in the spool.
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
