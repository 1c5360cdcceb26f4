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
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/shim"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// TestMain runs the shim instead of the tests in the processes that start makes:
// it must own its children.
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

// daemon is the other end of the socket, played by the test.
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

// accept takes the next connection and welcomes it at line.
func (d *daemon) accept(line int64) *session {
	d.t.Helper()
	var c net.Conn
	select {
	case c = <-d.conns:
	case <-time.After(20 * time.Second):
		d.t.Fatal("the shim does not connect")
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

// next reads frames, collecting lines, until one that is no line.
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
		s.t.Fatalf("line %d follows %d: %v", l.Number, s.last, err)
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
			s.t.Fatalf("a frame of type %d while waiting for %q", f.Type, text)
		}
		s.line(f)
	}
}

func (s *session) exit() wire.Exit {
	s.t.Helper()
	f := s.next()
	if f.Type != wire.TypeExit {
		s.t.Fatalf("a frame of type %d instead of the exit", f.Type)
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
		s.t.Fatalf("a frame of type %d instead of %d", f.Type, typ)
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

// command is a shim that is yet to be started.
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
		p.t.Fatal("the shim does not end")
		return 0
	}
}

func (p *process) expectHeld() {
	p.t.Helper()
	select {
	case <-p.done:
		p.t.Fatalf("the shim ended: %v\n%s", p.ProcessState, p.errOut.String())
	case <-time.After(50 * time.Millisecond):
	}
}

func sh(script string) []string { return []string{"sh", "-c", script} }

func TestOutputExitAndHold(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	tests := []struct {
		name    string
		command []string
		code    int
		lines   []string
	}{
		{"lines", sh(`printf 'a\n\nb\r\nc'; echo err >&2; exit 3`), 3, []string{"a", "", "b\r", "c"}},
		{"nothing", sh(`exit 0`), 0, nil},
		{"a signal", sh(`kill -KILL $$`), 137, nil},
		{"a long line", sh(`head -c 200000 /dev/zero | tr '\0' x; echo; echo y`), 0, []string{long, "y"}},
		{"no stdin", sh(`cat; echo end`), 0, []string{"end"}},
		{"environment", sh(`echo $CLEW_CONVERSATION $CLEW_ATTEMPT`), 0, []string{"/c.jsonl 3"}},
		{"unknown command", []string{"no-such-command"}, 127, nil},
		{"unknown path", []string{"/no/such/command"}, 127, nil},
		{"a folder", []string{"/"}, 126, nil},
		{"no program", []string{"/etc/passwd"}, 126, nil},
		{"a script's own code", sh(`exit 127`), 127, nil},
		{"left behind", sh(`(setsid sh -c 'sleep 100; echo late') & (sleep 100; echo late) & echo done`), 0, []string{"done"}},
		{"orphans", sh(`(sh -c 'sleep 0.05; echo late' & echo early); sleep 0.5`), 0, []string{"early", "late"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			p := d.start(tt.command...)
			s := d.accept(0)
			e := s.exit()
			if e.Code != tt.code || e.Terminating {
				t.Errorf("exit %+v, want %d", e, tt.code)
			}
			cause := map[int]agent.Cause{127: agent.CauseProgramNotFound, 126: agent.CauseProgramNotExecutable}[tt.code]
			if tt.name == "a script's own code" {
				cause = agent.CauseUnknown
			}
			if e.Cause != string(cause) {
				t.Errorf("the cause is %q, want %q", e.Cause, cause)
			}
			if strings.Join(s.lines, "\n") != strings.Join(tt.lines, "\n") || s.open != "" {
				t.Errorf("%d lines: %.200q", len(s.lines), s.lines)
			}
			p.expectHeld()
			s.send(wire.TypeRelease, nil)
			if got := p.code(); got != tt.code {
				t.Errorf("exit code %d\n%s", got, p.errOut.String())
			}
			if got := strings.TrimSuffix(p.out.String(), "\n"); got != strings.Join(tt.lines, "\n") {
				t.Errorf("the log has %.200q", got)
			}
		})
	}
}

