package daemontest

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/sidecar"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/volume"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Sidecar is the sidecar of an attempt, running in the test's process.
type Sidecar struct {
	t    testing.TB
	w    *World
	stop context.CancelFunc
	done chan error
}

// Start starts the sidecar of an attempt and waits until it is ready.
func (w *World) Start(attempt int64) *Sidecar {
	t := w.T
	t.Helper()
	client, token := w.Client(attempt)
	ctx, stop := context.WithCancel(context.Background())
	d := &Sidecar{t: t, w: w, stop: stop, done: make(chan error, 1)}
	go func() {
		d.done <- sidecar.Run(ctx, sidecar.Config{Pod: w.Pod(attempt, nil), Paths: w.Paths(), RunDir: w.RunDir, Server: client,
			Remote: volume.Remote(w.Store, token, ""), OpenWait: w.OpenWait, CallWait: w.CallWait, ReturnWait: w.ReturnWait, HoldTime: w.HoldTime, BoundaryWait: w.BoundaryWait, DoneGrace: w.DoneGrace, ReportAfter: w.TellAfter,
			ProcessorTime: w.ProcessorTime, ProcessorsShort: func() bool { return false }, Mask: w.Mask, Log: w.Log()})
	}()
	gomega.NewWithT(t).Eventually(func() error { return socket.Ready(w.RunDir) }, 30*time.Second, 5*time.Millisecond).
		Should(gomega.Succeed(), "the sidecar is ready")
	return d
}

// Terminate ends the sidecar as SIGTERM does.
func (d *Sidecar) Terminate() { d.stop() }

// Done receives the sidecar's error when it has ended.
func (d *Sidecar) Done() <-chan error { return d.done }

