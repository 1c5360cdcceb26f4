// Package historyhub delivers the history store's notifications to the
// controllers.
//
// It promises that every subscriber receives every notification while the
// manager leads, and an empty one, meaning "reconcile everything", whenever
// notifications may have been missed.
package historyhub

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/clew-dev/clew/internal/history"
)

// Listener is the part of the history store that the hub needs.
type Listener interface {
	// Listen blocks until ctx ends, reconnects by itself, and calls callback for each
	// notification, with an empty one after each connect and after a backup was restored.
	Listen(ctx context.Context, callback func(history.Notification)) error
}

// Hub delivers one stream of notifications to many subscribers. It is a runnable of the
// manager that runs only while the manager leads.
type Hub struct {
	listener Listener

	mu          sync.Mutex
	subscribers []func(history.Notification)
}

// New returns a hub, which has to be added to the manager.
func New(listener Listener) *Hub { return &Hub{listener: listener} }

// Subscribe registers f to be called for each notification, by one goroutine at a time. f
// must return quickly.
func (h *Hub) Subscribe(f func(history.Notification)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subscribers = append(h.subscribers, f)
}

// Start listens until ctx ends.
func (h *Hub) Start(ctx context.Context) error {
	err := h.listener.Listen(ctx, h.deliver)
	if err != nil && !errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return fmt.Errorf("listen for changes of the history: %w", err)
	}
	return nil
}

// NeedLeaderElection returns true: only the leader listens.
func (h *Hub) NeedLeaderElection() bool { return true }

// deliver calls every subscriber.
func (h *Hub) deliver(n history.Notification) {
	h.mu.Lock()
	subscribers := h.subscribers
	h.mu.Unlock()
	for _, f := range subscribers {
		f(n)
	}
}
