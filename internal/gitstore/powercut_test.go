package gitstore

import (
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/testing/powercut"
)

// cutPower kills the server and its git processes at one instant, and discards everything
// that was not synced.
func (s *serverProcess) cutPower(disk *powercut.Disk) {
	all := []int{s.command.Process.Pid}
	_ = syscall.Kill(all[0], syscall.SIGSTOP)
	all = append(all, descendants(all[0])...)
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // the process may just have exited
	}
	disk.Cut(func() {
		for _, pid := range slices.Backward(all) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = s.command.Wait() // "signal: killed"
	})
}

// TestPowerCutsLoseNoAcknowledgedPush cuts the power of the gitstore's disk at
// random instants of many pushes.
func TestPowerCutsLoseNoAcknowledgedPush(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: make test runs it")
	}
	const pushers = 3
	seed, cuts := uint64(time.Now().UnixNano()), 6
	if s, err := strconv.ParseUint(os.Getenv("CLEW_SEED"), 10, 64); err == nil {
		seed = s
	}
	if os.Getenv("CLEW_SOAK") == "1" {
		cuts = 100
	}
	t.Logf("CLEW_SEED=%d", seed)
	random := mathrand.New(mathrand.NewPCG(seed, 4))

	disk := powercut.New(t, 256<<20)
	server := &serverProcess{t: t, folder: filepath.Join(disk.Path(), "gitstore")}
	if err := os.Mkdir(server.folder, 0o755); err != nil {
		t.Fatal(err)
	}
	server.start()
	t.Cleanup(func() { server.kill(true) })
	bare := filepath.Join(server.folder, "root", "namespaces", "team", repository+".git")
	var stop atomic.Bool
	var acknowledged atomic.Int64
	var wait sync.WaitGroup
	all := make([]*pusher, pushers)
	for i := range all {
		name := fmt.Sprintf("task%d", i)
		all[i] = &pusher{name: name, client: newClient(t, "", filepath.Join(server.folder, "ca.pem"), taskToken(name, 1))}
		wait.Go(func() {
			if err := all[i].run(server, &stop, &acknowledged); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	for range cuts {
		awaitAcknowledgement(t, &acknowledged, random)
		server.cutPower(disk)
		server.start()
	}
	stop.Store(true)
	wait.Wait()

	fsck(t, bare)
	total := 0
	for _, p := range all {
		total += len(p.acked)
		for i, commit := range p.acked {
			for _, ref := range []string{codeRef(p.name, i+1), stateRef(p.name, i+1)} {
				got, err := exec.Command("git", "--git-dir="+bare, "rev-parse", "--verify", "--quiet", ref).Output()
				if err != nil || strings.TrimSpace(string(got)) != commit {
					t.Errorf("%s points to %q (%v), but %s was acknowledged", ref, got, err, commit)
				}
			}
		}
	}
	t.Logf("%d checkpoints acknowledged through %d power cuts", total, cuts)
	t.Logf("soak: %d power cuts: the gitstore's disk", cuts)
}
