package gitstore

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// makesBranch asks for a branch of a checkpoint of the task "fix", as the manager.
func (s *testServer) makesBranch(query url.Values) (int, gitstoreapi.Branch, string) {
	s.t.Helper()
	return s.asksForBranch(http.MethodPut, managerToken, query)
}

func (s *testServer) asksForBranch(method, token string, query url.Values) (int, gitstoreapi.Branch, string) {
	s.t.Helper()
	code, body := s.ask(method, "/team/tasks/uid-fix/branch?"+query.Encode(), token)
	var made gitstoreapi.Branch
	if code == http.StatusOK {
		if err := json.Unmarshal([]byte(body), &made); err != nil {
			s.t.Fatal(err)
		}
	}
	return code, made, body
}

func branchOf(checkpoint, name, head, base string) url.Values {
	return url.Values{"task": {"fix"}, "branch": {name}, "checkpoint": {checkpoint}, "head": {head}, "base": {base}}
}

// fixed is a task with a checkpoint at its base, one at its agent's commit, and one with an
// uncommitted file on top of that.
type fixed struct {
	*testServer
	base, head, code string
}

func newFixed(t *testing.T) fixed {
	t.Helper()
	s := newTestServer(t, Limits{})
	c := s.client(taskToken("fix", 1))
	f := fixed{testServer: s}
	f.base = c.commit("a", "a")
	c.push("HEAD:"+codeRef("fix", 1), "HEAD:refs/clew/uid-fix/state/1")
	f.head = c.commit("b", "b")
	c.push("HEAD:"+codeRef("fix", 2), "HEAD:refs/clew/uid-fix/state/2", "HEAD:refs/clew/uid-fix/head/"+f.head)
	f.code = c.commit("c", "c")
	c.push("HEAD:"+codeRef("fix", 3), "HEAD:refs/clew/uid-fix/state/3")
	return f
}

