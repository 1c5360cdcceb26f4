package gitstore

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// workedFor returns an effort in which the namespaces have long used the given numbers of
// processors.
func workedFor(rates map[string]float64) *effort {
	const processors = 2
	clock := time.Unix(1e9, 0)
	e := newEffort(func() time.Time { return clock }, processors)
	e.busy = func() bool { return true }
	for range 100 {
		clock = clock.Add(time.Second)
		for namespace, rate := range rates {
			e.add(namespace, time.Duration(rate*float64(time.Second)))
		}
	}
	return e
}

func TestGitIsNicerTheMoreItWorksForANamespace(t *testing.T) {
	for name, c := range map[string]struct{ rates, want map[string]float64 }{
		"nobody has used anything":            {want: map[string]float64{"a": 0}},
		"one alone":                           {rates: map[string]float64{"a": 1}, want: map[string]float64{"a": 19, "b": 0}},
		"both the same":                       {rates: map[string]float64{"a": 0.5, "b": 0.5}, want: map[string]float64{"a": 10, "b": 10}},
		"one nine times the other":            {rates: map[string]float64{"a": 1.8, "b": 0.2}, want: map[string]float64{"a": 17, "b": 2}},
		"a namespace that uses little":        {rates: map[string]float64{"a": 0.09}, want: map[string]float64{"a": 0}},
		"little, while others use even less":  {rates: map[string]float64{"a": 0.09, "b": 0.01}, want: map[string]float64{"a": 0, "b": 0}},
		"little, while another uses far more": {rates: map[string]float64{"a": 0.09, "b": 2}, want: map[string]float64{"a": 0, "b": 18}},
	} {
		t.Run(name, func(t *testing.T) {
			e := workedFor(c.rates)
			for namespace, nice := range c.want {
				gomega.NewWithT(t).Expect(e.nice(namespace)).To(gomega.BeEquivalentTo(nice), namespace)
			}
		})
	}
}

func TestANamespaceAboveItsShareWaitsWhileOthersHaveWork(t *testing.T) {
	for name, c := range map[string]struct {
		rates map[string]float64
		least time.Duration
		most  time.Duration
	}{
		"nothing used":                {},
		"alone":                       {rates: map[string]float64{"a": 2}},
		"within its share":            {rates: map[string]float64{"a": 0.12, "b": 0.1}},
		"twice its share, beside one": {rates: map[string]float64{"a": 0.25, "b": 0.1}, least: 9 * time.Second, most: 11 * time.Second},
		"16 times, beside very busy":  {rates: map[string]float64{"a": 2, "b": 2}, least: 39 * time.Second, most: 41 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			gomega.NewWithT(t).Expect(workedFor(c.rates).wait("a")).To(gomega.And(
				gomega.BeNumerically(">=", c.least), gomega.BeNumerically("<=", c.most)))
		})
	}
}

func TestNobodyWaitsWhileProcessorsAreNotShort(t *testing.T) {
	e := workedFor(map[string]float64{"a": 1, "b": 0.4})
	e.busy = func() bool { return false }
	gomega.NewWithT(t).Expect(e.wait("a")).To(gomega.BeZero())
}

// A container that is limited to one of sixteen processors does not make the node busy.
func TestANamespaceThatUsesMostOfTheContainersLimitWaitsOnAnIdleNode(t *testing.T) {
	e := workedFor(map[string]float64{"a": 1.5, "b": 0.1})
	e.busy = func() bool { return false }
	gomega.NewWithT(t).Expect(e.wait("a")).To(gomega.BeNumerically(">", 0))
}

func TestSmallChargesAddUp(t *testing.T) {
	g := gomega.NewWithT(t)
	clock := time.Unix(1e9, 0)
	e := newEffort(func() time.Time { return clock }, 2)
	for range 1000 {
		clock = clock.Add(50 * time.Millisecond)
		e.charge("a", requestTime)
		e.charge("b", requestTime)
	}
	const each = 0.08 // four milliseconds in fifty
	own, others := e.rates("a")
	g.Expect(own).To(gomega.BeNumerically("~", each, each/10))
	g.Expect(others).To(gomega.BeNumerically("~", each, each/10))
}