func TestSignalsAreForwarded(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.start(sh(`trap 'echo usr1' USR1; trap 'echo hup' HUP; trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.05; done`)...)
	s := d.accept(0)
	s.until("ready")
	p.Process.Signal(unix.SIGUSR1)
	s.until("usr1")
	p.Process.Signal(unix.SIGHUP)
	s.until("hup")
	p.Process.Signal(unix.SIGTERM)
	s.expect(wire.TypeTerminating)
	if e := s.exit(); e.Code != 7 || !e.Terminating {
		t.Fatalf("exit %+v", e)
	}
	s.send(wire.TypeRelease, nil)
	if p.code() != 7 {
		t.Fatal(p.ProcessState)
	}
}

func TestTermWhileHeld(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.start(sh(`exit 4`)...)
	s := d.accept(0)
	s.exit()
	p.Process.Signal(unix.SIGTERM)
	s.expect(wire.TypeTerminating)
	p.expectHeld()
	s.send(wire.TypeRelease, nil)
	if p.code() != 4 {
		t.Fatal(p.ProcessState)
	}
}

// TestReconnect loses the daemon in mid-stream, twice: what was not
// acknowledged comes again under its number, in the same session.
func TestReconnect(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.start(sh(`for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.02; done; exit 2`)...)
	s := d.accept(0)
	s.until("5")
	s.send(wire.TypeAck, wire.Ack{Line: 3})
	s.Close()
	again := d.accept(4) // recorded, but the acknowledgement was lost
	if again.id != s.id {
		t.Fatal("another session")
	}
	again.until("6")
	again.Close()
	last := d.accept(6)
	if e := last.exit(); e.Code != 2 {
		t.Fatalf("%+v", e)
	}
	if strings.Join(last.lines, "") != "789" {
		t.Fatalf("%q", last.lines)
	}
	last.Close() // also while the exit is held
	final := d.accept(9)
	if e := final.exit(); e.Code != 2 || len(final.lines) != 0 {
		t.Fatalf("%+v %q", e, final.lines)
	}
	final.send(wire.TypeRelease, nil)
	if p.code() != 2 {
		t.Fatal(p.ProcessState)
	}
}

// TestStopsWithoutDaemon: the agent goes no further than its next line.
func TestStopsWithoutDaemon(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "steps")
	p := d.start(sh(`for i in 1 2 3 4 5 6 7 8; do echo $i; echo $i >> ` + file + `; sleep 0.02; done`)...)
	s := d.accept(0)
	s.until("2")
	s.Close()
	c := <-d.conns // reconnects, but is not welcomed
	time.Sleep(300 * time.Millisecond)
	steps, _ := os.ReadFile(file)
	if n := strings.Count(string(steps), "\n"); n > 4 {
		t.Fatalf("the agent took %d steps alone", n)
	}
	c.Close()
	again := d.accept(s.last)
	if e := again.exit(); e.Code != 0 || again.lines[len(again.lines)-1] != "8" {
		t.Fatalf("%+v %q", e, again.lines)
	}
	again.send(wire.TypeRelease, nil)
	p.code()
}

// TestTermWithoutDaemon: a stopped agent can still end by itself.
func TestTermWithoutDaemon(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "ended")
	p := d.start(sh(`trap 'touch ` + file + `; exit 5' TERM; i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done`)...)
	s := d.accept(0)
	s.until("3")
	s.Close()
	c := <-d.conns
	time.Sleep(100 * time.Millisecond)
	p.Process.Signal(unix.SIGTERM)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the agent was not told to end")
		}
	}
	p.expectHeld()
	c.Close()
	again := d.accept(s.last)
	again.expect(wire.TypeTerminating)
	if e := again.exit(); e.Code != 5 {
		t.Fatalf("%+v", e)
	}
	again.send(wire.TypeRelease, nil)
	p.code()
}

