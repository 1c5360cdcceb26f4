package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// TestMain is the daemon itself, or a fake agent, in the processes that the
// tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"prepare", "run", "agent", "hook", "ready"}, os.Args[1]) {
		main()
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == "fake" {
		fakeAgent(os.Args[2], os.Args[3:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// testPod runs a task's containers as processes, to be killed as such.
type testPod struct {
	t       *testing.T
	w       *daemontest.World
	attempt int64
	token   string
	command []string
	env     []string // of all containers
	op      *daemonapi.Operation

	sidecar, agent *process
}

// process is one container.
type process struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan struct{}
}

func (p *testPod) start(dir string, args ...string) *process {
	p.t.Helper()
	config, err := p.w.Pod(p.attempt, p.op).Encode()
	if err != nil {
		p.t.Fatal(err)
	}
	c := &process{cmd: exec.Command(os.Args[0], args...), done: make(chan struct{})}
	c.cmd.Dir, c.cmd.Stdout, c.cmd.Stderr = dir, &c.out, &c.out
	c.cmd.Env = append(os.Environ(), daemonapi.ConfigEnv+"="+config, daemonapi.PromptEnv+"="+p.w.Prompt,
		"HOME="+p.w.Paths().Home, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	c.cmd.Env = append(c.cmd.Env, p.env...)
	if err := c.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() { c.cmd.Wait(); close(c.done) }()
	p.t.Cleanup(func() { c.kill() })
	return c
}

func (c *process) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *process) kill() {
	c.cmd.Process.Kill()
	<-c.done
}

// end ends a process as one of three things does that happen to a container: the kernel
// kills it alone, it is asked to end and then killed, or all of it is killed, its
// children first.
func (c *process) end(how int) {
	switch how {
	case 1:
		c.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-c.done:
		case <-time.After(time.Second):
		}
	case 2:
		for _, child := range children(c.cmd.Process.Pid) {
			syscall.Kill(-child, syscall.SIGKILL)
		}
	}
	c.kill()
}

func (p *testPod) startPrepare() *process {
	return p.start("/", "prepare", "--volume", p.w.Root, "--run-dir", p.w.RunDir, "--token-file", p.token, "--credentials-dir", "",
		"--termination-log", p.termination(), "--retry-for", "20s")
}

func (p *testPod) termination() string { return filepath.Join(p.w.RunDir, "termination-log") }

// result is what prepare reported.
func (p *testPod) result() (r daemonapi.PrepareResult) {
	data, _ := os.ReadFile(p.termination())
	_ = json.Unmarshal(data, &r)
	return r
}

func (p *testPod) startSidecar() {
	paths := p.w.Paths()
	p.sidecar = p.start("/", "run", "--worktree", paths.Worktree, "--home", paths.Home, "--state-dir", paths.State,
		"--run-dir", p.w.RunDir, "--token-file", p.token)
}

// startAgent starts the agent when the sidecar's startup probe succeeds.
func (p *testPod) startAgent() {
	p.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); socket.Ready(p.w.RunDir) != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("the sidecar does not become ready:\n%s", p.sidecar.out.String())
		}
	}
	args := []string{"agent", "--socket", filepath.Join(p.w.RunDir, socket.Name), "--conversation", filepath.Join(p.w.RunDir, daemonapi.ConversationFile),
		"--run-dir", p.w.RunDir, "--"}
	p.agent = p.start(p.w.Paths().Worktree, append(args, p.command...)...)
}

// kill ends all containers of the pod at once, as a lost node does.
func (p *testPod) kill() {
	p.t.Helper()
	p.killAgent()
	p.sidecar.kill()
}

// killAgent kills the agent's container. In a real one the kernel kills what
// the shim, its process 1, leaves behind.
func (p *testPod) killAgent() {
	p.t.Helper()
	pid := p.agent.cmd.Process.Pid
	p.agent.cmd.Process.Signal(syscall.SIGSTOP)
	for _, child := range children(pid) {
		syscall.Kill(-child, syscall.SIGKILL)
	}
	p.agent.kill()
}

