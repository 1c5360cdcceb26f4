package gitstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// deleteTask requests a deletion in the namespace "team", and returns status and body.
func (s *testServer) deleteTask(token, uid, name string) (int, string) {
	s.t.Helper()
	return s.ask(http.MethodDelete, "/team/tasks/"+uid+"?name="+name, token)
}

// ask sends a request without a body, and returns status and body of the response.
func (s *testServer) ask(method, path, token string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := s.Client().Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// mustDelete deletes a task's data as the server and returns the result.
func (s *testServer) mustDelete(name string) gitstoreapi.Deletion {
	s.t.Helper()
	code, body := s.deleteTask(serverToken, "uid-"+name, name)
	var deletion gitstoreapi.Deletion
	if err := json.Unmarshal([]byte(body), &deletion); code != http.StatusOK || err != nil {
		s.t.Fatalf("deletion of %s: code %d, %s", name, code, body)
	}
	return deletion
}

// everything returns the content of all objects on the disk, reachable or not, in
// packs and in loose files, and all refs.
func everything(t *testing.T, path string) string {
	t.Helper()
	var all strings.Builder
	for _, args := range [][]string{{"cat-file", "--batch-all-objects", "--batch"}, {"for-each-ref"}} {
		command := exec.Command("git", append([]string{"--git-dir=" + path}, args...)...)
		command.Env = gitTestEnvironment()
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, output)
		}
		all.Write(output)
	}
	return all.String()
}

func TestDeletionLeavesNoByteThatNobodyElseReaches(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: make test runs it")
	}
	server := newTestServer(t, Limits{})
	repo := server.store.repository("team", repository)
	fix := server.client(taskToken("fix", 1))
	fix.commit("README", "words of the origin")
	origin := fix.git("rev-parse", "HEAD")
	fix.commit("a", "work that a fork shares")
	shared := fix.git("rev-parse", "HEAD")
	fix.push(shared + ":" + codeRef("fix", 1))

	fork := server.client(forkToken("fork", "fix"))
	fork.git("fetch", "--quiet", fork.url, codeRef("fix", 1))
	fork.git("checkout", "--quiet", "FETCH_HEAD")
	fork.commit("b", "what the fork wrote")
	fork.push("HEAD:" + codeRef("fork", 1))
	other := server.client(taskToken("other", 1))
	other.commit("README", "words of the origin", "c", "what another task wrote")
	other.push("HEAD:"+codeRef("other", 1), "HEAD:refs/heads/clew/other/kept")

	fix.commit("a", "private work")
	fix.push("HEAD:"+codeRef("fix", 2), "HEAD:refs/heads/clew/fix/before-rewind")
	fix.git("checkout", "--quiet", "--orphan", "state")
	fix.commit("session", "private memory")
	fix.push("HEAD:" + stateRef("fix", 2))
	// A branch that was moved leaves a commit that no ref reaches.
	fix.commit("x", "private detour")
	fix.push("HEAD:refs/heads/clew/fix/moving")
	fix.push("+" + origin + ":refs/heads/clew/fix/moving")
	if err := server.store.compact(t.Context(), repo); err != nil {
		t.Fatal(err)
	}
	loose := exec.Command("git", "--git-dir="+repo.Path, "hash-object", "-w", "--stdin")
	loose.Stdin = strings.NewReader("private loose object")
	if output, err := loose.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if before := everything(t, repo.Path); strings.Count(before, "private") < 4 {
		t.Fatalf("the test has nothing to look for:\n%s", before)
	}

	deletion := server.mustDelete("fix")
	if diff := cmp.Diff(gitstoreapi.Deletion{Refs: 5, Repositories: 1}, deletion, cmpopts.IgnoreFields(gitstoreapi.Deletion{}, "Bytes")); diff != "" {
		t.Errorf("deletion (-want +got):\n%s", diff)
	}
	if deletion.Bytes <= 0 {
		t.Errorf("the deletion freed %d bytes, want more than 0", deletion.Bytes)
	}
	left := everything(t, repo.Path)
	for _, gone := range []string{"private", "uid-fix", "clew/fix/"} {
		if strings.Contains(left, gone) {
			t.Errorf("the repository still contains %q:\n%s", gone, left)
		}
	}
	for _, kept := range []string{"words of the origin", "work that a fork shares", "what the fork wrote", "what another task wrote"} {
		if !strings.Contains(left, kept) {
			t.Errorf("the repository no longer contains %q", kept)
		}
	}
	fsck(t, repo.Path)
	fresh := server.client(readerToken)
	fresh.git("fetch", "--quiet", fresh.url, "refs/clew/*:refs/clew/*")
	if got := fresh.git("rev-parse", codeRef("fork", 1)+"^"); got != shared {
		t.Errorf("the fork's parent is %s, want %s", got, shared)
	}
	if again := server.mustDelete("fix"); again != (gitstoreapi.Deletion{}) {
		t.Errorf("the second deletion removed %+v, want nothing", again)
	}
	fork.commit("b", "the fork goes on")
	fork.push("HEAD:" + codeRef("fork", 2))
}

