package shim_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/shim"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// TestMain runs the shim instead of the tests in the processes that the tests start, since
// the shim must be the parent of its agent.
func TestMain(m *testing.M) {
	socket := os.Getenv("SHIM_SOCKET")
	if socket == "" {
		os.Exit(m.Run())
	}
	masker, err := mask.FromEnvironment(os.Environ(), "")
	if err != nil {
		os.Exit(98)
	}
	maxFreeze, err := time.ParseDuration(cmp.Or(os.Getenv("SHIM_MAX_FREEZE"), "0s"))
	if err != nil {
		os.Exit(97)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, shim.Signals()...)
	code, err := shim.Run(context.Background(), shim.Config{
		Socket: socket, Command: os.Args[1:], Env: os.Environ(), Conversation: "/c.jsonl",
		Stdout: os.Stdout, Stderr: os.Stderr, Window: 256 << 10, Log: logr.Discard(),
		RunDir: os.Getenv("SHIM_RUN_DIR"), Mask: masker, MaxFreeze: maxFreeze,
	}, signals)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(99)
	}
	os.Exit(code)
}

// daemon is the daemon's end of the socket, played by the test.
type daemon struct {
	t        *testing.T
	listener net.Listener
	conns    chan net.Conn
}

func newDaemon(t *testing.T) *daemon {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, listener: l, conns: make(chan net.Conn, 8)}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.conns <- c
		}
	}()
	t.Cleanup(func() { l.Close() })
	return d
}

// session is one connection of the shim.
type session struct {
	net.Conn
	t     *testing.T
	id    string
	lines []string
	last  int64
	open  string
}

// accept accepts the next connection and welcomes it at line.
func (d *daemon) accept(line int64) *session {
	d.t.Helper()
	var c net.Conn
	select {
	case c = <-d.conns:
	case <-time.After(20 * time.Second):
		d.t.Fatal("the shim did not connect within 20 s")
	}
	s := &session{Conn: c, t: d.t, last: line}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	d.t.Cleanup(func() { c.Close() })
	f := s.read()
	h, err := f.Hello()
	if err != nil {
		d.t.Fatal(err)
	}
	s.id = h.Session
	s.send(wire.TypeWelcome, wire.Welcome{Line: line, Attempt: 3})
	return s
}

func (s *session) send(typ wire.Type, v any) {
	s.t.Helper()
	if err := wire.Write(s, typ, v); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) read() wire.Frame {
	s.t.Helper()
	f, err := wire.Read(s)
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

// next reads frames, collecting lines, until one that is not a line.
func (s *session) next() wire.Frame {
	s.t.Helper()
	for {
		f := s.read()
		if f.Type != wire.TypeLine {
			return f
		}
		s.line(f)
	}
}

func (s *session) line(f wire.Frame) {
	s.t.Helper()
	l, err := f.Line()
	if err != nil || l.Number != s.last+1 {
		s.t.Fatalf("line %d follows line %d: %v", l.Number, s.last, err)
	}
	s.last = l.Number
	s.open += string(l.Data)
	if !l.More {
		s.lines, s.open = append(s.lines, s.open), ""
	}
}

// until reads lines until one has the given text.
func (s *session) until(text string) {
	s.t.Helper()
	for len(s.lines) == 0 || s.lines[len(s.lines)-1] != text {
		f := s.read()
		if f.Type != wire.TypeLine {
			s.t.Fatalf("the shim sent a frame of type %d, want the line %q", f.Type, text)
		}
		s.line(f)
	}
}

func (s *session) exit() wire.Exit {
	s.t.Helper()
	f := s.next()
	if f.Type != wire.TypeExit {
		s.t.Fatalf("the shim sent a frame of type %d, want Exit", f.Type)
	}
	var e wire.Exit
	if err := f.Decode(&e); err != nil {
		s.t.Fatal(err)
	}
	return e
}

func (s *session) expect(typ wire.Type) wire.Frame {
	s.t.Helper()
	f := s.next()
	if f.Type != typ {
		s.t.Fatalf("the shim sent a frame of type %d, want %d", f.Type, typ)
	}
	return f
}

// process is a shim that runs a shell script.
type process struct {
	*exec.Cmd
	t           *testing.T
	out, errOut bytes.Buffer
	done        chan struct{}
}

func (d *daemon) start(command ...string) *process {
	d.t.Helper()
	p := d.command(command...)
	p.begin()
	return p
}

// command returns a shim that is not started yet.
func (d *daemon) command(command ...string) *process {
	p := &process{Cmd: exec.Command(os.Args[0], command...), t: d.t, done: make(chan struct{})}
	p.Env = append(os.Environ(), "SHIM_SOCKET="+d.listener.Addr().String())
	p.Stdout, p.Stderr = &p.out, &p.errOut
	return p
}

func (p *process) begin() {
	p.t.Helper()
	if err := p.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() { p.Wait(); close(p.done) }()
	p.t.Cleanup(func() { p.Process.Kill(); <-p.done })
}

func (p *process) code() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.ProcessState.ExitCode()
	case <-time.After(20 * time.Second):
		p.t.Fatal("the shim did not end within 20 s")
		return 0
	}
}

// expectCode waits for the shim's end and compares its exit code.
func (p *process) expectCode(want int) {
	p.t.Helper()
	if got := p.code(); got != want {
		p.t.Errorf("the shim exited with %d, want %d: %v\n%s", got, want, p.ProcessState, p.errOut.String())
	}
}

// agentState returns the state of the agent's main process as in /proc: T if it is stopped.
func (p *process) agentState() string {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.Process.Pid))
	for _, file := range tasks {
		children, _ := os.ReadFile(file)
		for child := range bytes.FieldsSeq(children) {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%s/stat", child))
			if fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]); len(fields) > 0 {
				return string(fields[0])
			}
		}
	}
	return ""
}

// expectHeld fails the test if the shim ends before it is released.
func (p *process) expectHeld() {
	p.t.Helper()
	select {
	case <-p.done:
		p.t.Fatalf("the shim ended before it was released: %v\n%s", p.ProcessState, p.errOut.String())
	case <-time.After(50 * time.Millisecond):
	}
}

func sh(script string) []string { return []string{"sh", "-c", script} }
