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

// commitEvery is how often plain output that may have waited long enough is put on disk.
const commitEvery = 100 * time.Millisecond

// stream is what the shim says on its connection.
type stream struct {
	s       *Server
	c       *connection
	in      *bufio.Reader
	epoch   int // of the recorder
	handler Handler
	serving context.Context // of Serve
}

// read takes what the shim says, until the connection is lost.
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
		if err := t.said(ctx, f); err != nil {
			return err
		}
	}
}

// line takes a line in, and puts lines on disk when no more are under way.
func (t *stream) line(ctx context.Context, f wire.Frame) error {
	l, err := f.Line()
	if err != nil {
		return err
	}
	calls, err := t.s.recorder.Add(ctx, t.epoch, l)
	t.called(calls)
	if err != nil {
		return err
	}
	if t.in.Buffered() > 0 && !t.s.recorder.Full() {
		return nil
	}
	return t.committed(t.s.recorder.Commit(ctx))
}

func (t *stream) called(calls []record.Call) {
	for _, c := range calls {
		t.handler.ToolCalled(t.serving, c)
	}
}

// committed acknowledges what is recorded.
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

// commitOutput puts plain output on disk that has waited long enough.
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

// said takes a frame other than a line.
func (t *stream) said(ctx context.Context, f wire.Frame) error {
	switch f.Type {
	case wire.TypeFrozen, wire.TypeExit:
		if err := t.committed(t.put(ctx, f)); err != nil {
			return err
		}
	case wire.TypeTerminating, wire.TypeThawed:
	default:
		return fmt.Errorf("a frame of type %d", f.Type)
	}
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed.Announce()
	switch f.Type {
	case wire.TypeTerminating:
		if !s.terminating {
			s.terminating, s.haste = true, time.Now().Add(longestHaste)
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
			return errors.New("an exit code out of range")
		}
		s.exit = &e
		s.terminating = s.terminating || e.Terminating
	}
	return nil
}

// put puts on disk what came before a Frozen or an Exit.
func (t *stream) put(ctx context.Context, f wire.Frame) (line int64, err error) {
	if f.Type == wire.TypeFrozen {
		return t.s.recorder.Flush(ctx)
	}
	var e wire.Exit
	if err := f.Decode(&e); err != nil {
		return 0, err
	}
	calls, line, err := t.s.recorder.End(ctx, e.Terminating || e.Code != 0)
	t.called(calls)
	return line, err
}
