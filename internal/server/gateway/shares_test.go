package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/podidentity"
)

func TestNoNamespaceGetsAllConnections(t *testing.T) {
	now, cancel := context.WithCancel(t.Context())
	cancel() // nobody waits
	for connections := 3; connections <= 64; connections++ {
		s, took := newShares(1, connections), 0
		for i := range 2 * connections {
			_, err := s.requests.Take(now, fairshare.Share{Of: fmt.Sprint("task/", i), Slots: slotsOfTask},
				fairshare.Share{Of: "namespace/a", Slots: s.requestsOfNamespace})
			if err == nil {
				took++
			}
		}
		if took < 1 || took >= connections {
			t.Errorf("a namespace gets %d of %d connections", took, connections)
		}
	}
}

// Only a pod's own connections bound its number of requests. Most of them have to be
// answered at once: each waiting request costs memory.
func TestFewOfAPodsManyRequestsWait(t *testing.T) {
	const requests = 1000
	id := podidentity.Identity{Namespace: "a", TaskName: "one", TaskUID: "one"}
	for name, c := range map[string]struct {
		procedure string
		bursts    int // that the task has sent just now
		want      int
	}{
		"streams":                      {procedureCommands, 0, 16 * streamsOfTask},
		"requests":                     {"Append", 0, 16 * arrivalsOfTask},
		"requests of a task that owes": {"Append", 2, 1 + 16},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShares(1<<20, defaultConnections)
				for range c.bursts {
					s.spend(id, paceBurst<<20, 0)
				}
				answered := make(chan error, requests)
				for range requests {
					go func() {
						r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/clew.daemon.v1.DaemonService/"+c.procedure, nil)
						_, err := s.arrive(r, id)
						answered <- err
					}()
				}
				synctest.Wait()
				if waiting := requests - len(answered); waiting != c.want {
					t.Errorf("%d of %d wait, want %d", waiting, requests, c.want)
				}
			})
		})
	}
}

// Each stream queries the store.
func TestOpeningManyCommandStreamsCountsAgainstTheRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShares(1<<20, defaultConnections)
		began := time.Now()
		for range 200 {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/clew.daemon.v1.DaemonService/"+procedureCommands, nil)
			leave, err := s.arrive(r, podidentity.Identity{Namespace: "a", TaskName: "one", TaskUID: "one"})
			if err != nil {
				t.Fatal(err)
			}
			leave()
		}
		if took := time.Since(began); took < 30*time.Second {
			t.Errorf("200 were opened in %s", took)
		}
	})
}

// searcher is a request of a task that searches.
func searcher(s *shares, namespace string) *arrival {
	return &arrival{shares: s, id: podidentity.Identity{Namespace: namespace, TaskUID: namespace}, leave: func() {}}
}

// Each search may keep a processor of the database busy.
func TestANamespaceSearchesOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShares(1<<20, defaultConnections)
		_, done, err := searcher(s, "a").search(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		waits := make(chan error, 1)
		go func() {
			_, done, err := searcher(s, "a").search(t.Context())
			if err == nil {
				done()
			}
			waits <- err
		}()
		_, other, err := searcher(s, "b").search(t.Context())
		if err != nil {
			t.Error("another namespace waits for it:", err)
		} else {
			other()
		}
		synctest.Wait()
		if len(waits) > 0 {
			t.Error("two tasks of a namespace search at once")
		}
		done()
		if err := <-waits; err != nil {
			t.Error("the second search:", err)
		}
	})
}

func TestANamespaceThatHasSearchedForLongRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShares(1<<20, defaultConnections)
		began, searches := time.Now(), 0
		for time.Since(began) < 10*time.Minute {
			_, done, err := searcher(s, "a").search(t.Context())
			if err != nil {
				time.Sleep(time.Second) // an agent that tries again and again
				continue
			}
			time.Sleep(5 * time.Second)
			searches++
			done()
		}
		used, most := time.Duration(searches)*5*time.Second, searchBurst+10*time.Minute/searchShare+5*time.Second
		if used > most || used < most-time.Minute {
			t.Errorf("it has searched for %s of ten minutes, and may for %s", used, most)
		}
		if _, done, err := searcher(s, "b").search(t.Context()); err != nil {
			t.Error("another namespace rests with it:", err)
		} else {
			done()
		}
	})
}