func children(pid int) (out []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		data, _ := os.ReadFile(file)
		for field := range strings.FieldsSeq(string(data)) {
			if child, err := strconv.Atoi(field); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

// replay builds the demo's agent.
func replay(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "replay")
	if out, err := exec.Command("go", "build", "-o", path, "../../hack/demo/agent").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func answered(w *daemontest.World) (ids []string) {
	for _, line := range w.Lines() {
		if id, ok := strings.CutPrefix(line, "result "); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

func calls(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("call-%d", i+1))
	}
	return ids
}

// TestAPod lets one pod work undisturbed, and be suspended.
func TestAPod(t *testing.T) {
	w := daemontest.NewWorld(t, map[string]string{"a": "a"})
	w.Policy.EveryToolCalls = 4
	p := &testPod{t: t, w: w, attempt: 1, token: daemontest.Token(t, w.UID, 1), command: []string{replay(t), "--calls=10", "--delay=20ms", "--check"}}
	first := p.startPrepare()
	<-first.done
	if r := p.result(); r.Reason != "Prepared" || first.cmd.ProcessState.ExitCode() != 0 {
		t.Fatalf("%+v\n%s", r, first.out.String())
	}
	p.startSidecar()
	p.startAgent()
	<-p.agent.done
	if p.agent.cmd.ProcessState.ExitCode() != 0 || !strings.Contains(p.agent.out.String(), `"Done."`) {
		t.Fatalf("%v\n%s", p.agent.cmd.ProcessState, p.agent.out.String())
	}
	p.sidecar.cmd.Process.Signal(syscall.SIGTERM)
	<-p.sidecar.done
	if p.sidecar.cmd.ProcessState.ExitCode() != 0 {
		t.Fatalf("%v\n%s", p.sidecar.cmd.ProcessState, p.sidecar.out.String())
	}
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		if c := k.Latest(); c.GetNumber() != 3 || c.GetTrigger() != "Completion" || !c.GetDurable() {
			t.Errorf("%v", c)
		}
	})
	if got := answered(w); !slices.Equal(got, calls(10)) {
		t.Errorf("%v", got)
	}
}

func TestSuspendAndResume(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	program := replay(t)
	for attempt := int64(1); attempt <= 2; attempt++ {
		p := &testPod{t: t, w: w, attempt: attempt, token: daemontest.Token(t, w.UID, attempt), command: []string{program, "--calls=12", "--delay=50ms", "--check"}}
		prepared := p.startPrepare()
		<-prepared.done
		p.startSidecar()
		p.startAgent()
		if attempt == 1 {
			w.Server.Until(t, "three calls are answered", w.UID, func(k *daemontest.Task) bool { return len(k.Active) > 7 })
			p.agent.cmd.Process.Signal(syscall.SIGTERM)
		}
		<-p.agent.done
		p.sidecar.cmd.Process.Signal(syscall.SIGTERM)
		<-p.sidecar.done
		want := map[int64]int{1: 128 + int(syscall.SIGTERM), 2: 0}[attempt]
		if got := p.agent.cmd.ProcessState.ExitCode(); got != want {
			t.Fatalf("attempt %d: exit code %d\n%s", attempt, got, p.agent.out.String())
		}
		trigger := map[int64]string{1: "Suspend", 2: "Completion"}[attempt]
		w.Server.Look(w.UID, func(k *daemontest.Task) {
			if c := k.Latest(); c.GetTrigger() != trigger || !c.GetDurable() {
				t.Errorf("%v", c)
			}
		})
	}
	if got := answered(w); !slices.Equal(got, calls(12)) {
		t.Errorf("%v", got)
	}
}