// End terminates the sidecar and waits until it has ended.
func (d *Sidecar) End() {
	d.t.Helper()
	d.stop()
	select {
	case err := <-d.done:
		if err != nil {
			d.t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		d.t.Fatal("the sidecar does not end")
	}
}

// AskForCheckpoint makes the server request a checkpoint from the sidecar.
func (w *World) AskForCheckpoint(name string) {
	w.Server.Ask(&daemonv1.TakeCheckpoint{Name: name, Uid: "uid-" + name})
}

// Shim is the agent's shim, played by the test.
type Shim struct {
	t testing.TB
	net.Conn
	Reader *bufio.Reader
	// Sent and Acked are the last line sent and the last one acknowledged.
	Sent, Acked int64
	// Welcome is the sidecar's answer; its Line is -1 if it refused.
	Welcome wire.Welcome
}

// Dial connects to the sidecar as the shim of a session.
func (w *World) Dial(session string) *Shim {
	w.T.Helper()
	return w.DialFrom(session, 0)
}

// DialFrom connects as a shim whose lines before first were acknowledged.
func (w *World) DialFrom(session string, first int64) *Shim {
	t := w.T
	t.Helper()
	c, err := net.Dial("unix", filepath.Join(w.RunDir, socket.Name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	a := &Shim{t: t, Conn: c, Reader: bufio.NewReader(c)}
	a.Send(wire.TypeHello, wire.Hello{Session: session, First: first})
	f, err := wire.Read(a.Reader)
	if err != nil {
		a.Welcome.Line = -1
		return a
	}
	if err := f.Decode(&a.Welcome); err != nil {
		t.Fatal(err)
	}
	a.Sent, a.Acked = a.Welcome.Line, a.Welcome.Line
	return a
}

// Reconnect connects to a sidecar that may have been fenced off.
func (w *World) Reconnect(session string) *Shim {
	w.T.Helper()
	c, err := net.Dial("unix", filepath.Join(w.RunDir, socket.Name))
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(30 * time.Second))
	a := &Shim{t: w.T, Conn: c, Reader: bufio.NewReader(c)}
	a.Send(wire.TypeHello, wire.Hello{Session: session})
	return a
}

// Knock connects as a shim and returns the type of the sidecar's answer; 0 for none.
func (w *World) Knock(session string) wire.Type {
	w.T.Helper()
	a := w.Reconnect(session)
	defer a.Close()
	f, err := wire.Read(a.Reader)
	if err != nil {
		return 0
	}
	return f.Type
}

// Send sends a frame other than a line.
func (a *Shim) Send(typ wire.Type, v any) {
	a.t.Helper()
	if err := wire.Write(a, typ, v); err != nil {
		a.t.Fatal(err)
	}
}

// Say sends lines of output.
func (a *Shim) Say(lines ...string) {
	a.t.Helper()
	for _, l := range lines {
		a.Sent++
		if err := wire.WriteLine(a, wire.Line{Number: a.Sent, Data: []byte(l)}); err != nil {
			a.t.Fatal(err)
		}
	}
}

// Call sends a call and its result for each id.
func (a *Shim) Call(ids ...string) {
	a.t.Helper()
	for _, id := range ids {
		a.Say(`{"type":"tool_call","id":"`+id+`","name":"x"}`, `{"type":"tool_result","id":"`+id+`","output":"ok"}`)
	}
}

// Next reads frames until one of the given type, answering freezes and noting
// acknowledgements as a shim does.
func (a *Shim) Next(want wire.Type) {
	a.t.Helper()
	for {
		f, err := wire.Read(a.Reader)
		if err != nil {
			a.t.Fatalf("while waiting for a frame of type %d: %v", want, err)
		}
		switch f.Type {
		case wire.TypeAck:
			var ack wire.Ack
			f.Decode(&ack)
			if ack.Line <= a.Acked || ack.Line > a.Sent {
				a.t.Fatalf("line %d is acknowledged after %d, of %d", ack.Line, a.Acked, a.Sent)
			}
			a.Acked = ack.Line
		case wire.TypeFreeze:
			var z wire.Freeze
			f.Decode(&z)
			a.Send(wire.TypeFrozen, z)
		}
		if f.Type == want {
			return
		}
	}
}

// Answer reads frames until a Freeze, and calls answer with it.
func (a *Shim) Answer(answer func(*Shim, wire.Freeze)) {
	a.t.Helper()
	for {
		f, err := wire.Read(a.Reader)
		if err != nil {
			a.t.Fatalf("while waiting for a freeze: %v", err)
		}
		if f.Type == wire.TypeFreeze {
			var z wire.Freeze
			f.Decode(&z)
			answer(a, z)
			return
		}
	}
}

// UntilStopped reads until the sidecar ends the agent, or drops the connection; in the
// latter case it says so on the next one.
func (a *Shim) UntilStopped() {
	a.t.Helper()
	for {
		f, err := wire.Read(a.Reader)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			a.t.Fatal("the sidecar did not end the agent")
		}
		if err != nil || f.Type == wire.TypeStop {
			return
		}
		var z wire.Freeze
		switch f.Type {
		case wire.TypeAck:
			var ack wire.Ack
			f.Decode(&ack)
			a.Acked = ack.Line
		case wire.TypeFreeze:
			f.Decode(&z)
			_ = wire.Write(a, wire.TypeFrozen, z)
		}
	}
}

// Quiet fails the test if the sidecar asks for the agent's end within a while.
func (a *Shim) Quiet(while time.Duration) {
	a.t.Helper()
	a.SetReadDeadline(time.Now().Add(while))
	defer a.SetReadDeadline(time.Now().Add(2 * time.Minute))
	for {
		f, err := wire.Read(a.Reader)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			a.t.Fatal(err)
		}
		switch f.Type {
		case wire.TypeFinish:
			a.t.Fatal("the sidecar ends the agent")
		case wire.TypeAck:
			var ack wire.Ack
			f.Decode(&ack)
			a.Acked = ack.Line
		case wire.TypeFreeze:
			var z wire.Freeze
			f.Decode(&z)
			a.Send(wire.TypeFrozen, z)
		}
	}
}

// Recorded waits until everything that was sent is on disk.
func (a *Shim) Recorded() {
	a.t.Helper()
	for a.Acked < a.Sent {
		a.Next(wire.TypeAck)
	}
}
