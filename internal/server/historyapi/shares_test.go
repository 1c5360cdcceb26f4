package historyapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/historyapi"
)

// busyStore blocks its callers until it is told to answer.
type busyStore struct {
	*archive
	asked  chan string // the namespaces
	answer chan struct{}
}

func newBusyStore() *busyStore {
	return &busyStore{archive: newArchive(), asked: make(chan string, 1000), answer: make(chan struct{})}
}

func (s *busyStore) take(namespace string) {
	s.asked <- namespace
	<-s.answer
}

func (s *busyStore) TaskConversation(_ context.Context, query history.ConversationQuery) (history.EntryPage, error) {
	s.take(query.Namespace)
	return history.EntryPage{Entries: []history.Entry{{Position: 1, Message: conversation.Message{Role: "user", Text: "do it"}}}}, nil
}

func (s *busyStore) Timeline(_ context.Context, query history.TimelineQuery) (history.EventPage, error) {
	s.take(query.Namespace)
	return history.EventPage{}, nil
}

func (s *busyStore) Namespace(_ context.Context, name string) (history.Namespace, error) {
	return history.Namespace{Name: name, Key: name}, nil
}

func (s *busyStore) Entries(_ context.Context, query history.EntriesQuery) ([]history.Event, error) {
	s.take(query.Namespace.Name)
	return nil, nil
}

func (s *busyStore) Text(context.Context, string, *conversation.Pieces) (string, error) {
	return "", nil
}

func (s *busyStore) Search(_ context.Context, query history.SearchQuery) (history.SearchPage, error) {
	s.take(query.Namespace)
	return history.SearchPage{}, nil
}

func (s *busyStore) ClaimDeletion(context.Context, string) ([]string, error) { return nil, nil }

func (s *busyStore) DeleteTask(context.Context, string) (history.Deleted, error) {
	s.take("")
	return history.Deleted{}, nil
}

// at returns the number of callers in the store, by namespace.
func (s *busyStore) at() map[string]int {
	synctest.Wait()
	count := map[string]int{}
	for len(s.asked) > 0 {
		count[<-s.asked]++
	}
	return count
}

type everything struct{}

func (everything) Authorize(context.Context, user.Info, historyapi.Access) (bool, string, error) {
	return true, "", nil
}

// shared is the API with a store of six connections, and the codes of its responses.
type shared struct {
	t     *testing.T
	mux   *http.ServeMux
	store *busyStore
	codes chan int
	// daemon is that of every running task.
	daemon *busyDaemon
}

func share(t *testing.T) *shared {
	s := &shared{t: t, mux: http.NewServeMux(), store: newBusyStore(), codes: make(chan int, 1000), daemon: &busyDaemon{answer: make(chan struct{})}}
	historyapi.Register(s.mux, historyapi.Options{
		Store: s.store, Connections: 6, Archive: s.store, Tasks: tasks{}, Code: &code{}, Live: s.daemon,
		Authenticator: authenticator.RequestFunc(byHeader), Authorizer: everything{}, Log: logr.Discard(),
	})
	return s
}

// send sends the given number of requests at once. Their responses are read at once, or,
// if until is given, not before it is closed.
func (s *shared) send(times int, method, namespace, path string, until chan struct{}) {
	for range times {
		go func() {
			r := httptest.NewRequestWithContext(s.t.Context(), method, "/apis/history.clew.dev/v1alpha1/namespaces/"+namespace+path, nil)
			r.Header.Set("X-User", "ann")
			recorded := httptest.NewRecorder()
			if until == nil {
				s.mux.ServeHTTP(recorded, r)
			} else {
				s.mux.ServeHTTP(unreading{recorded, until}, r)
			}
			s.codes <- recorded.Code
		}()
	}
}

// answered counts the codes so far.
func (s *shared) answered() map[int]int {
	synctest.Wait()
	count := map[int]int{}
	for len(s.codes) > 0 {
		count[<-s.codes]++
	}
	return count
}

