package gateway

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// sourceWait is how a task that has begun waits for the checkpoint that it was
// started from.
type sourceWait struct {
	patience time.Duration

	mu    sync.Mutex
	begun bool
	since time.Time // when it was first missing; zero if it is not
}

func (w *sourceWait) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = true
}

// over says that it was waited for long enough.
func (w *sourceWait) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begun && !w.since.IsZero() && time.Since(w.since) >= w.patience
}

// heard takes the answer to a Begin in.
func (w *sourceWait) heard(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.begun || !errors.Is(err, ErrNotFound) {
		// After an outage the source's daemon, too, has yet to come back.
		w.since = time.Time{}
		return err
	}
	if w.since.IsZero() {
		w.since = time.Now()
	}
	return fmt.Errorf("%w; after %s the task goes on without the conversation it had there: %w", ErrSourceAwaited, w.patience, err)
}