func TestDeletionOfTheLastTaskLeavesNoObjects(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	for number := 1; number <= 3; number++ {
		fix.commit("a", strings.Repeat("private", number))
		fix.push("HEAD:" + codeRef("fix", number))
	}
	server.mustDelete("fix")
	if left := everything(t, server.bare(repository)); left != "" {
		t.Errorf("left:\n%s", left)
	}
	if packs, err := countPacks(server.store.repository("team", repository)); err != nil || packs != 0 {
		t.Errorf("%d packs are left, %v; want none", packs, err)
	}
}

func TestDeletionGoesThroughAllRepositoriesOfTheNamespace(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	commit := fix.commit("a", "private")
	fix.push(commit + ":" + codeRef("fix", 1))
	const second = "r-second"
	fix.url = server.url("team", second)
	fix.push(commit + ":" + codeRef("fix", 1))
	elsewhere := fix.as("task:elsewhere:fix:uid-fix:1")
	elsewhere.url = server.url("elsewhere", repository)
	elsewhere.push(commit + ":" + codeRef("fix", 1))

	if deletion := server.mustDelete("fix"); deletion.Refs != 2 || deletion.Repositories != 2 {
		t.Errorf("the deletion removed %+v, want 2 refs in 2 repositories", deletion)
	}
	for _, name := range []string{repository, second} {
		if left := everything(t, server.bare(name)); left != "" {
			t.Errorf("the repository %s still contains:\n%s", name, left)
		}
	}
	if left := everything(t, server.store.repository("elsewhere", repository).Path); !strings.Contains(left, "private") {
		t.Error("another namespace's task was deleted")
	}
}

// A newer task of the same name keeps its branches, whose names contain the task's name.
func TestDeletionSparesANewerTaskOfTheName(t *testing.T) {
	server := newTestServer(t, Limits{})
	older := server.client("task:team:fix:uid-old:1")
	older.commit("a", "old")
	older.push("HEAD:refs/clew/uid-old/code/1", "HEAD:refs/heads/clew/fix/old")
	newer := server.client("task:team:fix:uid-new:1")
	newer.commit("a", "new")
	newer.push("HEAD:refs/clew/uid-new/code/1", "HEAD:refs/heads/clew/fix/new")
	if code, body := server.deleteTask(serverToken, "uid-old", "fix"); code != http.StatusOK {
		t.Fatalf("code %d, %s", code, body)
	}
	left := everything(t, server.bare(repository))
	for part, want := range map[string]bool{"uid-old": false, "fix/old": false, "uid-new": true, "fix/new": true} {
		if strings.Contains(left, part) != want {
			t.Errorf("the repository contains %q: %t, want %t", part, !want, want)
		}
	}
	newer.commit("a", "newer")
	newer.push("HEAD:refs/clew/uid-new/code/2")
}

func TestADeletedTaskCanNoLongerPush(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	commit := fix.commit("a", "one")
	fix.push(commit + ":" + codeRef("fix", 1))
	server.mustDelete("fix")
	for _, attempt := range []int{1, 2} {
		fix.as(taskToken("fix", attempt)).refusedPush(gitstoreapi.TaskDeleted, "permanently deleted", commit+":"+codeRef("fix", 2))
	}
	// A push that had already passed all checks but the hook's.
	late := server.client(taskToken("late", 1))
	commit = late.commit("a", "two")
	server.handler.beforeGit = func() {
		fences, err := server.store.fences("team")
		if err != nil {
			t.Error(err)
		}
		if _, err := fences.shut(t.Context(), "uid-late"); err != nil {
			t.Error(err)
		}
	}
	late.refusedPush(gitstoreapi.TaskDeleted, "permanently deleted", commit+":"+codeRef("late", 1))
	if left := everything(t, server.bare(repository)); left != "" {
		t.Errorf("left:\n%s", left)
	}
	if refused, _ := gitstoreapi.Parse("remote: clew: TaskDeleted: x\n"); refused.Retryable() {
		t.Error("TaskDeleted is retryable: the daemon would retry for ever")
	}
}

