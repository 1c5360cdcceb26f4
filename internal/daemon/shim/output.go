package shim

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// lineWait bounds how long a whole line is held back because a Secret's value may
// continue in the next one.
const lineWait = time.Second

// outbox holds the lines that the daemon has not recorded yet.
type outbox struct {
	window  int
	changed func() // called after each new line

	mu    sync.Mutex
	room  sync.Cond
	lines []wire.Line // oldest first
	bytes int
	last  int64
}

func newOutbox(window int, changed func()) *outbox {
	o := &outbox{window: window, changed: changed}
	o.room.L = &o.mu
	return o
}

// put numbers a line and keeps it until it is acknowledged. It blocks while the window
// is full.
func (o *outbox) put(data []byte, more bool) {
	o.mu.Lock()
	for o.bytes > o.window {
		o.room.Wait()
	}
	o.last++
	o.lines = append(o.lines, wire.Line{Number: o.last, More: more, Data: bytes.Clone(data)})
	o.bytes += len(data) + 64
	o.mu.Unlock()
	o.changed()
}

// ack drops lines through the given number.
func (o *outbox) ack(line int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.lines) > 0 && o.lines[0].Number <= line {
		o.bytes -= len(o.lines[0].Data) + 64
		o.lines[0] = wire.Line{}
		o.lines = o.lines[1:]
	}
	o.room.Broadcast()
}

// after returns the line that follows the given number, if there is one.
func (o *outbox) after(line int64) (wire.Line, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.lines) == 0 || o.last <= line {
		return wire.Line{}, false
	}
	return o.lines[max(0, line+1-o.lines[0].Number)], true
}

// pending reports whether there are lines that the daemon has not recorded.
func (o *outbox) pending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.lines) > 0
}

// first returns the number of the oldest line kept or, if none is, of the next line.
func (o *outbox) first() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.lines) > 0 {
		return o.lines[0].Number
	}
	return o.last + 1
}

// end returns the number of the newest line.
func (o *outbox) end() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}

// sink receives the agent's output piece by piece.
type sink interface {
	line(data []byte, more bool)
}

// reader reads the agent's output, copies it to the container's log and splits it into
// lines.
type reader struct {
	pipe *os.File
	out  io.Writer
	sink sink
	done chan struct{}
	mask *mask.Writer // all output passes through it

	buffer []byte

	mu      sync.Mutex
	waiters []chan struct{} // closed when the pipe is empty
	waits   bool            // the pipe has a deadline because a line is held back
}

func newReader(pipe *os.File, out io.Writer, sink sink, masker *mask.Masker) *reader {
	r := &reader{pipe: pipe, out: out, sink: sink, done: make(chan struct{})}
	r.mask = masker.Writer(writerFunc(r.pass))
	return r
}

// writerFunc is a function that implements io.Writer.
type writerFunc func(data []byte)

func (f writerFunc) Write(data []byte) (int, error) {
	f(data)
	return len(data), nil
}

// run reads until the last process that has the pipe open has ended.
func (r *reader) run() {
	defer close(r.done)
	chunk := make([]byte, wire.MaxChunk)
	for {
		n, err := r.pipe.Read(chunk)
		r.take(chunk[:n])
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			r.empty(chunk)
			_ = r.mask.FlushLines()
			r.release()
		default:
			_ = r.mask.Flush()
			if len(r.buffer) > 0 {
				r.sink.line(r.buffer, false)
			}
			r.release()
			return
		}
	}
}

// drain returns when everything that the agent has written was read. The agent must be
// stopped.
func (r *reader) drain() {
	done := make(chan struct{})
	r.mu.Lock()
	r.waiters = append(r.waiters, done)
	_ = r.pipe.SetReadDeadline(time.Unix(1, 0))
	r.mu.Unlock()
	select {
	case <-done:
	case <-r.done:
	}
}

// empty reads what is in the pipe without waiting for more.
func (r *reader) empty(chunk []byte) {
	raw, err := r.pipe.SyscallConn()
	for err == nil {
		n := 0
		_ = r.pipe.SetReadDeadline(time.Time{})
		var readErr error
		err = raw.Read(func(fd uintptr) bool {
			n, readErr = syscall.Read(int(fd), chunk)
			return true
		})
		if readErr == syscall.EINTR {
			continue
		}
		if n <= 0 {
			break
		}
		r.take(chunk[:n])
	}
}

func (r *reader) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.waiters {
		close(w)
	}
	r.waiters = nil
}

// take masks output and passes it on. A line may be held back, for at most lineWait,
// because a Secret's value may continue in the next one.
func (r *reader) take(data []byte) {
	if len(data) == 0 {
		return
	}
	_, _ = r.mask.Write(data)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiters) > 0 {
		return // drain owns the pipe's deadline
	}
	deadline := time.Time{}
	if r.mask.HeldLine() {
		deadline = time.Now().Add(lineWait)
	}
	if r.waits || !deadline.IsZero() {
		r.waits = !deadline.IsZero()
		_ = r.pipe.SetReadDeadline(deadline)
	}
}

// pass copies output to the log and hands its lines to the sink. A line longer than a
// frame is handed over in pieces, so that memory is bounded.
func (r *reader) pass(data []byte) {
	_, _ = r.out.Write(data) // a closed log must not stop the agent
	for {
		i := bytes.IndexByte(data, '\n')
		part := data
		if i >= 0 {
			part = data[:i]
		}
		for len(r.buffer)+len(part) > wire.MaxChunk {
			n := wire.MaxChunk - len(r.buffer)
			r.sink.line(append(r.buffer, part[:n]...), true)
			r.buffer, part = r.buffer[:0], part[n:]
		}
		r.buffer = append(r.buffer, part...)
		if i < 0 {
			return
		}
		r.sink.line(r.buffer, false)
		r.buffer, data = r.buffer[:0], data[i+1:]
		if len(data) == 0 {
			return
		}
	}
}

// finish waits until the output is closed, for at most wait, since processes that
// outlived the agent may keep it open.
func (r *reader) finish(wait time.Duration) {
	select {
	case <-r.done:
		return
	case <-time.After(wait):
	}
	r.drain()
	_ = r.pipe.Close()
	<-r.done
}
