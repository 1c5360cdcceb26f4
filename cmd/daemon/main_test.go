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
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// TestMain runs the daemon itself, or a fake agent, in the processes that the tests start.
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

// testPod runs a task's containers as processes, which a test can kill.
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

// end ends a process in one of three ways in which a container ends: the kernel kills it
// alone, it is asked to end and then killed, or its children are killed before it.
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

// result returns the result that prepare wrote.
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

// expectExit waits for the process to end, and compares its exit code.
func (c *process) expectExit(t *testing.T, what string, want int) {
	t.Helper()
	<-c.done
	if got := c.cmd.ProcessState.ExitCode(); got != want {
		t.Fatalf("%s ended with %v, want exit code %d\n%.3000s", what, c.cmd.ProcessState, want, c.out.String())
	}
}

// startAgent starts the agent once the sidecar is ready.
func (p *testPod) startAgent() {
	p.t.Helper()
	gomega.NewWithT(p.t).Eventually(func() error { return socket.Ready(p.w.RunDir) }).WithTimeout(30*time.Second).
		Should(gomega.Succeed(), func() string { return "the sidecar does not become ready:\n" + p.sidecar.out.String() })
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

// killAgent kills the agent's container. In a real one the kernel kills the processes that
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

// answered returns the ids of the calls with a result in the conversation, in order.
func answered(w *daemontest.World) (ids []string) {
	for _, line := range w.Lines() {
		if id, ok := strings.CutPrefix(line, "result "); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// expectAnswered compares the calls with a result in the conversation.
func expectAnswered(t *testing.T, w *daemontest.World, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, answered(w)); diff != "" {
		t.Errorf("answered calls (-want +got):\n%s", diff)
	}
}

// expectLatest compares the trigger and durability of the newest checkpoint, and its number
// unless that is 0.
func expectLatest(t *testing.T, w *daemontest.World, number int64, trigger string) {
	t.Helper()
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		c := k.Latest()
		if number != 0 && c.GetNumber() != number {
			t.Errorf("the newest checkpoint is %d, want %d", c.GetNumber(), number)
		}
		if c.GetTrigger() != trigger {
			t.Errorf("the newest checkpoint has the trigger %q, want %q", c.GetTrigger(), trigger)
		}
		if !c.GetDurable() {
			t.Errorf("the newest checkpoint is not durable: %v", c)
		}
	})
}

// calls returns the ids of the first n calls of the demo's agent.
func calls(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("call-%d", i+1))
	}
	return ids
}

// TestAPod lets one pod complete its work undisturbed.
func TestAPod(t *testing.T) {
	w := daemontest.NewWorld(t, map[string]string{"a": "a"})
	w.Policy.EveryToolCalls = 4
	p := &testPod{t: t, w: w, attempt: 1, token: daemontest.Token(t, w.UID, 1), command: []string{replay(t), "--calls=10", "--delay=20ms", "--check"}}
	p.startPrepare().expectExit(t, "prepare", 0)
	if r := p.result(); r.Reason != "Prepared" {
		t.Fatalf("prepare returned %+v, want Prepared", r)
	}
	p.startSidecar()
	p.startAgent()
	p.agent.expectExit(t, "the agent", 0)
	if !strings.Contains(p.agent.out.String(), `"Done."`) {
		t.Fatalf("the agent's log has no final answer:\n%s", p.agent.out.String())
	}
	p.sidecar.cmd.Process.Signal(syscall.SIGTERM)
	p.sidecar.expectExit(t, "the sidecar", 0)
	expectLatest(t, w, 3, "Completion")
	expectAnswered(t, w, calls(10))
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
		p.agent.expectExit(t, fmt.Sprintf("the agent of attempt %d", attempt), map[int64]int{1: 128 + int(syscall.SIGTERM), 2: 0}[attempt])
		expectLatest(t, w, 0, map[int64]string{1: "Suspend", 2: "Completion"}[attempt])
	}
	expectAnswered(t, w, calls(12))
}

func TestFailureIsReported(t *testing.T) {
	w := daemontest.NewWorld(t, map[string]string{"a": "a"})
	w.Origin += "x"
	p := &testPod{t: t, w: w, attempt: 1, token: daemontest.Token(t, w.UID, 1)}
	c := p.startPrepare()
	c.expectExit(t, "prepare", 1)
	r := p.result()
	if r.Reason != "RepositoryNotFound" {
		t.Errorf("the reason is %q, want RepositoryNotFound: %s", r.Reason, r.Message)
	}
	if !r.Permanent {
		t.Errorf("the failure is not permanent: %+v", r)
	}
	if strings.Contains(c.out.String(), w.UID+"/1") {
		t.Fatal("the token is in the log")
	}
}

// TestKilledAtRandom kills containers and pods, and loses volumes and connections, at random
// instants while an agent works that compares its memory with its files at each start. In
// the end each call is in the history once, in order.
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
	pause := func(most int) { time.Sleep(time.Duration(random.IntN(most)+1) * time.Millisecond) } // the random instant is the subject

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
			t.Fatalf("after %v prepare returned %+v\n%s", done, r, prepared.out.String())
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
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
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

// TestRewindKilledAtRandom kills prepare at random instants of a rewind of many files. When
// the rewind is complete the tree is exact and git status is what it was at the checkpoint;
// and rewinding the rewind restores everything.
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
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { last = k.Latest().GetNumber() })

	attempt := int64(2)
	rewind := func(id string, to int64) {
		op := &daemonapi.Operation{Kind: daemonapi.OperationRewind, ID: id, Checkpoint: to, Scope: "Both", Preserve: "Discard"}
		for kills := 0; ; {
			p := &testPod{t: t, w: w, attempt: attempt, token: daemontest.Token(t, w.UID, attempt), op: op}
			c := p.startPrepare()
			if kills < 12 {
				time.Sleep(time.Duration(random.IntN(900)) * time.Millisecond) // the random instant is the subject
				c.end(random.IntN(3))
				kills++
				attempt += int64(random.IntN(2)) // the same pod again, or another
				continue
			}
			<-c.done
			r := p.result()
			want := daemonapi.PrepareResult{Reason: "Prepared", Operation: id, ToCheckpoint: to}
			got := daemonapi.PrepareResult{Reason: r.Reason, Operation: r.Operation, ToCheckpoint: r.ToCheckpoint}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("prepare returned %+v (-want +got):\n%s\n%s", r, diff, c.out.String())
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
	expectAnswered(t, w, []string{"1", "2"})
}

func status(t *testing.T, w *daemontest.World) string {
	t.Helper()
	return w.Git.Run(t, w.Path(""), "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=all")
}
