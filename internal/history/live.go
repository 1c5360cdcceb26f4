package history

import "errors"

// ErrNoAnswer is returned if a task's daemon does not answer.
var ErrNoAnswer = errors.New("the task's daemon does not answer")

// LiveProblem is a daemon's answer that it cannot push the files as they are.
type LiveProblem struct{ Problem string }

func (e *LiveProblem) Error() string { return e.Problem }

// LiveMessage passes between servers, so that any of them can ask any task's daemon for the
// files as they are. It is not stored: one that is lost is asked for again.
type LiveMessage struct {
	TaskUID string `json:"task"`
	// ID is that of the request.
	ID string `json:"id"`
	// Answered is set in the answer, with either the commit that was pushed, or the problem,
	// for people.
	Answered bool   `json:"answered,omitempty"`
	Commit   string `json:"commit,omitempty"`
	Problem  string `json:"problem,omitempty"`
}