// TestFreeze: between Frozen and Thaw the agent does nothing, and everything it
// did before has been said.
func TestFreeze(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "steps")
	p := d.start(sh(`i=0; while [ ! -e ` + file + `.stop ]; do i=$((i+1)); echo $i >> ` + file + `; echo $i; done; sh -c 'echo sub'`)...)
	s := d.accept(0)
	s.until("10")
	for id := int64(1); id < 12; id++ {
		s.send(wire.TypeFreeze, wire.Freeze{ID: id})
		s.expect(wire.TypeFrozen)
		before, _ := os.ReadFile(file)
		steps, said := strings.Count(string(before), "\n"), 0
		fmt.Sscan(s.lines[len(s.lines)-1], &said)
		if steps != said && steps != said+1 {
			t.Fatalf("the agent took %d steps and told of %d", steps, said)
		}
		time.Sleep(5 * time.Millisecond)
		if after, _ := os.ReadFile(file); len(after) != len(before) {
			t.Fatal("the agent works on")
		}
		s.send(wire.TypeThaw, wire.Freeze{ID: id})
	}
	s.send(wire.TypeFreeze, wire.Freeze{ID: 99})
	s.expect(wire.TypeFrozen)
	s.Close() // a lost daemon must not leave the agent stopped
	last := d.accept(s.last)
	os.WriteFile(file+".stop", nil, 0o600)
	if e := last.exit(); e.Code != 0 || last.lines[len(last.lines)-1] != "sub" {
		t.Fatalf("%+v", e)
	}
	last.send(wire.TypeRelease, nil)
	p.code()
}

// TestBackpressure: output that nobody records stops the agent, not the memory.
func TestBackpressure(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.start(sh(`head -c 3000000 /dev/zero | tr '\0' x | fold -w 999; echo; echo end`)...)
	s := d.accept(0)
	acked := int64(0)
	for len(s.lines) == 0 || s.lines[len(s.lines)-1] != "end" {
		s.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		f, err := wire.Read(s)
		if err != nil {
			if ahead := (s.last - acked) * 1000; ahead > 1<<20 || ahead == 0 {
				t.Fatalf("%d bytes are not acknowledged", ahead)
			}
			acked = s.last
			s.send(wire.TypeAck, wire.Ack{Line: acked})
			continue
		}
		s.line(f)
	}
	s.SetReadDeadline(time.Now().Add(20 * time.Second))
	s.exit()
	s.send(wire.TypeRelease, nil)
	p.code()
}

func TestStopEndsTheAgent(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.start(sh(`trap '' TERM; echo ready; sleep 100`)...)
	s := d.accept(0)
	s.until("ready")
	s.send(wire.TypeStop, nil)
	if p.code() != 137 {
		t.Fatal(p.ProcessState)
	}
}

// TestNoStartWithoutDaemon: the agent does not start before the daemon is there.
func TestNoStartWithoutDaemon(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "started")
	p := d.start(sh(`touch ` + file)...)
	c := <-d.conns
	time.Sleep(50 * time.Millisecond)
	if _, err := os.Stat(file); err == nil {
		t.Error("it started")
	}
	c.Close()
	p.Process.Signal(unix.SIGTERM)
	if p.code() != 143 {
		t.Fatal(p.ProcessState)
	}
}

// TestSecretsAreMasked: a value of a Secret reaches neither the log nor the
// daemon, and the agent does not find it under Clew's name.
func TestSecretsAreMasked(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.command(sh(`printf 'key: sk-test-'; sleep 0.05; printf '0123456789\nthe same: %s\n' "$CLEW_MASK_1"; echo "error: $KEY" >&2; printf "$KEY"`)...)
	p.Env = append(p.Env, "CLEW_MASK_1=sk-test-0123456789", "KEY=sk-test-0123456789")
	p.begin()
	s := d.accept(0)
	if e := s.exit(); e.Code != 0 {
		t.Fatalf("%+v", e)
	}
	if got := strings.Join(s.lines, "\n"); got != "key: [masked]\nthe same: \n[masked]" {
		t.Errorf("the daemon got %q", got)
	}
	s.send(wire.TypeRelease, nil)
	p.code()
	if got := p.out.String() + p.errOut.String(); got != "key: [masked]\nthe same: \n[masked]error: [masked]\n" {
		t.Errorf("the log has %q", got)
	}
}

