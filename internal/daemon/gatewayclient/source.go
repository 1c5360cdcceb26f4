package gatewayclient

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// longestWait is for how long the server has a task wait whose source it hears of.
const longestWait = 30 * time.Minute

// AwaitedError is ErrSourceAwaited where it is known what is waited for.
type AwaitedError struct {
	// Source names the checkpoint, and Since is when this process first missed it.
	Source string
	Since  time.Time
	// Patience is how long it is waited for if nothing is heard of its daemon.
	Patience time.Duration

	err error
}

// Error implements error. It leaves out the text of err, which tells no more.
func (e *AwaitedError) Error() string {
	return fmt.Sprintf("the history store has lost %s, from which this task was started; it waits for the pod of that task to send the checkpoint again, for %.0f minutes, or %.0f while that pod is at work (this pod waits since %s; what earlier pods waited counts, and a minute at most of the time between two of them); then it starts without the part of the conversation that it inherited; its files are not affected",
		e.Source, e.Patience.Minutes(), longestWait.Minutes(), e.Since.UTC().Format("15:04 UTC"))
}

// Is says that it is an ErrSourceAwaited.
func (e *AwaitedError) Is(target error) bool { return target == ErrSourceAwaited }

// Unwrap makes it the error that the server gave, too.
func (e *AwaitedError) Unwrap() error { return e.err }

// sourceWait is how a task that has begun waits for the checkpoint that it was
// started from. The server notes who waits, and says when it was for long enough: that
// outlasts this process, and what other answers come in between. Servers of before leave
// it to the clock that is here.
type sourceWait struct {
	patience time.Duration
	// source names the checkpoint.
	source string

	mu    sync.Mutex
	begun bool
	since time.Time // when it was first missing; zero if it is not
	// waited is for how long it was. What lies before and after another error does
	// not count: the source's daemon, too, has yet to come back then.
	waited time.Duration
	last   time.Time // when it was last missing; zero after another error
}

func (w *sourceWait) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = true
}

func (w *sourceWait) hasBegun() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begun
}

// over says that it was waited for long enough, to a server that does not know.
func (w *sourceWait) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begun && !w.since.IsZero() && w.waited >= w.patience
}

// heard takes the answer to a Begin in.
func (w *sourceWait) heard(now time.Time, err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.begun:
		return err
	case err == nil:
		w.since, w.waited, w.last = time.Time{}, 0, time.Time{}
		return nil
	case !errors.Is(err, ErrNotFound):
		w.last = time.Time{}
		return err
	}
	if w.since.IsZero() {
		w.since = now
	}
	if !w.last.IsZero() {
		w.waited += now.Sub(w.last)
	}
	w.last = now
	return &AwaitedError{Source: w.source, Since: w.since, Patience: w.patience, err: err}
}