func TestOnlyTheServerDeletes(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	commit := fix.commit("a", "one")
	fix.push(commit + ":" + codeRef("fix", 1))
	for name, test := range map[string]struct {
		method, path, token string
		code                int
		says                string
	}{
		"nobody":           {"DELETE", "/team/tasks/uid-fix", "", 401, "a token is needed"},
		"a bad token":      {"DELETE", "/team/tasks/uid-fix", "x", 401, "Unauthenticated"},
		"the task itself":  {"DELETE", "/team/tasks/uid-fix", taskToken("fix", 1), 403, "only Clew's server"},
		"a reader":         {"DELETE", "/team/tasks/uid-fix", readerToken, 403, "only Clew's server"},
		"nobody to ask":    {"DELETE", "/team/tasks/uid-fix", "down", 503, "try again"},
		"another method":   {"GET", "/team/tasks/uid-fix", serverToken, 400, "must be DELETE"},
		"no name":          {"DELETE", "/team/tasks/uid-fix?name=-x", serverToken, 400, "not a valid task name"},
		"no former":        {"DELETE", "/team/tasks/uid-fix?former=..%2Fx", serverToken, 400, "the UID of a task"},
		"a task's formers": {"POST", "/team/tasks/uid-fix/formers", taskToken("fix", 1), 403, "only Clew's server"},
		"formers got":      {"GET", "/team/tasks/uid-fix/formers", serverToken, 400, "must be POST"},
		"formers nowhere":  {"POST", "/team/tasks/uid-fix/formers", serverToken, 400, "cannot be read"},
		"no UID":           {"DELETE", "/team/tasks/-x", serverToken, 404, "there is nothing at this URL"},
		"a path that ends": {"DELETE", "/team/tasks/a/b", serverToken, 404, "there is nothing at this URL"},
	} {
		t.Run(name, func(t *testing.T) {
			if code, body := server.ask(test.method, test.path, test.token); code != test.code || !strings.Contains(body, test.says) {
				t.Errorf("got %d %q, want %d with %q", code, body, test.code, test.says)
			}
		})
	}
	if got := server.remoteRef(codeRef("fix", 1)); got != commit {
		t.Errorf("the ref is %q", got)
	}
}

// What a deletion cannot remove while the repository is in use, a repeated one removes,
// or maintenance if it is not repeated.
func TestDeletionOfARepositoryInUse(t *testing.T) {
	for name, finish := range map[string]func(*testServer, *Maintainer, Repository){
		"asked again": func(s *testServer, _ *Maintainer, _ Repository) { s.mustDelete("fix") },
		"maintained":  func(s *testServer, m *Maintainer, r Repository) { m.maintain(s.t.Context(), r) },
	} {
		t.Run(name, func(t *testing.T) {
			server := newTestServer(t, Limits{})
			repo := server.store.repository("team", repository)
			maintainer := NewMaintainer(server.handler, time.Hour, 0, logr.Discard())
			fix := server.client(taskToken("fix", 1))
			fix.commit("a", "private")
			fix.push("HEAD:" + codeRef("fix", 1))
			maintainer.takeQueued()
			reader, err := repo.use(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := server.store.deleteRefs(t.Context(), repo, taskRefs{uid: "uid-fix", name: "fix"}); err != nil {
				t.Fatal(err)
			}
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := server.store.purge(t.Context(), short, repo); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("purge during a fetch returned %v, want DeadlineExceeded", err)
			}
			if left := everything(t, repo.Path); strings.Contains(left, "uid-fix") || !strings.Contains(left, "private") {
				t.Errorf("left:\n%s", left)
			}
			if err := reader.Close(); err != nil {
				t.Fatal(err)
			}
			finish(server, maintainer, repo)
			if left := everything(t, repo.Path); left != "" {
				t.Errorf("left:\n%s", left)
			}
			if marked, err := repo.marked(); marked || err != nil {
				t.Errorf("still marked: %v, %v", marked, err)
			}
		})
	}
}

