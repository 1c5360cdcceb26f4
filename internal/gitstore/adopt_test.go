package gitstore

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// adopt asks to give the checkpoints of a former task to another one.
func (s *testServer) adopt(token, uid, former string) (int, string) {
	s.t.Helper()
	return s.ask(http.MethodPost, "/team/tasks/"+uid+"/adopt?former="+former, token)
}

// TestATaskAdoptsTheCheckpointsOfAFormerOne: they have the same numbers under the new UID, and
// the former one pushes no more; all of them go with the task that has them last.
func TestATaskAdoptsTheCheckpointsOfAFormerOne(t *testing.T) {
	server := newTestServer(t, Limits{})
	first := server.client("task:team:fix:uid-1:1")
	one := first.commit("a", "one")
	first.push(one+":refs/clew/uid-1/code/1", one+":refs/clew/uid-1/state/1", one+":refs/clew/uid-1/live", one+":refs/heads/clew/fix/kept")
	two := first.commit("a", "two")
	first.push(two + ":refs/clew/uid-1/code/2")

	for _, token := range []string{managerToken, serverToken} { // it may be repeated
		code, body := server.adopt(token, "uid-2", "uid-1")
		if code != http.StatusOK || strings.TrimSpace(body) != `{"refs":3}` {
			t.Fatalf("code %d, %s", code, body)
		}
	}
	first.refusedPush(gitstoreapi.TaskDeleted, "can no longer push", one+":refs/clew/uid-1/code/3")
	second := server.client("task:team:fix:uid-2:2")
	for ref, want := range map[string]string{"refs/clew/uid-2/code/1": one, "refs/clew/uid-2/state/1": one, "refs/clew/uid-2/code/2": two, "refs/heads/clew/fix/kept": one} {
		if got := second.git("ls-remote", second.url, ref); got != want+"\t"+ref {
			t.Errorf("%s is %q in the gitstore, want %s", ref, got, want)
		}
	}
	second.git("fetch", "-q", second.url, "refs/clew/uid-2/code/2")
	three := second.commit("a", "three")
	second.push(three + ":refs/clew/uid-2/code/3")

	if code, body := server.adopt(serverToken, "uid-3", "uid-2"); code != http.StatusOK {
		t.Fatalf("code %d, %s", code, body)
	}
	if code, body := server.deleteTask(serverToken, "uid-3", "fix"); code != http.StatusOK {
		t.Fatalf("code %d, %s", code, body)
	}
	if left := everything(t, server.bare(repository)); left != "" {
		t.Errorf("after the deletion the repository has\n%s", left)
	}
}

