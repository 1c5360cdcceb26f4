package gatewayclient

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// longestWait bounds how long the server lets a task wait for a source whose daemon it
// hears from.
const longestWait = 30 * time.Minute

// AwaitedError is an ErrSourceAwaited that names what is awaited.
type AwaitedError struct {
	// Source names the checkpoint, and Since is when this process first found it missing.
	Source string
	Since  time.Time
	// Patience is how long the checkpoint is awaited if nothing is heard of its daemon.
	Patience time.Duration

	err error
}

// Error implements error. It leaves out the text of err, which adds nothing.
func (e *AwaitedError) Error() string {
	return fmt.Sprintf("the history store has lost %s, from which this task was started; it waits for the pod of that task to send the checkpoint again, for %.0f minutes, or %.0f while that pod is running (this pod has waited since %s; the waits of earlier pods count, and at most one minute of the time between two pods); then it starts without the inherited part of the conversation; its files are not affected",
		e.Source, e.Patience.Minutes(), longestWait.Minutes(), e.Since.UTC().Format("15:04 UTC"))
}

// Is reports that it is an ErrSourceAwaited.
func (e *AwaitedError) Is(target error) bool { return target == ErrSourceAwaited }

// Unwrap returns the server's error.
func (e *AwaitedError) Unwrap() error { return e.err }

// sourceWait is the wait of a task that has run before for the checkpoint that it was
// started from. The server records who waits and decides when that was long enough, which
// survives this process and other errors in between. Older servers leave it to the clock
// here.
type sourceWait struct {
	patience time.Duration
	// source names the checkpoint that is awaited.
	source string

	mu    sync.Mutex
	begun bool
	since time.Time // when the source was first missing; zero if it is not
	// waited is how long the source has been missing. Time next to another error does not
	// count: the source's daemon has not reconnected yet either.
	waited time.Duration
	last   time.Time // when the source was last missing; zero after another error
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

// over reports whether the wait was long enough, for servers that do not know.
func (w *sourceWait) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begun && !w.since.IsZero() && w.waited >= w.patience
}

// handle updates the wait with the outcome of a Begin, and returns the error to report.
func (w *sourceWait) handle(now time.Time, err error) error {
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