func TestDeletionsDuringPushesAndFetches(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: make test runs it")
	}
	server := newTestServer(t, Limits{})
	ctx, cancel := context.WithCancel(t.Context())
	base := server.client(taskToken("base", 1))
	base.commit("a", "0")
	base.push("HEAD:" + codeRef("base", 1))
	var wait sync.WaitGroup
	wait.Go(func() {
		defer cancel()
		for round := range 8 {
			name := fmt.Sprintf("gone%d", round)
			task := server.client(taskToken(name, 1))
			task.commit("a", name)
			task.push("HEAD:" + codeRef(name, 1))
			server.mustDelete(name)
		}
	})
	wait.Go(func() {
		for ctx.Err() == nil {
			fresh := server.client(readerToken)
			fresh.git("fetch", "--quiet", fresh.url, codeRef("base", 1))
		}
	})
	number := 1
	for ctx.Err() == nil {
		number++
		base.commit("a", strings.Repeat("y", number))
		base.push("HEAD:" + codeRef("base", number))
	}
	wait.Wait()
	fsck(t, server.bare(repository))
	left := everything(t, server.bare(repository))
	if strings.Contains(left, "gone") || strings.Count(left, "uid-base/code/") != number {
		t.Errorf("%d of %d refs are left; deleted content is left: %t", strings.Count(left, "uid-base/code/"), number, strings.Contains(left, "gone"))
	}
}

// A fork's first push is advertised its source's objects and leaves them out. If the
// source is deleted at that moment, the fork pushes again, this time with all objects.
func TestAPushThatBuildsOnDeletedObjectsIsRepeated(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	fix.commit("a", strings.Repeat("the source's words\n", 100))
	fix.push("HEAD:" + codeRef("fix", 1))
	fork := server.client(forkToken("fork", "fix"))
	fork.git("fetch", "--quiet", fork.url, codeRef("fix", 1))
	fork.git("checkout", "--quiet", "FETCH_HEAD")
	fork.commit("b", "the fork's words")

	var once sync.Once
	between := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "git-receive-pack") {
			once.Do(func() { server.mustDelete("fix") })
		}
		server.handler.ServeHTTP(w, r)
	}))
	defer between.Close()
	fork.url = between.URL + "/team/" + repository + ".git"
	fork.env = append(fork.env, "GIT_SSL_CAINFO="+writeCA(t, between.Certificate()))
	fork.refusedPush(gitstoreapi.Unavailable, "push again", "HEAD:"+codeRef("fork", 1))
	fork.push("HEAD:" + codeRef("fork", 1))
	fsck(t, server.bare(repository))
}

func TestKilledDeletionIsFinished(t *testing.T) {
	server := newTestServer(t, Limits{})
	repo := server.store.repository("team", repository)
	fix := server.client(taskToken("fix", 1))
	fix.commit("a", "private")
	fix.push("HEAD:" + codeRef("fix", 1))
	if _, err := server.store.deleteRefs(t.Context(), repo, taskRefs{uid: "uid-fix"}); err != nil {
		t.Fatal(err)
	}
	// Killed while merging packs: a lock file and an unfinished pack are left.
	for _, name := range []string{"packed-refs.lock", "objects/pack/.tmp-1-pack-x.pack"} {
		if err := os.WriteFile(filepath.Join(repo.Path, name), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := server.store.purge(ended, t.Context(), repo); err == nil {
		t.Fatal("purge succeeded although its context had ended")
	}
	if deletion := server.mustDelete("fix"); deletion.Repositories != 1 {
		t.Errorf("the deletion removed %+v, want objects of 1 repository", deletion)
	}
	if left := everything(t, repo.Path); left != "" {
		t.Errorf("left:\n%s", left)
	}
}

func TestParseServiceAccount(t *testing.T) {
	for text, want := range map[string]ServiceAccount{
		"": {}, "clew-system:clew-server": {"clew-system", "clew-server"},
	} {
		if got, err := ParseServiceAccount(text); err != nil || got != want {
			t.Errorf("ParseServiceAccount(%q) returned %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"clew-server", ":x", "x:", "a:b:c", "a/b"} {
		if _, err := ParseServiceAccount(text); err == nil {
			t.Errorf("ParseServiceAccount(%q) returned no error", text)
		}
	}
}