// git runs git in the repository of the gitstore.
func (f fixed) git(args ...string) string {
	f.t.Helper()
	out, err := git{binary: "git"}.run(f.t.Context(), f.bare(repository), append([]string{"--git-dir=."}, args...)...)
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// TestABranchHoldsTheFilesOfItsCheckpoint: it is the agent's commit, and one on top if there
// are files that the agent has not committed.
func TestABranchHoldsTheFilesOfItsCheckpoint(t *testing.T) {
	f := newFixed(t)
	for name, test := range map[string]struct{ checkpoint, head, base, parent string }{
		"the commit of the agent":  {"2", f.head, f.base, ""},
		"one on top":               {"3", f.head, f.base, f.head},
		"a HEAD that is not there": {"3", strings.Repeat("1", 40), f.base, f.base},
		"a base of others":         {"3", "", strings.Repeat("2", 40), "none"},
	} {
		branch := "try/" + strings.ReplaceAll(name, " ", "-")
		for range 2 {
			code, made, body := f.makesBranch(branchOf(test.checkpoint, branch, test.head, test.base))
			if code != http.StatusOK || f.remoteRef(made.Ref) != made.Commit || made.Ref != "refs/heads/clew/fix/"+branch {
				t.Fatalf("%s: %d %s", name, code, body)
			}
			if got, want := f.git("rev-parse", made.Ref+"^{tree}"), f.git("rev-parse", codeRef("fix", int(test.checkpoint[0]-'0'))+"^{tree}"); got != want {
				t.Errorf("%s: the tree is %s, want %s", name, got, want)
			}
			switch parents := f.git("show", "-s", "--format=%P", made.Ref); {
			case test.parent == "" && made.Commit != f.head, test.parent == "none" && parents != "", len(test.parent) == 40 && parents != test.parent:
				t.Errorf("%s: the branch is at %s, on top of %q", name, made.Commit, parents)
			}
			if test.parent != "" {
				if got := f.git("show", "-s", "--format=%an %ce %(trailers:key=Clew-Task,valueonly)", made.Ref); got != "Clew noreply@clew.dev team/fix" {
					t.Errorf("%s: made by %q", name, got)
				}
			}
		}
	}
	fsck(t, f.bare(repository))
}

func TestABranchIsRemovedOnlyWhereItWasMade(t *testing.T) {
	f := newFixed(t)
	_, made, _ := f.makesBranch(branchOf("2", "b", f.head, f.base))
	remove := url.Values{"task": {"fix"}, "branch": {"b"}, "commit": {made.Commit}}
	f.git("update-ref", made.Ref, f.code)
	if code, _, body := f.asksForBranch(http.MethodDelete, managerToken, remove); code != http.StatusOK || f.remoteRef(made.Ref) != f.code {
		t.Errorf("a branch that was moved is gone, or: %d %s", code, body)
	}
	f.git("update-ref", made.Ref, made.Commit)
	for range 2 {
		if code, _, body := f.asksForBranch(http.MethodDelete, managerToken, remove); code != http.StatusOK || f.remoteRef(made.Ref) != "" {
			t.Errorf("it is still there, or: %d %s", code, body)
		}
	}
}

func TestBranchesThatAreRefused(t *testing.T) {
	f := newFixed(t)
	if code, _, body := f.makesBranch(branchOf("2", "taken", f.head, f.base)); code != http.StatusOK {
		t.Fatal(body)
	}
	for name, test := range map[string]struct {
		token string
		query url.Values
		want  gitstoreapi.Reason
	}{
		"another commit's":           {managerToken, branchOf("3", "taken", f.head, f.base), gitstoreapi.RefExists},
		"below another branch":       {managerToken, branchOf("3", "taken/more", f.head, f.base), gitstoreapi.RefExists},
		"of no checkpoint":           {managerToken, branchOf("9", "b", f.head, f.base), gitstoreapi.NotFound},
		"of checkpoint 0":            {managerToken, branchOf("0", "b", f.head, f.base), gitstoreapi.BadRequest},
		"of a bad name":              {managerToken, branchOf("3", "../other/b", f.head, f.base), gitstoreapi.RefNotAllowed},
		"by the server":              {serverToken, branchOf("3", "b", f.head, f.base), gitstoreapi.Forbidden},
		"by the task":                {taskToken("fix", 1), branchOf("3", "b", f.head, f.base), gitstoreapi.Forbidden},
		"by a reader":                {readerToken, branchOf("3", "b", f.head, f.base), gitstoreapi.Forbidden},
		"with something for an id":   {managerToken, branchOf("3", "b", "--all", f.base), gitstoreapi.BadRequest},
		"of a task of no valid name": {managerToken, url.Values{"task": {"a/b"}, "branch": {"b"}, "checkpoint": {"3"}}, gitstoreapi.BadRequest},
	} {
		if _, _, body := f.asksForBranch(http.MethodPut, test.token, test.query); !strings.Contains(body, "clew: "+string(test.want)+": ") {
			t.Errorf("%s: %s, want %s", name, body, test.want)
		}
	}
	f.mustDelete("fix")
	if _, _, body := f.makesBranch(branchOf("3", "late", f.head, f.base)); !strings.Contains(body, "clew: NotFound: ") {
		t.Errorf("after the deletion: %s", body)
	}
}

// The manager makes the branches of other namespaces meanwhile, and asks again.
func TestABranchIsRefusedAtOnceWithoutASlot(t *testing.T) {
	f := newFixed(t)
	f.handler.slotTimeout = time.Hour
	var release []func()
	for range f.handler.pushes.perNamespace {
		free, refused := f.handler.slotNow(f.handler.pushes, "team")
		if refused != nil {
			t.Fatal(refused)
		}
		release = append(release, free)
	}
	if _, _, body := f.makesBranch(branchOf("2", "b", f.head, f.base)); !strings.Contains(body, "clew: Unavailable: too many requests") {
		t.Errorf("while pushes of the namespace hold all of its slots: %s", body)
	}
	release[0]()
	if code, _, body := f.makesBranch(branchOf("2", "b", f.head, f.base)); code != http.StatusOK {
		t.Errorf("with a slot: %d %s", code, body)
	}
	other := f.store.git.effort
	other.busy = func() bool { return true }
	other.charge("team", time.Hour)
	other.charge("else", time.Minute)
	if _, _, body := f.makesBranch(branchOf("3", "c", f.head, f.base)); !strings.Contains(body, "clew: Unavailable: git has used more") {
		t.Errorf("beyond the namespace's share of processor time: %s", body)
	}
}
