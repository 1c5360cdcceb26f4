package sidecar

import (
	"slices"

	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// store puts records into the spool. What they say was done has to be on disk
// before them: the agent syncs nothing, and a power cut would leave a history
// of work that the worktree no longer has.
func (r *recorder) store(mark *spool.Mark, records []*daemonv1.Record) error {
	if slices.ContainsFunc(records, saysDone) {
		if err := r.sync(); err != nil {
			return err
		}
	}
	return r.spool.Append(mark, records...)
}

// saysDone reports a record that may speak of work done: any message but the
// call that announces it.
func saysDone(rec *daemonv1.Record) bool {
	return rec.GetMessage() != nil && rec.GetMessage().GetToolCall() == nil
}
