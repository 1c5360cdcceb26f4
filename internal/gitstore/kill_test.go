package gitstore

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/durable"
)

// serveForTest is the environment variable with the folder of a server that a test starts
// as a process of its own: the folder contains root/, and the server writes ca.pem and
// address there.
const serveForTest = "CLEW_TEST_SERVE"

// serveUntilKilled runs the server process. It ends when its standard input does, which
// the test that started it holds open.
func serveUntilKilled(folder string) error {
	certificate, authority, err := selfSigned()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "ca.pem"), authority, 0o600); err != nil {
		return err
	}
	if err := durable.WriteShared(filepath.Join(folder, "address"), temporaryFiles, []byte(listener.Addr().String()), 0o600); err != nil {
		return err
	}
	options := Options{
		Root: filepath.Join(folder, "root"), MetricsBindAddress: "0", HealthProbeBindAddress: "0",
		MaintenanceInterval: time.Hour, MaxPacks: 4, ShutdownGracePeriod: 10 * time.Second,
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	logs, err := os.OpenFile(filepath.Join(folder, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return serve(ctx, options, wordOfToken{}, testHook(), listener, fixedCertificate{certificate}, funcr.NewJSON(func(line string) { fmt.Fprintln(logs, line) }, funcr.Options{}))
}

// fixedCertificate never changes.
type fixedCertificate struct{ certificate tls.Certificate }

func (c fixedCertificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return &c.certificate, nil
}
func (fixedCertificate) Start(context.Context) error { return nil }

func selfSigned() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// serverProcess is a gitstore in a process of its own.
type serverProcess struct {
	t       *testing.T
	folder  string
	command *exec.Cmd
}

// start starts the process and waits until it serves requests.
func (s *serverProcess) start() {
	s.t.Helper()
	_ = os.Remove(filepath.Join(s.folder, "address")) // does not exist the first time
	s.command = exec.Command(testHook()[0])
	s.command.Env = append(os.Environ(), serveForTest+"="+s.folder)
	s.command.Stderr = os.Stderr
	if _, err := s.command.StdinPipe(); err != nil { // Wait closes it
		s.t.Fatal(err)
	}
	if err := s.command.Start(); err != nil {
		s.t.Fatal(err)
	}
	gomega.NewWithT(s.t).Eventually(func() error {
		address, err := os.ReadFile(filepath.Join(s.folder, "address"))
		if err != nil {
			return err
		}
		response, err := insecureClient().Get("https://" + string(address) + "/readyz")
		if err != nil {
			return err
		}
		return response.Body.Close()
	}).WithTimeout(2*time.Minute).WithPolling(time.Millisecond).Should(gomega.Succeed(), "the server answers")
}

func (s *serverProcess) url() string {
	address, _ := os.ReadFile(filepath.Join(s.folder, "address")) // missing while the server restarts
	return "https://" + string(address) + "/team/" + repository + ".git"
}

// kill kills the server. If all is set it also kills its git processes, as the end of a
// container does; otherwise those continue as orphans.
func (s *serverProcess) kill(all bool) {
	victims := []int{s.command.Process.Pid}
	if all {
		victims = append(victims, descendants(s.command.Process.Pid)...)
	}
	for _, pid := range victims {
		_ = syscall.Kill(pid, syscall.SIGKILL) // the process may just have exited
	}
	_ = s.command.Wait() // "signal: killed"
}

// descendants returns the processes below one, from /proc.
func descendants(root int) []int {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
		parent, _ := strconv.Atoi(fields[1])
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		children[parent] = append(children[parent], pid)
	}
	var found []int
	for next := []int{root}; len(next) > 0; next = next[1:] {
		found = append(found, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	return found
}

// pusher pushes one checkpoint after another, and retries each until it is acknowledged,
// as the daemon does.
type pusher struct {
	*client
	name  string
	acked []string
}

func (p *pusher) run(server *serverProcess, stop *atomic.Bool, acknowledged *atomic.Int64) error {
	for number := 1; !stop.Load(); number++ {
		noise := make([]byte, 150_000)
		_, _ = rand.Read(noise) // never fails
		p.commit("noise", hex.EncodeToString(noise))
		head, _, _ := p.try("rev-parse", "HEAD")
		for {
			_, stderr, err := p.try("push", "--quiet", "--atomic", server.url(), "HEAD:"+codeRef(p.name, number), "HEAD:"+stateRef(p.name, number))
			if err == nil {
				p.acked = append(p.acked, head)
				acknowledged.Add(1)
				break
			}
			if containsAny(stderr, "already", "RefImmutable", ".lock") {
				return fmt.Errorf("checkpoint %d cannot be pushed again: %s", number, stderr)
			}
			if stop.Load() {
				return nil
			}
		}
	}
	return nil
}

// awaitAcknowledgement waits until a pusher has had another push acknowledged, or has
// failed, and then for a random part of 150 ms.
func awaitAcknowledgement(t *testing.T, acknowledged *atomic.Int64, random *mathrand.Rand) {
	t.Helper()
	before := acknowledged.Load()
	gomega.NewWithT(t).Eventually(func() bool { return acknowledged.Load() > before || t.Failed() }).
		WithTimeout(2*time.Minute).WithPolling(time.Millisecond).Should(gomega.BeTrue(), "a push is acknowledged")
	// Time is the subject: the server must be able to end at any instant of a push.
	time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond)
}

func TestKilledServerLosesNothingAcknowledged(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: make test runs it")
	}
	const rounds, pushers = 14, 3
	server := &serverProcess{t: t, folder: t.TempDir()}
	server.start()
	bare := filepath.Join(server.folder, "root", "namespaces", "team", repository+".git")
	t.Cleanup(func() {
		server.kill(true)
		if alone, err := waitForOrphans(context.Background(), bare); err == nil {
			_ = alone.Close() // nothing was written
		}
	})
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
	random := mathrand.New(mathrand.NewPCG(7, uint64(rounds)))
	for round := range rounds {
		awaitAcknowledgement(t, &acknowledged, random)
		server.kill(round%2 == 0)
		server.start()
	}
	stop.Store(true)
	wait.Wait()
	server.kill(true)

	alone, err := waitForOrphans(t.Context(), bare)
	if err != nil {
		t.Fatal(err)
	}
	fsck(t, bare)
	total := 0
	for _, p := range all {
		for i, commit := range p.acked {
			for _, ref := range []string{codeRef(p.name, i+1), stateRef(p.name, i+1)} {
				got, err := exec.Command("git", "--git-dir="+bare, "rev-parse", "--verify", "--quiet", ref).Output()
				if err != nil || strings.TrimSpace(string(got)) != commit {
					t.Errorf("%s points to %q (%v), but %s was acknowledged", ref, got, err, commit)
				}
			}
		}
		total += len(p.acked)
	}
	t.Logf("%d checkpoints acknowledged through %d kills", total, rounds)
	if err := alone.Close(); err != nil {
		t.Fatal(err)
	}
	server.start()
	if left := leftovers(t, bare); len(left) > 0 {
		t.Errorf("the start left leftovers of killed processes: %q", left)
	}
	all[0].git("push", "--quiet", server.url(), "HEAD:refs/heads/clew/task0/after")
}

// waitForOrphans waits until git processes that outlived a killed server have exited, as
// they do on their own, and keeps others out until the file is closed.
func waitForOrphans(ctx context.Context, bare string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return openLocked(ctx, Repository{Path: bare}.useLock(), syscall.LOCK_EX)
}

// leftovers lists the files of a repository that only killed processes leave.
func leftovers(t *testing.T, bare string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"objects/tmp_*", "objects/pack/tmp_*", "objects/pack/.tmp-*", "objects/pack/*.keep", "objects/*/tmp_obj_*", "*.lock", "refs/clew/*/*/*.lock", "packed-refs.new"} {
		paths, err := filepath.Glob(filepath.Join(bare, pattern))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, paths...)
	}
	return found
}