// One that takes longer than a request may take is finished by repeating the request.
func TestAnAdoptionOfManyCheckpointsGoesOnWhereItEnded(t *testing.T) {
	server := newTestServer(t, Limits{})
	first := server.client("task:team:fix:uid-1:1")
	one := first.commit("a", "one")
	first.push(one + ":refs/clew/uid-1/code/1")
	bare := server.bare(repository)
	const count = adoptPortion + 99
	addCheckpoints(t, bare, one, count)
	code := filepath.Join(bare, "refs", "clew", "uid-2", "code")
	lock := filepath.Join(code, "99.lock") // the last one in their order
	if err := errors.Join(os.MkdirAll(code, 0o755), os.WriteFile(lock, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if code, body := server.adopt(serverToken, "uid-2", "uid-1"); code == http.StatusOK {
		t.Fatalf("code %d, %s", code, body)
	}
	adopted := strings.Count(everything(t, bare), "refs/clew/uid-2/code/")
	if adopted != adoptPortion {
		t.Errorf("the task has %d refs after the first try, want %d", adopted, adoptPortion)
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	if code, body := server.adopt(serverToken, "uid-2", "uid-1"); code != http.StatusOK || strings.TrimSpace(body) != fmt.Sprintf(`{"refs":%d}`, count+1) {
		t.Errorf("code %d, %s", code, body)
	}
}

// addCheckpoints gives the task uid-1, which has one checkpoint, more of the same commit.
func addCheckpoints(t *testing.T, bare, commit string, count int) {
	t.Helper()
	var refs strings.Builder
	for n := range count {
		fmt.Fprintf(&refs, "create refs/clew/uid-1/code/%d %s\n", n+2, commit)
	}
	cmd := exec.CommandContext(t.Context(), "git", "--git-dir", bare, "-c", "core.fsync=none", "update-ref", "--stdin")
	cmd.Stdin = strings.NewReader(refs.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestAnAdoptionNeedsRoomLikeAPush: it is refused portion by portion, and goes on when there is room.
func TestAnAdoptionNeedsRoomLikeAPush(t *testing.T) {
	server := newTestServer(t, Limits{})
	first := server.client("task:team:fix:uid-1:1")
	one := first.commit("a", "one")
	first.push(one + ":refs/clew/uid-1/code/1")
	bare := server.bare(repository)
	addCheckpoints(t, bare, one, adoptPortion)
	used := must(diskUse(bare))
	adopts := func(limits Limits, free int64, want gitstoreapi.Reason, has int) (packs int) {
		t.Helper()
		strict := server.again(limits)
		strict.handler.free = func() (int64, error) { return free, nil }
		strict.handler.onPush = func(Repository) { packs++ }
		_, err := strict.as(managerToken).AdoptTask(t.Context(), gitstoreapi.TaskAdoption{Namespace: "team", UID: "uid-2", Former: "uid-1"})
		var refused *gitstoreapi.Refusal
		if errors.As(err, &refused) != (want != "") || refused != nil && (refused.Reason != want || !refused.Retryable()) {
			t.Errorf("the answer is %v, want %q", err, want)
		}
		if adopted := strings.Count(everything(t, bare), "refs/clew/uid-2/code/"); adopted != has {
			t.Errorf("the task has %d refs, want %d", adopted, has)
		}
		return packs
	}
	const room = 1 << 30
	adopts(Limits{NamespaceBytes: used / 2}, room, gitstoreapi.QuotaExceeded, 0)
	adopts(Limits{NamespaceBytes: used + adoptPortion*looseRefBytes/2}, room, gitstoreapi.QuotaExceeded, 0)
	adopts(Limits{FreeBytes: 1 << 20}, 1<<20, gitstoreapi.VolumeFull, 0)
	if adopts(Limits{NamespaceBytes: used + adoptPortion*looseRefBytes}, room, gitstoreapi.QuotaExceeded, adoptPortion) == 0 {
		t.Error("nobody is told to pack the refs of the first portion")
	}
	if adopts(Limits{NamespaceBytes: room}, room, "", adoptPortion+1) == 0 {
		t.Error("nobody is told to pack the refs of the second portion")
	}
	// What is there needs no room.
	if adopts(Limits{NamespaceBytes: used / 2}, room, "", adoptPortion+1) > 0 {
		t.Error("the repository is to be packed though nothing was added")
	}
}

func TestWhoMayAdoptCheckpoints(t *testing.T) {
	server := newTestServer(t, Limits{})
	first := server.client("task:team:fix:uid-1:1")
	one := first.commit("a", "one")
	first.push(one + ":refs/clew/uid-1/code/1")
	for name, test := range map[string]struct {
		token, uid, former string
		code               int
	}{
		"a task":    {"task:team:fix:uid-2:1", "uid-2", "uid-1", http.StatusForbidden},
		"nobody":    {"", "uid-2", "uid-1", http.StatusUnauthorized},
		"no former": {serverToken, "uid-2", "", http.StatusBadRequest},
		"a path":    {serverToken, "uid-2", "..%2Fx", http.StatusBadRequest},
		"itself":    {serverToken, "uid-1", "uid-1", http.StatusBadRequest},
	} {
		if code, body := server.adopt(test.token, test.uid, test.former); code != test.code {
			t.Errorf("%s: code %d, want %d: %s", name, code, test.code, body)
		}
	}
	first.push(one + ":refs/clew/uid-1/code/2")
	if refs := fmt.Sprint(everything(t, server.bare(repository))); strings.Contains(refs, "uid-2") {
		t.Errorf("something was adopted:\n%s", refs)
	}
}
