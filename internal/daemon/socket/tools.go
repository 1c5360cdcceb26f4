package socket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/clew-dev/clew/internal/daemon/wire"
)

const (
	// MaxTools bounds the connections to Clew's tools. One is open for no longer than a few
	// calls take, so that an agent which calls several tools at a time finds a place.
	MaxTools = 16
	// toolsTimeout is how long such a connection may last, whatever its peer does.
	toolsTimeout = 2 * time.Minute
	// toolsWriteTimeout is how long the peer may leave an answer unread. It is longer than an
	// agent is ever stopped for a checkpoint, and its processes with it.
	toolsWriteTimeout = 75 * time.Second
	// maxDelivered bounds the calls that are said at a time to have reached the agent, and
	// deliveredTimeout how long it may take to record that.
	maxDelivered     = 100
	deliveredTimeout = 5 * time.Second
)

// openTools serves a connection to Clew's tools. in is what its peer sends.
func (s *Server) openTools(serving context.Context, c *connection, in io.Reader, h Handler, known func()) error {
	select {
	case s.tools <- struct{}{}:
		defer func() { <-s.tools }()
	default:
		return s.refuseTools(c, fmt.Sprintf("Clew serves %d calls of its tools at a time, and so many are in progress: wait until they have ended, then try again.", MaxTools))
	}
	if s.isFenced() {
		return s.refuseTools(c, "This attempt of the task is over: Clew's tools are not available any more.")
	}
	known()
	if err := c.send(wire.TypeToolsOpened, wire.ToolsOpened{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(serving, toolsTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	_ = c.SetReadDeadline(time.Time{})
	h.ServeTools(ctx, toolsConnection{Reader: in, c: c})
	return nil
}

// delivered answers a program that says whose answers it has written out, once that is on disk.
func (s *Server) delivered(serving context.Context, c *connection, f wire.Frame, h Handler) error {
	var d wire.Delivered
	if err := f.Decode(&d); err != nil {
		return err
	}
	if len(d.Calls) > maxDelivered {
		return fmt.Errorf("%d calls are said to be answered, more than %d", len(d.Calls), maxDelivered)
	}
	if s.isFenced() {
		return errors.New("the attempt is over, and nothing more is recorded")
	}
	ctx, cancel := context.WithTimeout(serving, deliveredTimeout)
	defer cancel()
	if err := h.Delivered(ctx, d.Calls); err != nil {
		return err
	}
	return c.send(wire.TypeNoted, nil)
}

func (s *Server) refuseTools(c *connection, why string) error {
	return c.send(wire.TypeToolsOpened, wire.ToolsOpened{Refused: why})
}

// toolsConnection is a connection to Clew's tools behind its first frame.
type toolsConnection struct {
	io.Reader
	c *connection
}

// Write implements io.Writer.
func (t toolsConnection) Write(p []byte) (int, error) {
	_ = t.c.SetWriteDeadline(time.Now().Add(toolsWriteTimeout))
	return t.c.Write(p)
}

// Close implements io.Closer.
func (t toolsConnection) Close() error { return t.c.Close() }
