package gitstore

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/time/rate"

	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// slowRequest is a fetch whose body does not come. It ends with the test.
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

// inFlight waits until so many requests are being served.
func (s *testServer) inFlight(n int) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); testutil.ToFloat64(s.handler.metrics.inFlight) != float64(n); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%v requests are being served, want %d", testutil.ToFloat64(s.handler.metrics.inFlight), n)
		}
	}
}

func TestOneNamespaceCannotTakeAllPlaces(t *testing.T) {
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

// A task whose agent asks without end is told so in time, and keeps nobody else waiting.
func TestOneTaskAsksSoOftenAtMost(t *testing.T) {
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
		t.Errorf("one more: %d %s", status, answer)
	}
	before, _ := server.store.git.effort.rates("team")
	for range 20 {
		server.advertise(taskToken("busy", 1))
	}
	if after, _ := server.store.git.effort.rates("team"); after > before {
		t.Errorf("what waits for its pace counts for all of the namespace: %v, before %v", after, before)
	}
	for _, token := range []string{taskToken("other", 1), readerToken} {
		if status, answer := server.advertise(token); status == http.StatusServiceUnavailable {
			t.Errorf("%s: %d %s", token, status, answer)
		}
	}
}

func TestAClientThatStandsStillLosesItsPlace(t *testing.T) {
	server := newTestServer(t, Limits{ConcurrentFetches: 1, Patience: 200 * time.Millisecond})
	task := server.client(taskToken("fix", 1))
	task.commit("a", "x")
	task.push("HEAD:" + codeRef("fix", 1))
	server.slowRequest(readerToken)
	// It is served although the only place was taken, and for less than a place
	// is waited for.
	task.git("fetch", "--quiet", task.url, codeRef("fix", 1))
	server.inFlight(0)
}

func TestANamespaceGetsAQuarterOfThePlacesAndOneAtLeast(t *testing.T) {
	for all, share := range map[int]int{1: 1, 3: 1, 4: 1, 6: 2, 8: 2, 10: 3} {
		if s := newSlots(all); s.perNamespace != share {
			t.Errorf("of %d places a namespace gets %d, want %d", all, s.perNamespace, share)
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
	for deadline := time.Now().Add(time.Minute); !full.Contended(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody is seen to wait")
		}
	}
	pressed := &pressure{}
	p := pace{patience: time.Minute, pressure: pressed}
	seconds := func(p *pace, n, bytes int) {
		for range n {
			p.count(bytes, time.Now().Add(-time.Second))
		}
	}
	seconds(&p, 3600, 2*minRate)
	if p.left() != time.Minute {
		t.Errorf("%s left although nobody waits", p.left())
	}
	pressed.held.Store(full)
	if p.left() != time.Minute {
		t.Errorf("%s left when the others come", p.left())
	}
	seconds(&p, 300, 2*minRate)
	if p.left() > time.Second {
		t.Errorf("%s left to a client that keeps others waiting for five minutes", p.left())
	}
	quick := pace{patience: time.Minute, pressure: pressed}
	seconds(&quick, 1800, 2*contendedRate)
	if quick.left() != time.Minute {
		t.Errorf("%s left to a client that is quick", quick.left())
	}
	release()
	<-come
	if p.left() != time.Minute {
		t.Errorf("%s left when nobody waits any more", p.left())
	}
}

func TestAPaceAllowsForWhatMoves(t *testing.T) {
	p := pace{patience: time.Minute}
	if p.left() != time.Minute {
		t.Errorf("%s at first", p.left())
	}
	p.waited, p.moved = time.Hour, 3500*minRate
	if p.left() > time.Second {
		t.Errorf("%s left to a client that is slower than it may be", p.left())
	}
	p.moved = 4000 * minRate
	if p.left() != time.Minute {
		t.Errorf("%s left to a client that is slow, and comes along", p.left())
	}
}

// The sentence names the limit that git met, so that somebody can raise it.
func TestMemoryRefusalSaysWhatToDo(t *testing.T) {
	refused, ok := gitstoreapi.Parse("remote: fatal: Out of memory, malloc failed (tried to allocate 268435457 bytes)\nerror: remote unpack failed: index-pack abnormal exit")
	if !ok || !strings.Contains(refused.Message, "--git-memory-bytes") {
		t.Errorf("%v", refused)
	}
}