func TestUsedTimeDecaysAndIsForgotten(t *testing.T) {
	g := gomega.NewWithT(t)
	clock := time.Unix(1e9, 0)
	e := newEffort(func() time.Time { return clock }, 1)
	e.add("a", time.Second)
	before, _ := e.rates("a")
	clock = clock.Add(effortHalfLife)
	after, _ := e.rates("a")
	g.Expect(after).To(gomega.BeNumerically("~", before/2, before/100))
	clock = clock.Add(20 * effortHalfLife)
	e.add("b", time.Second)
	g.Expect(e.used).To(gomega.HaveLen(1))
}

// Shell commands that stand in for git. Each runs in a process group of its own.
const (
	spins = `while :; do :; done`
	// spinsAside spins in a child that nobody waits for.
	spinsAside = spins + ` & exec sleep 3600`
)

func startShell(t *testing.T, e *effort, namespace, script string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	command := exec.CommandContext(ctx, "/bin/sh", "-c", script)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	if err := e.start(namespace, command); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = command.Wait() // it was killed
	})
	return command
}

func TestARunningProcessCounts(t *testing.T) {
	for name, script := range map[string]string{"a process": spins, "a child that nobody waits for": spinsAside} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			e := newEffort(time.Now, 2)
			command := startShell(t, e, "busy", script)
			g.Eventually(func() int {
				e.sample()
				return niceness(t, command)
			}).WithTimeout(time.Minute).Should(gomega.Equal(maxNice))
			g.Expect(e.nice("small")).To(gomega.BeZero())
		})
	}
}

func TestAKilledProcessCounts(t *testing.T) {
	g := gomega.NewWithT(t)
	e := newEffort(time.Now, 2)
	command := startShell(t, e, "busy", spinsAside)
	g.Eventually(func() float64 {
		e.sample()
		own, _ := e.rates("busy")
		return own
	}).WithTimeout(time.Minute).Should(gomega.BeNumerically(">", freeRate))
	g.Expect(command.Cancel()).To(gomega.Succeed())
	_ = command.Wait() // it was killed
	e.ended(command)
	own, _ := e.rates("busy")
	g.Expect(own).To(gomega.BeNumerically(">", freeRate/2))
	g.Expect(e.running).To(gomega.BeEmpty())
}

func TestThePushOfANamespaceCounts(t *testing.T) {
	g := gomega.NewWithT(t)
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	task.commit("a", "x")
	task.push("HEAD:" + codeRef("fix", 1))
	own, others := server.store.git.effort.rates("team")
	g.Expect(own).To(gomega.BeNumerically(">", rateOf(2*requestTime)), "git's own time is charged as well as that of the two requests")
	g.Expect(others).To(gomega.BeNumerically("<", forgottenRate), "the probe of git at the start is charged to nobody")
	g.Expect(server.store.git.effort.running).To(gomega.BeEmpty())
}

// rateOf returns the rate of time that was used once, just now.
func rateOf(used time.Duration) float64 {
	now := time.Now()
	return usedTime{time: used, at: now}.rate(now)
}

func TestARequestWithoutWorkForGitCounts(t *testing.T) {
	g := gomega.NewWithT(t)
	server := newTestServer(t, Limits{})
	response, _ := server.request(http.MethodGet, "/team/r-none.git/info/refs?service=git-upload-pack", readerToken, nil, "")
	g.Expect(response.StatusCode).To(gomega.Equal(http.StatusNotFound))
	own, _ := server.store.git.effort.rates("team")
	g.Expect(own).To(gomega.BeNumerically("~", rateOf(requestTime), rateOf(requestTime)/10))
}