// TestFreezeStopsOtherSessions: a process that the agent started in a session
// of its own stands still as well, and so does one whose parent has ended.
func TestFreezeStopsOtherSessions(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "steps")
	work := `while [ ! -e ` + file + `.stop ]; do echo x >> ` + file + `.$0; done`
	p := d.start(sh(`setsid sh -c '` + work + `' child & (setsid setsid -f sh -c '` + work + `' orphan); while [ ! -e ` + file + `.child -o ! -e ` + file + `.orphan ]; do sleep 0.01; done; echo both; wait`)...)
	s := d.accept(0)
	s.until("both")
	sizes := func() (out [2]int64) {
		for i, name := range []string{".child", ".orphan"} {
			if info, err := os.Stat(file + name); err == nil {
				out[i] = info.Size()
			}
		}
		return out
	}
	for id := int64(1); id < 6; id++ {
		s.send(wire.TypeFreeze, wire.Freeze{ID: id})
		s.expect(wire.TypeFrozen)
		before := sizes()
		time.Sleep(20 * time.Millisecond)
		if after := sizes(); after != before {
			t.Fatalf("a process works on: %v, then %v", before, after)
		}
		s.send(wire.TypeThaw, wire.Freeze{ID: id})
		for deadline := time.Now().Add(10 * time.Second); sizes()[0] == before[0] || sizes()[1] == before[1]; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("a process does not go on")
			}
		}
	}
	os.WriteFile(file+".stop", nil, 0o600)
	s.exit()
	s.send(wire.TypeRelease, nil)
	p.code()
}

// TestPlan: an agent of a known kind is started as its adapter says, with the
// user's own command, arguments and variables before it.
func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		name string
		plan launchplan.Plan
		want []string
		code int
	}{
		{"a new session", launchplan.Plan{AgentType: "ClaudeCode", Model: "a-model", Prompt: "Do\nit -- now."},
			[]string{"own -p --output-format stream-json --verbose --dangerously-skip-permissions --settings RUN/context/agent/claude.json --model a-model", "Do", "it -- now.", "1 mine"}, 0},
		{"its own session", launchplan.Plan{AgentType: "ClaudeCode", Session: "s-1", Prompt: strings.Repeat("x", 200_000)},
			[]string{"own -p --output-format stream-json --verbose --dangerously-skip-permissions --settings RUN/context/agent/claude.json --resume s-1", strings.Repeat("x", 200_000), "1 mine"}, 0},
		{"an unknown kind", launchplan.Plan{AgentType: "Other"}, nil, 126},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := launchplan.Write(dir, tt.plan); err != nil {
				t.Fatal(err)
			}
			d := newDaemon(t)
			p := d.command("sh", "-c", `echo "$@"; cat; echo; echo "$DISABLE_TELEMETRY $DISABLE_AUTOUPDATER"`, "agent", "own")
			p.Env = append(p.Env, "SHIM_RUN_DIR="+dir, "DISABLE_AUTOUPDATER=mine")
			p.begin()
			s := d.accept(0)
			if e := s.exit(); e.Code != tt.code {
				t.Errorf("%+v", e)
			}
			if got := strings.ReplaceAll(strings.Join(s.lines, "\n"), dir, "RUN"); got != strings.Join(tt.want, "\n") {
				t.Errorf("got %.400q", got)
			}
			s.send(wire.TypeRelease, nil)
			if p.code(); tt.code != 0 && !strings.Contains(p.errOut.String(), "no agent of type") {
				t.Errorf("%q", p.errOut.String())
			}
		})
	}
}