func TestFailureIsReported(t *testing.T) {
	w := daemontest.NewWorld(t, map[string]string{"a": "a"})
	w.Origin += "x"
	p := &testPod{t: t, w: w, attempt: 1, token: daemontest.Token(t, w.UID, 1)}
	c := p.startPrepare()
	<-c.done
	if r := p.result(); r.Reason != "RepositoryNotFound" || !r.Permanent || c.cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("%+v %v\n%s", r, c.cmd.ProcessState, c.out.String())
	}
	if strings.Contains(c.out.String(), w.UID+"/1") {
		t.Fatal("the token is in the log")
	}
}

// TestKilledAtRandom kills containers, pods, volumes and connections at random
// instants while an agent works that checks its memory against its files at
// each start. In the end each call stands once in the history, in order.
func TestKilledAtRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("CLEW_SEED"), 10, 64); err == nil {
		seed = s
	}
	strikes := 14
	if n, err := strconv.Atoi(os.Getenv("CLEW_STRIKES")); err == nil {
		strikes = n
	}
	t.Logf("CLEW_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	pause := func(most int) { time.Sleep(time.Duration(random.IntN(most)+1) * time.Millisecond) }

	w := daemontest.NewWorld(t, map[string]string{"a": "a", "b/c": "d"})
	w.Policy.EveryToolCalls = 3
	n := 20 + 2*strikes
	command := []string{replay(t), fmt.Sprintf("--calls=%d", n), "--delay=60ms", "--check"}
	var done []string
	for attempt := int64(1); ; attempt++ {
		p := &testPod{t: t, w: w, attempt: attempt, token: daemontest.Token(t, w.UID, attempt), command: command}
		prepared := p.startPrepare()
		for strikes > 0 && random.IntN(4) == 0 {
			strikes--
			done = append(done, "prepare")
			pause(400)
			prepared.end(random.IntN(3))
			prepared = p.startPrepare()
		}
		<-prepared.done
		if r := p.result(); r.Reason != "Prepared" {
			t.Fatalf("after %v: %+v\n%s", done, r, prepared.out.String())
		}
		p.startSidecar()
		p.startAgent()
		for lost := false; !lost && !p.agent.ended(); {
			if strikes == 0 {
				<-p.agent.done
				break
			}
			pause(700)
			strikes--
			what := []string{"sidecar", "sidecar", "pod", "pod", "volume", "server", "gitstore"}[random.IntN(7)]
			done = append(done, what)
			switch what {
			case "sidecar":
				p.sidecar.kill()
				pause(300)
				p.startSidecar()
			case "pod":
				p.kill()
				lost = true
			case "volume":
				p.kill()
				w.LoseVolume()
				lost = true
			case "server":
				w.Server.SetDown(true)
				time.AfterFunc(time.Duration(random.IntN(600))*time.Millisecond, func() { w.Server.SetDown(false) })
			case "gitstore":
				w.Git.SetDown(true)
				time.AfterFunc(time.Duration(random.IntN(600))*time.Millisecond, func() { w.Git.SetDown(false) })
			}
			if lost {
				break
			}
		}
		if !p.agent.ended() || p.agent.cmd.ProcessState.ExitCode() == -1 {
			continue
		}
		if code := p.agent.cmd.ProcessState.ExitCode(); code != 0 {
			t.Fatalf("after %v the agent ended with %d:\n%s\n%s", done, code, p.agent.out.String(), p.sidecar.out.String())
		}
		p.sidecar.cmd.Process.Signal(syscall.SIGTERM)
		<-p.sidecar.done
		break
	}
	t.Logf("%v", done)
	if got := answered(w); !slices.Equal(got, calls(n)) {
		t.Fatalf("after %v the answered calls are %v", done, got)
	}
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		durable := 0
		for number, c := range k.Checkpoints {
			if !c.GetDurable() {
				continue
			}
			durable++
			tree := w.Git.Run(t, "", "--git-dir", filepath.Join(w.Git.Dir, "store.git"), "rev-parse", fmt.Sprintf("refs/clew/%s/code/%d^{tree}", w.UID, number))
			if tree != c.GetTree() {
				t.Errorf("checkpoint %d is %s in the gitstore and should be %s", number, tree, c.GetTree())
			}
		}
		t.Logf("%d checkpoints, %d durable, %d records", len(k.Checkpoints), durable, len(k.Records))
	})
	w.Git.Run(t, "", "--git-dir", filepath.Join(w.Git.Dir, "store.git"), "fsck", "--full", "--strict")
}

