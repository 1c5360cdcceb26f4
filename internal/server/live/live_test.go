package live

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

// bus delivers each message to all brokers, in order.
type bus struct {
	mu      sync.Mutex
	brokers []*Broker
	sent    []history.LiveMessage
	err     error
}

func (b *bus) NotifyLive(_ context.Context, m history.LiveMessage) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	b.sent = append(b.sent, m)
	for _, broker := range b.brokers {
		broker.handle(m)
	}
	return nil
}

func (b *bus) ListenLive(ctx context.Context, _ func(history.LiveMessage)) error {
	<-ctx.Done()
	return ctx.Err()
}

// requests returns how many requests were sent.
func (b *bus) requests() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.sent {
		if !m.Answered {
			n++
		}
	}
	return n
}

// two returns two servers on one bus.
func two() (*bus, *Broker, *Broker) {
	b := &bus{}
	b.brokers = []*Broker{New(b), New(b)}
	return b, b.brokers[0], b.brokers[1]
}

// outcome is what Publish returned.
type outcome struct {
	Commit string
	Err    error
}

func publish(b *Broker, uid string) <-chan outcome {
	c := make(chan outcome, 1)
	go func() {
		commit, err := b.Publish(context.Background(), uid)
		c <- outcome{commit, err}
	}()
	return c
}

func TestADaemonAtAnotherServerIsAskedOnce(t *testing.T) {
	g := gomega.NewWithT(t)
	sent, asked, other := two()
	ids, leave := other.Requests("a")
	defer leave()
	strangers, leaveThem := other.Requests("b")
	defer leaveThem()
	first := publish(asked, "a")
	var id string
	g.Eventually(ids).Should(gomega.Receive(&id))
	g.Expect(other.Answer(t.Context(), history.LiveMessage{TaskUID: "b", ID: id, Commit: "f00"})).To(gomega.Succeed(), "an answer of another task is ignored")
	g.Expect(other.Answer(t.Context(), history.LiveMessage{TaskUID: "a", ID: "another", Commit: "f00"})).To(gomega.Succeed(), "as is one of another request")
	g.Expect(other.Answer(t.Context(), history.LiveMessage{TaskUID: "a", ID: id, Commit: "c0ffee"})).To(gomega.Succeed())
	g.Eventually(first).Should(gomega.Receive(gomega.Equal(outcome{"c0ffee", nil})))
	g.Expect(other.Answer(t.Context(), history.LiveMessage{TaskUID: "a", ID: id, Commit: "f00"})).To(gomega.Succeed(), "as is a second one")
	g.Expect(sent.requests()).To(gomega.Equal(1))
	g.Expect(strangers).NotTo(gomega.Receive())
}

// TestCallersGetWhatWasAskedForAfterTheirCall: the files of a request in progress may have been
// read before, and a later caller may have just written one.
func TestCallersGetWhatWasAskedForAfterTheirCall(t *testing.T) {
	g := gomega.NewWithT(t)
	sent, asked, _ := two()
	ids, leave := asked.Requests("a")
	defer leave()
	first := publish(asked, "a")
	var old, fresh string
	g.Eventually(ids).Should(gomega.Receive(&old))
	second := publish(asked, "a")
	g.Consistently(second, "100ms").ShouldNot(gomega.Receive())
	g.Expect(asked.Answer(t.Context(), history.LiveMessage{TaskUID: "a", ID: old, Commit: "before"})).To(gomega.Succeed())
	g.Eventually(first).Should(gomega.Receive(gomega.Equal(outcome{"before", nil})))
	g.Eventually(ids).Should(gomega.Receive(&fresh))
	g.Expect(asked.Answer(t.Context(), history.LiveMessage{TaskUID: "a", ID: fresh, Commit: "after"})).To(gomega.Succeed())
	g.Eventually(second).Should(gomega.Receive(gomega.Equal(outcome{"after", nil})))
	g.Expect(sent.requests()).To(gomega.Equal(2))
}

func TestADaemonThatConnectsWhileSomebodyWaitsIsAsked(t *testing.T) {
	g := gomega.NewWithT(t)
	_, asked, other := two()
	waiting := publish(asked, "a")
	g.Eventually(func() bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		return len(other.asked["a"]) > 0
	}).Should(gomega.BeTrue())
	ids, leave := other.Requests("a")
	defer leave()
	var id string
	g.Eventually(ids).Should(gomega.Receive(&id))
	g.Expect(other.Answer(t.Context(), history.LiveMessage{TaskUID: "a", ID: id, Problem: "the volume is full"})).To(gomega.Succeed())
	g.Eventually(waiting).Should(gomega.Receive(gomega.HaveField("Err", &history.LiveProblem{Problem: "the volume is full"})))
}

