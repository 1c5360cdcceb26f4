package history

import "errors"

// ErrNoAnswer is returned if a task's daemon does not answer.
var ErrNoAnswer = errors.New("the task's daemon does not answer")

// LiveProblem is a daemon's answer that it cannot push the files as they are, or not yet:
// RetryAfterSeconds is then when it may be asked again, and 0 otherwise.
type LiveProblem struct {
	Problem           string
	RetryAfterSeconds int32
}

func (e *LiveProblem) Error() string { return e.Problem }

// LiveMessage passes between servers, so that any of them can ask any task's daemon for the
// files as they are. It is not stored: one that is lost is asked for again.
type LiveMessage struct {
	TaskUID string `json:"task"`
	// ID is that of the request.
	ID string `json:"id"`
	// Answered is set in the answer to that request and to all that were sent before, with either the commit that was pushed, or the problem,
	// for people.
	Answered bool   `json:"answered,omitempty"`
	Commit   string `json:"commit,omitempty"`
	Problem  string `json:"problem,omitempty"`
	// RetryAfterSeconds is that of LiveProblem.
	RetryAfterSeconds int32 `json:"retryAfterSeconds,omitempty"`
}
