package crash_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"sync"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

// gitstore plays the part of the gitstore that the manager writes to: the branches of
// checkpoints, and the checkpoints that a task adopts. Its requests are counted and struck like the
// manager's other writes.
type gitstore struct {
	*striker
	kill func()

	mu sync.Mutex
	// made has the checkpoint that each branch was made of, and the former task whose checkpoints
	// each task has, by ref.
	made map[string]string
}

// startGitstore returns a gitstore that ends with the test, and its address.
func startGitstore(t testing.TB, s *striker, kill func()) (*gitstore, string) {
	t.Helper()
	g := &gitstore{striker: s, kill: kill, made: map[string]string{}}
	host := httptest.NewServer(g)
	t.Cleanup(host.Close)
	return g, host.URL
}

// ServeHTTP implements http.Handler.
func (g *gitstore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	switch task, what := path.Split(r.URL.Path); what {
	case "branch":
		made := gitstoreapi.Branch{Ref: refname.Branch(q.Get("task"), q.Get("branch")), Commit: fmt.Sprintf("%040s", q.Get("checkpoint"))}
		g.write(fmt.Sprintf("%s branch %s", r.Method, q.Get("branch")), func() {
			if r.Method == http.MethodPut {
				g.made[made.Ref] = made.Commit
			} else if g.made[made.Ref] == q.Get("commit") {
				delete(g.made, made.Ref)
			}
		})
		_ = json.NewEncoder(w).Encode(made)
	case "adoptions":
		_ = json.NewEncoder(w).Encode(gitstoreapi.Adoptions{Adoptions: g.lacking(r)})
	case "adopt":
		g.write("adopt", func() { g.made[refname.OfTask(path.Base(task))+"code"] = q.Get("former") })
		_ = json.NewEncoder(w).Encode(gitstoreapi.Adoption{Refs: 1})
	default:
		http.NotFound(w, r)
	}
}

// write carries out what a request writes, unless the manager is killed before it.
func (g *gitstore) write(what string, do func()) {
	when, now := g.next(what)
	if now && when == before {
		g.kill()
		panic(http.ErrAbortHandler)
	}
	g.mu.Lock()
	do()
	g.mu.Unlock()
	if now {
		g.kill()
		panic(http.ErrAbortHandler)
	}
}

// lacking returns those of the adoptions asked about that were not carried out.
func (g *gitstore) lacking(r *http.Request) []gitstoreapi.TaskAdoption {
	var asked gitstoreapi.Adoptions
	_ = json.NewDecoder(r.Body).Decode(&asked)
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(asked.Adoptions, func(a gitstoreapi.TaskAdoption) bool { return g.made[refname.OfTask(a.UID)+"code"] == a.Former })
}

// refs returns the refs that there are.
func (g *gitstore) refs() map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.made)
}
