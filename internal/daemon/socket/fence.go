package socket

import (
	"context"
	"io"
	"time"

	"github.com/clew-dev/clew/internal/daemon/wire"
)

// endAgent orders a shim that connects after Fence to end its agent, and returns when the
// connection is closed.
func (s *Server) endAgent(c *connection, r io.Reader) error {
	s.addStopping(1)
	defer s.addStopping(-1)
	_ = c.SetReadDeadline(time.Time{})
	if err := c.send(wire.TypeStop, nil); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, r)
	return err
}

func (s *Server) addStopping(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping += n
	s.changed.Announce()
}

// UntilGone waits until no shim is connected and none reconnects within reconnectWait. A
// shim closes its connection for good only when it has ended every process of its agent.
// UntilGone returns early when ctx ends: then the pod ends, and its agent's container has
// ended before.
func (s *Server) UntilGone(ctx context.Context) {
	for s.Until(ctx, func(st Status) bool { return !st.Connected }) == nil {
		back, cancel := context.WithTimeout(ctx, reconnectWait)
		err := s.Until(back, func(st Status) bool { return st.Connected })
		cancel()
		if err != nil {
			return
		}
	}
}
