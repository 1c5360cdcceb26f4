package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/testing/powercut"
)

// TestPowerCutsLoseNothingAcknowledged cuts the power of the volume's disk at random
// instants, while prepare or an agent works on it. What the server and the gitstore have
// accepted remains true: in the end each call is in the history once, in order, and each
// durable checkpoint is what its record says.
//
// The agent compares its files with its memory at each start, so the test fails if a cut
// leaves a worktree or a home behind the conversation. Files written by calls without an
// answer may be torn, since the agent syncs nothing: the agent repairs them.
func TestPowerCutsLoseNothingAcknowledged(t *testing.T) {
	seed, cuts := uint64(time.Now().UnixNano()), 6
	if s, err := strconv.ParseUint(os.Getenv("CLEW_SEED"), 10, 64); err == nil {
		seed = s
	}
	if os.Getenv("CLEW_SOAK") == "1" {
		cuts = 100
	}
	t.Logf("CLEW_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 3))
	all := cuts

	w := daemontest.NewWorld(t, map[string]string{"a": "a", "b/c": "d"})
	disk := powercut.New(t, 128<<20)
	w.Root = disk.Path()
	w.Policy.EveryToolCalls = 3
	n := 20 + 4*cuts
	// Nothing holds the agent back while its answers wait for a slow disk.
	command := []string{replay(t), fmt.Sprintf("--calls=%d", n), "--delay=60ms", "--check", "--torn"}
	for attempt := int64(1); ; attempt++ {
		p := &testPod{t: t, w: w, attempt: attempt, token: daemontest.Token(t, w.UID, attempt), command: command}
		prepared := p.startPrepare()
		if cuts > 0 && random.IntN(4) == 0 {
			cuts--
			time.Sleep(time.Duration(random.IntN(600)) * time.Millisecond) // the random instant is the subject
			cutPower(disk, prepared)
			continue
		}
		<-prepared.done
		if r := p.result(); r.Reason != "Prepared" {
			t.Fatalf("with %d cuts to come prepare returned %+v\n%s", cuts, r, prepared.out.String())
		}
		p.startSidecar()
		p.startAgent()
		if cuts > 0 {
			cuts--
			time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond) // the random instant is the subject
			cutPower(disk, p.agent, p.sidecar)
			continue
		}
		<-p.agent.done
		if code := p.agent.cmd.ProcessState.ExitCode(); code != 0 {
			t.Fatalf("the agent exited with %d, want 0:\n%s\n%s", code, p.agent.out.String(), p.sidecar.out.String())
		}
		p.sidecar.cmd.Process.Signal(syscall.SIGTERM)
		<-p.sidecar.done
		break
	}
	expectAnswered(t, w, calls(n))
	expectDurable(t, w)
	t.Logf("soak: %d power cuts: a task's volume", all)
}

// cutPower ends processes and their descendants at one instant, together with
// everything that was not synced.
func cutPower(disk *powercut.Disk, processes ...*process) {
	var all []int
	for _, p := range processes {
		all = append(all, p.cmd.Process.Pid)
		_ = p.cmd.Process.Signal(syscall.SIGSTOP) // it may just have ended
	}
	for i := 0; i < len(all); i++ {
		for _, child := range children(all[i]) {
			all = append(all, child)
			_ = syscall.Kill(child, syscall.SIGSTOP)
		}
	}
	disk.Cut(func() {
		for _, pid := range slices.Backward(all) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		for _, p := range processes {
			<-p.done
		}
	})
}

// expectDurable compares every durable checkpoint with what the gitstore holds.
func expectDurable(t *testing.T, w *daemontest.World) {
	t.Helper()
	store := strings.Replace(w.Store, w.Git.URL, w.Git.Dir, 1)
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		durable := 0
		for number, c := range k.Checkpoints {
			if !c.GetDurable() {
				continue
			}
			durable++
			tree := w.Git.Run(t, "", "--git-dir", store, "rev-parse", fmt.Sprintf("refs/clew/%s/code/%d^{tree}", w.UID, number))
			if tree != c.GetTree() {
				t.Errorf("checkpoint %d is %s in the gitstore and should be %s", number, tree, c.GetTree())
			}
		}
		t.Logf("%d checkpoints, %d durable, %d records", len(k.Checkpoints), durable, len(k.Records))
	})
	w.Git.Run(t, "", "--git-dir", store, "fsck", "--full", "--strict")
}
