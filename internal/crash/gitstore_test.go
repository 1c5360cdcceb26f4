package crash_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

// gitstore plays the part of the gitstore that the manager writes to: the branches of
// checkpoints. Its requests are counted and struck like the manager's other writes.
type gitstore struct {
	*striker
	kill func()

	mu sync.Mutex
	// branches has the checkpoint that each branch was made of, by ref.
	branches map[string]string
}

// startGitstore returns a gitstore that ends with the test, and its address.
func startGitstore(t testing.TB, s *striker, kill func()) (*gitstore, string) {
	t.Helper()
	g := &gitstore{striker: s, kill: kill, branches: map[string]string{}}
	host := httptest.NewServer(g)
	t.Cleanup(host.Close)
	return g, host.URL
}

// ServeHTTP implements http.Handler.
func (g *gitstore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/branch") {
		http.NotFound(w, r)
		return
	}
	q := r.URL.Query()
	when, now := g.next(fmt.Sprintf("%s branch %s", r.Method, q.Get("branch")))
	if now && when == before {
		g.kill()
		panic(http.ErrAbortHandler)
	}
	made := gitstoreapi.Branch{Ref: refname.Branch(q.Get("task"), q.Get("branch")), Commit: fmt.Sprintf("%040s", q.Get("checkpoint"))}
	g.mu.Lock()
	if r.Method == http.MethodPut {
		g.branches[made.Ref] = made.Commit
	} else if g.branches[made.Ref] == q.Get("commit") {
		delete(g.branches, made.Ref)
	}
	g.mu.Unlock()
	if now {
		g.kill()
		panic(http.ErrAbortHandler)
	}
	_ = json.NewEncoder(w).Encode(made)
}

// refs returns the branches that there are.
func (g *gitstore) refs() map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.branches)
}
