package crash_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/clew-dev/clew/internal/history/postgres"
)

// manager is the manager's program. When it has been killed, another one follows in the same
// pod, as the kubelet does it.
type manager struct {
	mu      sync.Mutex
	process *os.Process
	stopped bool
	// starts is how often the program was started.
	starts int

	command func() *exec.Cmd
	done    chan struct{}
	failed  error
}

// endpoints are where the manager reaches the others.
type endpoints struct {
	kubernetes, dsn, gitstore string
}

// startManager starts the program until the test ends.
func startManager(t testing.TB, namespace string, at endpoints) *manager {
	t.Helper()
	folder := t.TempDir()
	kubeconfig := filepath.Join(folder, "kubeconfig")
	config := clientcmdapi.NewConfig()
	config.Clusters["it"] = &clientcmdapi.Cluster{Server: at.kubernetes}
	config.Contexts["it"] = &clientcmdapi.Context{Cluster: "it"}
	config.CurrentContext = "it"
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(folder, "token")
	if err := os.WriteFile(token, []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(folder, "log"))
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{done: make(chan struct{}), command: func() *exec.Cmd {
		cmd := exec.Command(program, "--leader-elect", "--leader-elect-namespace="+namespace, "--requesters-are-stamped",
			"--metrics-bind-address=0", "--health-probe-bind-address=0",
			"--daemon-image=clew:test", "--server-url=https://server", "--gitstore-url="+at.gitstore, "--gitstore-token-file="+token)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, postgres.DSNEnv+"="+at.dsn, "POD_NAME=manager-0", "POD_NAMESPACE="+namespace)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd
	}}
	go m.keep()
	t.Cleanup(func() {
		m.stop()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("the manager's log:\n%s", text[max(0, len(text)-8000):])
		}
		_ = log.Close()
		if m.failed != nil {
			t.Error(m.failed)
		}
	})
	return m
}

// keep starts the program each time that it was killed.
func (m *manager) keep() {
	defer close(m.done)
	for {
		m.mu.Lock()
		if m.stopped {
			m.mu.Unlock()
			return
		}
		cmd := m.command()
		err := cmd.Start()
		m.process = cmd.Process
		m.starts++
		m.mu.Unlock()
		if err == nil {
			err = cmd.Wait()
		}
		killed := &exec.ExitError{}
		if !errors.As(err, &killed) || killed.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			m.failed = fmt.Errorf("the manager ended by itself: %w", cmp.Or(err, errors.New("without an error")))
			return
		}
	}
}

// kill kills the program.
func (m *manager) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.process.Kill()
}

// stop ends it for good.
func (m *manager) stop() {
	m.mu.Lock()
	m.stopped = true
	if m.process != nil {
		_ = m.process.Kill()
	}
	m.mu.Unlock()
	<-m.done
}
