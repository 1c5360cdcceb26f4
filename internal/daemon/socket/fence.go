package socket

import (
	"context"
	"io"
	"time"

	"github.com/clew-dev/clew/internal/daemon/wire"
)

// end tells a shim that connects after the fence to end its agent, and returns
// when it has gone.
func (s *Server) end(c *connection, r io.Reader) error {
	s.count(1)
	defer s.count(-1)
	_ = c.SetReadDeadline(time.Time{})
	if err := c.send(wire.TypeStop, nil); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, r)
	return err
}

func (s *Server) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending += n
	s.changed.Announce()
}

// UntilGone waits until no shim is connected, nor comes back as one does that
// was between two connections. A shim ends its connection for good only when it
// has ended every process of its agent. It gives up when ctx ends: then the pod
// ends, and its agent's container has ended before.
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
