package toolcall

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/internal/history"
)

// calls stands in for the history store. It tells of what is sent to told.
type calls struct {
	Store
	told chan history.ToolCallNotification

	mu sync.Mutex
	// failures is how often the list cannot be read.
	failures int
}

func (c *calls) ListenToolCalls(ctx context.Context, callback func(history.ToolCallNotification)) error {
	for {
		select {
		case n := <-c.told:
			callback(n)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *calls) PendingToolCalls(context.Context, int64, int) ([]history.ToolCall, int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures--; c.failures >= 0 {
		return nil, 0, errors.New("a migration has locked the table")
	}
	return []history.ToolCall{{ID: "before", Task: lead()}}, 1, nil
}

func lead() history.Task { return history.Task{Namespace: "team", Name: "lead", UID: "uid-of-lead"} }

// added passes on what is added to the queue.
type added struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	requests chan reconcile.Request
}

func (a added) Add(r reconcile.Request) { a.requests <- r }

// listening starts a source of calls, of which one waits for something, and returns what it adds.
func listening(t *testing.T, store *calls, waiting reconcile.Request) (next func() reconcile.Request) {
	queue := added{requests: make(chan reconcile.Request)}
	source := &callSource{store: store, waits: func(r reconcile.Request) bool { return r == waiting }, started: make(chan struct{}), queue: queue}
	close(source.started)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- source.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("it ends with %v", err)
		}
	})
	return func() reconcile.Request {
		t.Helper()
		select {
		case r := <-queue.requests:
			return r
		case <-time.After(20 * time.Second):
			t.Fatal("nothing is added")
			return reconcile.Request{}
		}
	}
}

func TestCallsThatMayHaveBeenMissedAreListedUntilThatSucceeds(t *testing.T) {
	store := &calls{told: make(chan history.ToolCallNotification), failures: 2}
	next := listening(t, store, reconcile.Request{})
	store.told <- history.ToolCallNotification{} // once, as with each connection
	if got, want := next(), requestOf("team", "uid-of-lead", "before"); got != want {
		t.Errorf("%v is added, want %v", got, want)
	}
}

// TestACallThatHasEndedIsForgotten: nothing that it waits for may change for long.
func TestACallThatHasEndedIsForgotten(t *testing.T) {
	waiting := requestOf("team", "uid-of-lead", "waits")
	store := &calls{told: make(chan history.ToolCallNotification)}
	next := listening(t, store, waiting)
	store.told <- history.ToolCallNotification{Task: lead(), ID: "unknown", Answered: true}
	go func() { store.told <- history.ToolCallNotification{Task: lead(), ID: "waits", Answered: true} }()
	if got := next(); got != waiting {
		t.Errorf("%v is added, want %v", got, waiting)
	}
}
