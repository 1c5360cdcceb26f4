package socket

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clew-dev/clew/internal/daemon/record"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// commitEvery is how often plain output is written to disk if it has waited long enough.
const commitEvery = 100 * time.Millisecond

// stream reads the frames of one connection of the shim.
type stream struct {
	s       *Server
	c       *connection
	in      *bufio.Reader
	epoch   int // of the recorder
	handler Handler
	serving context.Context // of Serve
}

// read handles frames until the connection is lost.
func (t *stream) read(ctx context.Context) error {
	for {
		f, err := wire.Read(t.in)
		if err != nil {
			return err
		}
		if f.Type == wire.TypeLine {
			if err := t.line(ctx, f); err != nil {
				return err
			}
			continue
		}
		if err := t.control(ctx, f); err != nil {
			return err
		}
	}
}

// line adds a line, and commits when no further line is buffered or the batch is full.
func (t *stream) line(ctx context.Context, f wire.Frame) error {
	l, err := f.Line()
	if err != nil {
		return err
	}
	calls, err := t.s.recorder.Add(ctx, t.epoch, l)
	t.reportCalls(calls)
	if err != nil {
		return err
	}
	if t.in.Buffered() > 0 && !t.s.recorder.Full() {
		return nil
	}
	return t.committed(t.s.recorder.Commit(ctx))
}

func (t *stream) reportCalls(calls []record.Call) {
	for _, c := range calls {
		t.handler.ToolCalled(t.serving, c)
	}
}

// committed acknowledges the lines that are recorded.
func (t *stream) committed(line int64, err error) error {
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			t.handler.Failed(err)
		}
		return err
	}
	t.handler.Recorded()
	return t.c.ack(line)
}

// commitOutput commits plain output that has waited long enough, until ctx ends.
func (t *stream) commitOutput(ctx context.Context) {
	tick := time.NewTicker(commitEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if t.committed(t.s.recorder.Commit(ctx)) != nil {
			return
		}
	}
}

// control handles a frame other than a line.
func (t *stream) control(ctx context.Context, f wire.Frame) error {
	if f.Type == wire.TypeExit {
		t.s.mu.Lock()
		t.s.exiting = true
		t.s.mu.Unlock()
	}
	switch f.Type {
	case wire.TypeFrozen, wire.TypeExit:
		if err := t.committed(t.flush(ctx, f)); err != nil {
			return err
		}
	case wire.TypeTerminating, wire.TypeThawed:
	default:
		return fmt.Errorf("unexpected frame type %d", f.Type)
	}
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed.Announce()
	switch f.Type {
	case wire.TypeTerminating:
		if !s.terminating {
			s.terminating, s.endingUntil = true, time.Now().Add(maxEnding)
		}
	case wire.TypeFrozen:
		var z wire.Freeze
		if err := f.Decode(&z); err != nil {
			return err
		}
		if f := s.frozen[z.ID]; f != nil && f.c == t.c && !f.stopped {
			f.stopped, f.running = true, z.Running
			close(f.answered)
		}
	case wire.TypeThawed:
		var z wire.Freeze
		if err := f.Decode(&z); err != nil {
			return err
		}
		for _, f := range s.frozen {
			if f.c == t.c && f.id <= z.ID {
				f.thawed = true
			}
		}
	case wire.TypeExit:
		var e wire.Exit
		if err := f.Decode(&e); err != nil {
			return err
		}
		if e.Code < 0 || e.Code > 255 {
			return fmt.Errorf("exit code %d is out of range", e.Code)
		}
		s.exit = &e
		s.terminating = s.terminating || e.Terminating
	}
	return nil
}

// flush writes to disk the output that preceded a Frozen or an Exit.
func (t *stream) flush(ctx context.Context, f wire.Frame) (line int64, err error) {
	if f.Type == wire.TypeFrozen {
		return t.s.recorder.Flush(ctx)
	}
	var e wire.Exit
	if err := f.Decode(&e); err != nil {
		return 0, err
	}
	calls, line, err := t.s.recorder.End(ctx, e.Terminating || e.Code != 0)
	t.reportCalls(calls)
	return line, err
}