func TestADrainedPushCounts(t *testing.T) {
	const parts = 1000
	rest := func() *call {
		body := io.NopCloser(iotest.OneByteReader(io.LimitReader(endless{}, parts)))
		return &call{
			repository: Repository{Namespace: "team"}, duplex: true, request: httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil),
			body: &pacedBody{body: body, control: http.NewResponseController(httptest.NewRecorder()), pace: pace{patience: time.Minute}},
		}
	}
	t.Run("by the number of reads", func(t *testing.T) {
		g := gomega.NewWithT(t)
		server := newTestServer(t, Limits{})
		g.Expect(server.handler.drain(rest(), time.Minute)).To(gomega.BeTrue(), "whether it was read to its end")
		own, _ := server.store.git.effort.rates("team")
		g.Expect(own).To(gomega.BeNumerically("~", rateOf(parts*readTime), rateOf(parts*readTime)/10))
	})
	t.Run("and waits when it exceeds the namespace's share", func(t *testing.T) {
		g := gomega.NewWithT(t)
		waits := rest()
		g.Expect(overItsShare(t).handler.drain(waits, 100*time.Millisecond)).To(gomega.BeFalse(), "whether it was read to its end")
		left, err := io.Copy(io.Discard, waits.body.body)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(left).To(gomega.BeEquivalentTo(parts-drainStep), "one step was read before it had to wait")
	})
}

// overItsShare returns a server on which the namespace team has used more than its share.
func overItsShare(t *testing.T) *testServer {
	t.Helper()
	server := newTestServer(t, Limits{})
	useUpShare(server)
	return server
}

// useUpShare makes the namespace team exceed its share of processor time.
func useUpShare(server *testServer) {
	effort := server.store.git.effort
	effort.busy = func() bool { return true } // however quiet this machine is
	effort.charge("team", time.Hour)
	effort.charge("else", time.Second)
}

// A client whose connection is merely reset would assume an outage and send everything
// again.
func TestAPushThatIsNotReadToItsEndIsAnswered(t *testing.T) {
	server := newTestServer(t, Limits{})
	server.handler.drainTime, server.handler.slotTimeout = time.Nanosecond, time.Second
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength < 0 { // the request with the push's content
			server.handler.free = func() (int64, error) {
				useUpShare(server)
				return 0, nil
			}
		}
		server.handler.ServeHTTP(w, r)
	})
	task := server.client(taskToken("fix", 1))
	task.commit("a", noise(30_000_000))
	task.refusedPush(gitstoreapi.VolumeFull, "enlarge the volume", "HEAD:"+codeRef("fix", 1))
}

func TestOnlyANamespaceAboveItsShareIsRefused(t *testing.T) {
	g := gomega.NewWithT(t)
	server := newTestServer(t, Limits{})
	server.handler.slotTimeout = 50 * time.Millisecond
	task := server.client(taskToken("fix", 1))
	task.commit("a", "x")
	task.push("HEAD:" + codeRef("fix", 1))
	other := newClient(t, server.url("else", "r-other"), server.ca, "task:else:fix:uid-fix:1")
	other.commit("a", "x")
	other.push("HEAD:" + codeRef("fix", 1))

	server.store.git.effort.mu.Lock()
	server.store.git.effort.busy = func() bool { return true } // however quiet this machine is
	server.store.git.effort.add("team", time.Hour)
	server.store.git.effort.add("else", 500*time.Millisecond) // within its share, and not forgotten soon
	server.store.git.effort.mu.Unlock()
	_, stderr, err := task.try("push", task.url, "HEAD:"+codeRef("fix", 2))
	g.Expect(err).To(gomega.HaveOccurred())
	g.Expect(stderr).To(gomega.ContainSubstring("503"))
	other.push("HEAD:" + codeRef("fix", 2))
}

// endless is a reader of zeros without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func niceness(t *testing.T, command *exec.Cmd) int {
	t.Helper()
	priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, command.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	const systemCallCountsDownFrom = 20
	return systemCallCountsDownFrom - priority
}

func TestTheNameOfAProcessMayContainAnything(t *testing.T) {
	g := gomega.NewWithT(t)
	line := "12 (a) b (c) S 1 77 77 0 -1 4194304 5 0 0 0 100 20 3 4 20 0 1 0 5 6 7"
	group, used, ok := readStat([]byte(line))
	g.Expect(ok).To(gomega.BeTrue())
	g.Expect(group).To(gomega.Equal(77))
	g.Expect(used).To(gomega.Equal(1270 * time.Millisecond))
	_, _, ok = readStat([]byte(strings.TrimSuffix(line, " 3 4 20 0 1 0 5 6 7")))
	g.Expect(ok).To(gomega.BeFalse())
}
