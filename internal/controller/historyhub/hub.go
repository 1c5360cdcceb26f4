// Package historyhub brings what the history store tells to the controllers.
//
// It promises that every subscriber hears of every change that is told while
// the manager leads, and hears an empty notification, meaning "look at
// everything", whenever changes may have been missed.
package historyhub

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/clew-dev/clew/internal/history"
)

// Listener is the history store, as far as the hub needs it. Listen blocks
// until ctx ends, reconnects by itself, and calls back with an empty
// notification after each connect, and after a restore of a backup.
type Listener interface {
	Listen(ctx context.Context, callback func(history.Notification)) error
}

// Hub hands one stream of notifications to many subscribers. It is a runnable
// of the manager that runs only while the manager leads.
type Hub struct {
	listener Listener

	mu          sync.Mutex
	subscribers []func(history.Notification)
}

// New makes a hub; add it to the manager.
func New(listener Listener) *Hub { return &Hub{listener: listener} }

// Subscribe has f called for each notification, by one goroutine at a time. f
// must be quick.
func (h *Hub) Subscribe(f func(history.Notification)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subscribers = append(h.subscribers, f)
}

// Start listens until ctx ends.
func (h *Hub) Start(ctx context.Context) error {
	err := h.listener.Listen(ctx, h.tell)
	if err != nil && !errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return fmt.Errorf("listen for changes of the history: %w", err)
	}
	return nil
}

// NeedLeaderElection says that only the leader listens.
func (h *Hub) NeedLeaderElection() bool { return true }

func (h *Hub) tell(n history.Notification) {
	h.mu.Lock()
	subscribers := h.subscribers
	h.mu.Unlock()
	for _, f := range subscribers {
		f(n)
	}
}