// TestRewindKilledAtRandom kills prepare at random instants of a rewind of many
// files. When it comes to its end the tree is exact, and git says of it what it
// said then; and a rewind of the rewind brings everything back.
func TestRewindKilledAtRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("CLEW_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("CLEW_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	const files = 600
	origin := map[string]string{}
	for i := range files {
		origin[fmt.Sprintf("d%d/f%d", i%20, i)] = fmt.Sprintln("first", i)
	}
	w := daemontest.NewWorld(t, origin)
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	sidecar := w.Start(1)
	shim := w.Dial("s")
	say := func(id string) {
		shim.Call(id)
		shim.Recorded()
		shim.Next(wire.TypeThaw)
	}
	w.Write("d0/f0", "edited\n")
	w.Git.Run(t, w.Path(""), "add", "d0/f0")
	say("1")
	wantTree, wantStatus := w.Tree(), status(t, w)
	w.Git.Run(t, w.Path(""), "commit", "-q", "-m", "second")
	w.Git.Run(t, w.Path(""), "checkout", "-q", "-b", "work")
	for i := range files {
		w.Write(fmt.Sprintf("d%d/f%d", i%20, i), map[bool]string{true: "", false: fmt.Sprintln("second", i)}[i%3 == 0])
		w.Write(fmt.Sprintf("new%d/f%d", i%20, i), fmt.Sprintln("new", i))
	}
	say("2")
	lastTree, lastStatus := w.Tree(), status(t, w)
	shim.Send(wire.TypeExit, wire.Exit{})
	shim.Next(wire.TypeRelease)
	sidecar.End()
	last := int64(0)
	w.Server.Look(w.UID, func(k *daemontest.Task) { last = k.Latest().GetNumber() })

	attempt := int64(2)
	rewind := func(id string, to int64) {
		op := &daemonapi.Operation{Kind: daemonapi.OperationRewind, ID: id, Checkpoint: to, Scope: "Both", Preserve: "Discard"}
		for kills := 0; ; {
			p := &testPod{t: t, w: w, attempt: attempt, token: daemontest.Token(t, w.UID, attempt), op: op}
			c := p.startPrepare()
			if kills < 12 {
				time.Sleep(time.Duration(random.IntN(900)) * time.Millisecond)
				c.end(random.IntN(3))
				kills++
				attempt += int64(random.IntN(2)) // the same pod again, or another
				continue
			}
			<-c.done
			if r := p.result(); r.Reason != "Prepared" || r.Operation != id || r.ToCheckpoint != to {
				t.Fatalf("%+v\n%s", r, c.out.String())
			}
			attempt++
			return
		}
	}
	expect := func(what string, tree map[string]string, said string) {
		t.Helper()
		if d := cmp.Diff(tree, w.Tree()); d != "" {
			t.Fatalf("after %s (-want +got):\n%.2000s", what, d)
		}
		if d := cmp.Diff(said, status(t, w)); d != "" {
			t.Fatalf("after %s git status (-want +got):\n%.2000s", what, d)
		}
	}
	rewind("back", 1)
	expect("the rewind", wantTree, wantStatus)
	rewind("forth", last)
	expect("the rewind of the rewind", lastTree, lastStatus)
	if got := answered(w); !slices.Equal(got, []string{"1", "2"}) {
		t.Fatalf("%v", got)
	}
}

func status(t *testing.T, w *daemontest.World) string {
	t.Helper()
	return w.Git.Run(t, w.Path(""), "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=all")
}
