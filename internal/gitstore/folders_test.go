package gitstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/namespaceid"
)

// theNamespace is the one that every name stands for.
type theNamespace struct {
	is  namespaceid.Namespace
	err error
}

func (n *theNamespace) Get(context.Context, string) (namespaceid.Namespace, error) {
	return n.is, n.err
}

// now serves the same store as a process that starts now, for the namespace of a UID.
func (s *testServer) now(uid string, created time.Time, grants ...namespaceid.Grant) *testServer {
	s.t.Helper()
	again := s.again(Limits{})
	again.handler.DistinguishNamespaces(&theNamespace{is: namespaceid.Namespace{UID: uid, Created: created}}, grants)
	return again
}

// refsSeen returns the names of the refs that a token shows.
func (s *testServer) refsSeen(token string) string {
	s.t.Helper()
	c := s.client(token)
	out, _, err := c.try("ls-remote", c.url)
	if err != nil {
		return ""
	}
	return out
}

// TestANamespaceMadeAnewHasItsOwnRepositories: neither its readers nor its tasks see what the old
// one has left, not even as something to build on, until that is granted.
func TestANamespaceMadeAnewHasItsOwnRepositories(t *testing.T) {
	long := time.Now().Add(-time.Hour)
	server := newTestServer(t, Limits{}).now("one", long)
	first := server.client("task:team:fix:old:1")
	base := first.commit("secret", "plan")
	first.push(base+":refs/clew/old/code/1", base+":refs/heads/clew/fix/kept")
	if seen := server.refsSeen("reader:team"); !strings.Contains(seen, base) {
		t.Fatalf("a reader of the old namespace sees %q", seen)
	}

	remade := server.now("two", time.Now())
	for _, token := range []string{"reader:team", "code:team", "task:team:fix:new:1", "task:team:fix:new:1:old"} {
		if seen := remade.refsSeen(token); strings.Contains(seen, base) {
			t.Errorf("%s sees %q", token, seen)
		}
	}
	second := remade.client("task:team:fix:new:1")
	if _, _, err := second.try("fetch", second.url, base); err == nil {
		t.Error("a task has fetched the old namespace's commit by its id")
	}
	own := second.commit("mine", "1")
	second.push(own+":refs/clew/new/code/1", own+":refs/heads/clew/fix/kept")
	for _, path := range []string{"/team/tasks/old/verify?checkpoint=1", "/team/tasks/old/diff?from=base&to=checkpoint/1"} {
		if code, body := remade.ask(http.MethodGet, path, serverToken); code != http.StatusNotFound {
			t.Errorf("%s, for the new namespace: %d %s", path, code, body)
		}
	}
	if code, body := remade.ask(http.MethodGet, "/team@one/tasks/old/verify?checkpoint=1", serverToken); code != http.StatusOK {
		t.Errorf("the old namespace's checkpoint is verified: %d %s", code, body)
	}

	granted := server.now("two", time.Now(), namespaceid.Grant{Namespace: "team", UID: "one"})
	seen := granted.refsSeen("reader:team")
	for _, want := range []string{base + "\trefs/clew/old/code/1", own + "\trefs/clew/new/code/1", base + "\trefs/heads/clew/fix/kept"} {
		if !strings.Contains(seen, want) {
			t.Errorf("with the grant, a reader does not see %s:\n%s", want, seen)
		}
	}
	if code, body := granted.adopt(serverToken, "new", "old"); code != http.StatusOK {
		t.Errorf("with the grant, a task adopts: %d %s", code, body)
	}
	second = granted.client("task:team:fix:new:2")
	second.git("fetch", "-q", second.url, "refs/clew/new/code/1")
	third := second.commit("mine", "2")
	second.push(third + ":refs/clew/new/code/3")
	if left, err := filepath.Glob(filepath.Join(server.store.root, "namespaces", "team@*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}

	next := server.now("three", time.Now(), namespaceid.Grant{Namespace: "team", UID: "one"})
	if seen := next.refsSeen("reader:team"); seen != "" {
		t.Errorf("a grant that was carried out gives the next namespace %q", seen)
	}
	if seen := server.now("two", time.Now()).refsSeen("reader:team"); !strings.Contains(seen, third) {
		t.Error("the namespace that it was carried out for has lost its repositories")
	}
	last := server.now("three", time.Now(), namespaceid.Grant{Namespace: "team", UID: "two"})
	if seen := last.refsSeen("reader:team"); !strings.Contains(seen, third) {
		t.Error("a grant that names the last one that had them is not carried out")
	}
}

// TestRepositoriesFromBeforeUIDsWereRecorded belong to the namespace that exists, unless it was
// created after the newest task had begun.
func TestRepositoriesFromBeforeUIDsWereRecorded(t *testing.T) {
	for name, test := range map[string]struct {
		created time.Time
		theirs  bool
	}{"of the namespace that exists": {time.Now().Add(-time.Hour), true}, "of one before it": {time.Now().Add(time.Hour), false}} {
		t.Run(name, func(t *testing.T) {
			server := newTestServer(t, Limits{})
			first := server.client("task:team:fix:old:1")
			one := first.commit("a", "one")
			first.push(one + ":refs/clew/old/code/1")
			if seen := server.now("u", test.created).refsSeen("reader:team"); strings.Contains(seen, one) != test.theirs {
				t.Errorf("a reader sees %q", seen)
			}
			granted := server.now("u", test.created, namespaceid.Grant{Namespace: "team", UID: namespaceid.Unknown})
			if seen := granted.refsSeen("reader:team"); !strings.Contains(seen, one) {
				t.Errorf("with a grant of what was not recorded, a reader sees %q", seen)
			}
		})
	}
}

func TestWithoutKnowingTheNamespaceNothingIsServed(t *testing.T) {
	for err, want := range map[error]int{
		errors.New("no route to host"):              http.StatusServiceUnavailable,
		fmt.Errorf("%w: team", namespaceid.ErrNone): http.StatusNotFound,
	} {
		server := newTestServer(t, Limits{})
		first := server.client("task:team:fix:old:1")
		one := first.commit("a", "one")
		first.push(one + ":refs/clew/old/code/1")
		again := server.again(Limits{})
		again.handler.DistinguishNamespaces(&theNamespace{err: err}, nil)
		if seen := again.refsSeen("reader:team"); seen != "" {
			t.Errorf("%v: a reader sees %q", err, seen)
		}
		if code, body := again.ask(http.MethodGet, "/team/tasks/old/verify?checkpoint=1", serverToken); code != want {
			t.Errorf("%v: %d %s", err, code, body)
		}
	}
}

// TestAFolderWhoseOwnerCannotBeReadIsNobodys: it is not taken for one without an owner.
func TestAFolderWhoseOwnerCannotBeReadIsNobodys(t *testing.T) {
	server := newTestServer(t, Limits{}).now("one", time.Now())
	first := server.client("task:team:fix:old:1")
	one := first.commit("a", "one")
	first.push(one + ":refs/clew/old/code/1")
	if err := os.WriteFile(filepath.Join(server.store.namespace("team"), "owner.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if seen := server.now("one", time.Now()).refsSeen("reader:team"); seen != "" {
		t.Errorf("a reader sees %q", seen)
	}
}