func TestReadsOfOneNamespaceLeaveConnectionsToOthers(t *testing.T) {
	for _, path := range []string{"/tasks/a/conversation", "/tasks/a/timeline", "/timelines"} {
		synctest.Test(t, func(t *testing.T) {
			g := gomega.NewWithT(t)
			s := share(t)
			s.send(30, http.MethodGet, "greedy", path, nil)
			g.Expect(s.store.at()).To(gomega.Equal(map[string]int{"greedy": 3}), "half of the slots")
			s.send(30, http.MethodGet, "alike", path, nil)
			g.Expect(s.store.at()).To(gomega.Equal(map[string]int{"alike": 1}), "what is not reserved for namespaces without a slot")
			s.send(1, http.MethodGet, "honest", path, nil)
			g.Expect(s.store.at()).To(gomega.Equal(map[string]int{"honest": 1}))
			g.Expect(s.answered()).To(gomega.BeEmpty(), "the others wait")

			time.Sleep(21 * time.Second) // the waits for an answer slot and for a read slot, on the bubble's clock
			g.Expect(s.answered()).To(gomega.HaveKeyWithValue(http.StatusTooManyRequests, gomega.Equal(30-3+30-1)), "nobody waits for long")
			close(s.store.answer)
			g.Expect(s.answered()).To(gomega.HaveKeyWithValue(http.StatusOK, 5))
		})
	}
}

// TestWhoeverWaitsForATasksDaemonKeepsNoSlotThatOthersNeed: it takes seconds.
func TestWhoeverWaitsForATasksDaemonKeepsNoSlotThatOthersNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		s := share(t)
		for i := range s.store.tasks {
			s.store.tasks[i].State = "Running"
		}
		s.send(30, http.MethodGet, "team", "/tasks/a/diff?to=live", nil)
		g.Expect(s.daemon.at()).To(gomega.Equal(8), "a namespace's share of waits")
		s.send(1, http.MethodGet, "team", "/tasks/a/conversation", nil)
		g.Expect(s.store.at()).To(gomega.HaveLen(1), "another read is served meanwhile")
		close(s.store.answer)
		close(s.daemon.answer)
		synctest.Wait()
	})
}

// busyDaemon blocks its callers until it is told to answer.
type busyDaemon struct {
	waiting atomic.Int32
	answer  chan struct{}
}

func (d *busyDaemon) Publish(context.Context, string) (string, error) {
	d.waiting.Add(1)
	<-d.answer
	return "now", nil
}

// at returns the number of callers that have come.
func (d *busyDaemon) at() int {
	synctest.Wait()
	return int(d.waiting.Load())
}

func TestSearchesOfANamespaceLeaveSlotsForItsOtherReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		s := share(t)
		s.send(10, http.MethodGet, "team", "/search?q=word", nil)
		g.Expect(s.store.at()).To(gomega.Equal(map[string]int{"team": 2}))
		s.send(1, http.MethodGet, "team", "/tasks/a/conversation", nil)
		g.Expect(s.store.at()).To(gomega.Equal(map[string]int{"team": 1}))
		close(s.store.answer)
		g.Expect(s.answered()).To(gomega.Equal(map[int]int{http.StatusOK: 11}))
	})
}

// unreading is a caller that does not read a response.
type unreading struct {
	http.ResponseWriter
	until chan struct{}
}

func (u unreading) Write(p []byte) (int, error) {
	<-u.until
	return len(p), nil
}

func TestACallerThatDoesNotReadKeepsNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		s := share(t)
		close(s.store.answer)
		until := make(chan struct{})
		for i := range 2 {
			s.send(10, http.MethodGet, fmt.Sprint("idle-", i), "/tasks/a/conversation", until)
		}
		g.Expect(s.store.at()).To(gomega.Equal(map[string]int{"idle-0": 4, "idle-1": 4}), "more than there are connections")
		s.send(20, http.MethodGet, "honest", "/timelines", nil)
		g.Expect(s.answered()).To(gomega.Equal(map[int]int{http.StatusOK: 20}))
		close(until)
		g.Expect(s.answered()).To(gomega.HaveLen(1))
	})
}

func TestANamespaceDeletesOneHistoryAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		s := share(t)
		for _, name := range []string{"a", "ab"} {
			s.send(1, http.MethodDelete, "team", "/taskhistories/"+name, nil)
		}
		g.Expect(s.store.at()).To(gomega.Equal(map[string]int{"": 1}))
		close(s.store.answer)
		g.Expect(s.answered()).To(gomega.Equal(map[int]int{http.StatusOK: 2}))
	})
}
