package gitstore

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/time/rate"

	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// slowRequest sends a fetch whose body never arrives. It ends with the test.
func (s *testServer) slowRequest(token string) {
	body, keep := io.Pipe()
	s.t.Cleanup(func() { _ = keep.CloseWithError(errors.New("the test has ended")) })
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url("team", repository)+"/git-upload-pack", body)
	if err != nil {
		s.t.Fatal(err)
	}
	r.SetBasicAuth("x", token)
	r.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	go func() {
		if response, err := s.Client().Do(r); err == nil {
			response.Body.Close()
		}
	}()
}

// inFlight waits until n requests are being served.
func (s *testServer) inFlight(n int) {
	s.t.Helper()
	gomega.NewWithT(s.t).Eventually(func() float64 { return testutil.ToFloat64(s.handler.metrics.inFlight) }).
		WithTimeout(time.Minute).Should(gomega.BeEquivalentTo(n), "requests that are being served")
}

func TestOneNamespaceCannotTakeAllSlots(t *testing.T) {
	server := newTestServer(t, Limits{ConcurrentFetches: 8, ConcurrentPushes: 2})
	task := server.client(taskToken("fix", 1))
	task.commit("a", "x")
	task.push("HEAD:" + codeRef("fix", 1))
	for range 8 {
		server.slowRequest(readerToken)
	}
	server.inFlight(2) // a quarter
	other := newClient(t, server.url("else", "r-other"), server.ca, "task:else:fix:uid-fix:1")
	other.commit("a", "x")
	other.push("HEAD:" + codeRef("fix", 1))
	other.git("fetch", "--quiet", other.url, codeRef("fix", 1))
}

// A task that sends requests without end is refused, and delays nobody else.
func TestOneTaskIsRateLimited(t *testing.T) {
	server := newTestServer(t, Limits{})
	server.handler.limits.RequestsPerSecond = 1
	server.handler.rates = fairshare.NewRates(rate.Every(time.Hour), burstSeconds)
	server.handler.slotTimeout = 100 * time.Millisecond
	for i := range burstSeconds {
		if status, answer := server.advertise(taskToken("busy", 1)); status != http.StatusOK {
			t.Fatalf("request %d: %d %s", i, status, answer)
		}
	}
	status, answer := server.advertise(taskToken("busy", 1))
	if status != http.StatusServiceUnavailable || !strings.Contains(answer, "more than 1 requests per second") {
		t.Errorf("the request beyond the limit: got %d %s, want 503 naming the limit", status, answer)
	}
	before, _ := server.store.git.effort.rates("team")
	for range 20 {
		server.advertise(taskToken("busy", 1))
	}
	if after, _ := server.store.git.effort.rates("team"); after > before {
		t.Errorf("requests that wait for their rate limit are charged to the namespace: its rate is %v, was %v before", after, before)
	}
	for _, token := range []string{taskToken("other", 1), readerToken} {
		if status, answer := server.advertise(token); status == http.StatusServiceUnavailable {
			t.Errorf("another caller, %s: got %d %s", token, status, answer)
		}
	}
}

func TestAStalledClientLosesItsSlot(t *testing.T) {
	server := newTestServer(t, Limits{ConcurrentFetches: 1, Patience: 200 * time.Millisecond})
	task := server.client(taskToken("fix", 1))
	task.commit("a", "x")
	task.push("HEAD:" + codeRef("fix", 1))
	server.slowRequest(readerToken)
	// It is served although the only slot was taken, and before its wait for a slot times
	// out.
	task.git("fetch", "--quiet", task.url, codeRef("fix", 1))
	server.inFlight(0)
}

func TestANamespaceGetsAQuarterOfTheSlotsAndAtLeastOne(t *testing.T) {
	for all, share := range map[int]int{1: 1, 3: 1, 4: 1, 6: 2, 8: 2, 10: 3} {
		if s := newSlots(all); s.perNamespace != share {
			t.Errorf("of %d slots a namespace gets %d, want %d", all, s.perNamespace, share)
		}
	}
}

func TestASlowClientHasToHurryWhileOthersWait(t *testing.T) {
	full := fairshare.NewSlots(1)
	release, err := full.Take(t.Context(), fairshare.Share{Of: "a", Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	come := make(chan func(), 1)
	go func() {
		if other, err := full.Take(t.Context(), fairshare.Share{Of: "b", Slots: 1}); err == nil {
			come <- other
		}
	}()
	gomega.NewWithT(t).Eventually(full.Contended).WithTimeout(time.Minute).Should(gomega.BeTrue(), "b waits for a slot")
	pressed := &pressure{}
	p := pace{patience: time.Minute, pressure: pressed}
	seconds := func(p *pace, n, bytes int) {
		for range n {
			p.count(bytes, time.Now().Add(-time.Second))
		}
	}
	seconds(&p, 3600, 2*minRate)
	if p.left() != time.Minute {
		t.Errorf("%s left while nobody waits, want a minute", p.left())
	}
	pressed.held.Store(full)
	if p.left() != time.Minute {
		t.Errorf("%s left when others begin to wait, want a minute", p.left())
	}
	seconds(&p, 300, 2*minRate)
	if p.left() > time.Second {
		t.Errorf("%s left to a client that has kept others waiting for five minutes, want a second at most", p.left())
	}
	quick := pace{patience: time.Minute, pressure: pressed}
	seconds(&quick, 1800, 2*contendedRate)
	if quick.left() != time.Minute {
		t.Errorf("%s left to a fast client, want a minute", quick.left())
	}
	release()
	<-come
	if p.left() != time.Minute {
		t.Errorf("%s left when nobody waits any more, want a minute", p.left())
	}
}

func TestAPaceDependsOnBytesMoved(t *testing.T) {
	p := pace{patience: time.Minute}
	if p.left() != time.Minute {
		t.Errorf("%s left initially, want a minute", p.left())
	}
	p.waited, p.moved = time.Hour, 3500*minRate
	if p.left() > time.Second {
		t.Errorf("%s left to a client below the minimum rate, want a second at most", p.left())
	}
	p.moved = 4000 * minRate
	if p.left() != time.Minute {
		t.Errorf("%s left to a slow client above the minimum rate, want a minute", p.left())
	}
}

// The message names the flag of the limit, so that somebody can raise it.
func TestMemoryRefusalSaysWhatToDo(t *testing.T) {
	refused, ok := gitstoreapi.Parse("remote: fatal: Out of memory, malloc failed (tried to allocate 268435457 bytes)\nerror: remote unpack failed: index-pack abnormal exit")
	if !ok || !strings.Contains(refused.Message, "--git-memory-bytes") {
		t.Errorf("the refusal %v does not name --git-memory-bytes", refused)
	}
}
