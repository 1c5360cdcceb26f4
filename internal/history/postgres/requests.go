package postgres

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// maxRequests bounds the requests of an attempt that are kept: a daemon has fewer that wait.
const maxRequests = 32

// maxDeadline is longer than any rule lets a call wait.
const maxDeadline = 15 * 24 * time.Hour

// updateRequests changes the requests that wait, as records of the attempt that sends them say. What an
// older attempt has left in its spool waits no longer.
func (b *batch) updateRequests(row *sqlc.Task, attempt int64) error {
	if len(b.requests) == 0 {
		return nil
	}
	waiting, err := requestsOf(row.Requests)
	if err != nil {
		return err
	}
	waiting = slices.DeleteFunc(waiting, func(q history.ToolRequest) bool { return q.Attempt != attempt })
	for _, r := range b.requests {
		if r.Attempt != attempt {
			continue
		}
		id := r.RequestEnd
		if r.Request != nil {
			id = r.Request.ID
		}
		at := slices.IndexFunc(waiting, func(q history.ToolRequest) bool { return q.ID == id })
		switch {
		case r.Request == nil && at >= 0:
			waiting = slices.Delete(waiting, at, at+1)
		case r.Request != nil && at < 0 && len(waiting) < maxRequests:
			q := *r.Request
			q.Attempt, q.Since, q.Deadline = attempt, plausibleTime(q.Since), plausibleDeadline(q.Deadline)
			waiting = append(waiting, q)
		}
	}
	row.Requests = nil
	if len(waiting) == 0 {
		return nil
	}
	if row.Requests, err = json.Marshal(waiting); err != nil {
		return fmt.Errorf("encode the requests that wait: %w", err)
	}
	return nil
}

// plausibleDeadline returns a deadline that can be encoded: the one that was given, or now, if no rule
// can have set it.
func plausibleDeadline(t time.Time) time.Time {
	if now := time.Now(); t.Unix() <= 0 || t.After(now.Add(maxDeadline)) {
		return now
	}
	return t
}

// requestsOf decodes the column requests.
func requestsOf(text []byte) (waiting []history.ToolRequest, err error) {
	if len(text) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(text, &waiting); err != nil {
		return nil, fmt.Errorf("read the requests that wait: %w", err)
	}
	return waiting, nil
}