// TestOneAnswerIsForAllServersThatWait: the daemon answers only the newest of the requests that it
// has not begun with, but who asked before waits for the same files.
func TestOneAnswerIsForAllServersThatWait(t *testing.T) {
	g := gomega.NewWithT(t)
	_, first, second := two()
	ids, leave := second.Requests("a")
	defer leave()
	waiting := publish(first, "a")
	var older, newer string
	g.Eventually(ids).Should(gomega.Receive(&older))
	alsoWaiting := publish(second, "a")
	g.Eventually(ids).Should(gomega.Receive(&newer))
	g.Expect(second.Answer(t.Context(), history.LiveMessage{TaskUID: "a", ID: newer, Commit: "c0ffee"})).To(gomega.Succeed())
	for _, who := range []<-chan outcome{waiting, alsoWaiting} {
		g.Eventually(who).Should(gomega.Receive(gomega.Equal(outcome{"c0ffee", nil})))
	}
}

// TestAnOlderAnswerIsNoneToANewerRequest: its files were read before.
func TestAnOlderAnswerIsNoneToANewerRequest(t *testing.T) {
	g := gomega.NewWithT(t)
	_, first, second := two()
	ids, leave := second.Requests("a")
	defer leave()
	waiting := publish(first, "a")
	var older, newer string
	g.Eventually(ids).Should(gomega.Receive(&older))
	alsoWaiting := publish(second, "a")
	g.Eventually(ids).Should(gomega.Receive(&newer))
	g.Expect(second.Answer(t.Context(), history.LiveMessage{TaskUID: "a", ID: older, Commit: "before"})).To(gomega.Succeed())
	g.Eventually(waiting).Should(gomega.Receive(gomega.Equal(outcome{"before", nil})))
	g.Expect(second.Answer(t.Context(), history.LiveMessage{TaskUID: "a", ID: newer, Problem: "try again in 7 s", RetryAfterSeconds: 7})).To(gomega.Succeed())
	g.Eventually(alsoWaiting).Should(gomega.Receive(gomega.HaveField("Err", &history.LiveProblem{Problem: "try again in 7 s", RetryAfterSeconds: 7})))
}

func TestTheNewestRequestReplacesAnOlderOne(t *testing.T) {
	g := gomega.NewWithT(t)
	_, asked, other := two()
	ids, leave := other.Requests("a")
	defer leave()
	asked.handle(history.LiveMessage{TaskUID: "a", ID: "old"})
	other.handle(history.LiveMessage{TaskUID: "a", ID: "old"})
	other.handle(history.LiveMessage{TaskUID: "a", ID: "new"})
	g.Expect(ids).To(gomega.Receive(gomega.Equal("new")))
	g.Expect(ids).NotTo(gomega.Receive())
}

func TestNobodyWaitsForever(t *testing.T) {
	g := gomega.NewWithT(t)
	sent, asked, _ := two()
	asked.patience = 20 * time.Millisecond
	g.Eventually(publish(asked, "a")).Should(gomega.Receive(gomega.HaveField("Err", history.ErrNoAnswer)))
	sent.mu.Lock()
	sent.err = errors.New("no connection")
	sent.mu.Unlock()
	g.Eventually(publish(asked, "a")).Should(gomega.Receive(gomega.HaveField("Err", gomega.MatchError(gomega.ContainSubstring("no connection")))), "the failure before is not reused")
}

func TestPostgresConnectsTheServers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Postgres: make test runs it")
	}
	g := gomega.NewWithT(t)
	server, err := pgtest.Start(t.Context(), postgres.Migrate)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { _ = server.Stop() })
	dsn := server.Database(t)
	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	var brokers []*Broker
	var stores []*postgres.Store
	for range 2 {
		store, err := postgres.Open(t.Context(), dsn, testr.New(t))
		g.Expect(err).NotTo(gomega.HaveOccurred())
		defer store.Close()
		b := New(store)
		running.Go(func() { _ = b.Run(ctx) })
		brokers, stores = append(brokers, b), append(stores, store)
	}
	for _, when := range []string{"at the start", "after Postgres was restarted"} {
		if when != "at the start" {
			g.Expect(server.Restart(t.Context())).To(gomega.Succeed())
		}
		// What is sent before both listen is lost.
		g.Eventually(func(g gomega.Gomega) {
			g.Expect(stores[0].NotifyLive(ctx, history.LiveMessage{TaskUID: "probe", ID: when})).To(gomega.Succeed())
			for _, b := range brokers {
				b.mu.Lock()
				heard := b.asked["probe"]
				b.mu.Unlock()
				g.Expect(heard).To(gomega.ContainElement(when))
			}
		}).WithTimeout(time.Minute).Should(gomega.Succeed(), when)
		ids, leave := brokers[1].Requests(when)
		waiting := publish(brokers[0], when)
		var id string
		g.Eventually(ids).WithTimeout(10*time.Second).Should(gomega.Receive(&id), when)
		leave()
		g.Expect(brokers[1].Answer(t.Context(), history.LiveMessage{TaskUID: when, ID: id, Commit: "c0ffee"})).To(gomega.Succeed())
		g.Eventually(waiting).WithTimeout(10*time.Second).Should(gomega.Receive(gomega.Equal(outcome{"c0ffee", nil})), when)
	}
}
