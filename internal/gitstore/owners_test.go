package gitstore

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/testing/gitbomb"
)

// uidAnew is the UID of the namespace "team" after it was deleted and made anew.
const uidAnew = "uid-of-team-anew"

// old is what a task of a namespace has left that is gone, and the gitstore as the namespace uses
// it that was made anew under its name.
type old struct {
	*testServer
	before                    *testServer
	base, commit, state, blob string
	refs                      []string
}

// newOld makes the task "fix" of the old namespace, with a checkpoint and a branch.
func newOld(t *testing.T) *old {
	t.Helper()
	before := newTestServer(t, Limits{})
	o := &old{before: before, testServer: serveNamespace(t, before.store, Limits{}, wordOfToken{uid: uidAnew})}
	c := before.client("task:team:fix:uid-old:1")
	o.base = c.commit("README", "words of an origin that the new namespace may not read")
	o.commit = c.commitAs(checkpointCommitter, "secret", "words of the old namespace")
	o.blob = c.git("rev-parse", "HEAD:secret")
	c.git("checkout", "--quiet", "--orphan", "state")
	o.state = c.commit("session.jsonl", "what its user said")
	o.refs = []string{"refs/clew/uid-old/code/1", "refs/clew/uid-old/state/1", "refs/heads/clew/fix/kept", "refs/heads/clew/fix/kept-too"}
	c.push(o.commit+":"+o.refs[0], o.state+":"+o.refs[1], o.commit+":"+o.refs[2], o.commit+":"+o.refs[3])
	return o
}

// tell tells the keys of namespaces with the name "team", as Clew's server.
func (s *testServer) tell(namespaces ...gitstoreapi.Namespace) (unclaimed []string) {
	s.t.Helper()
	client := gitstoreapi.Client{BaseURL: s.URL, CAFile: s.ca, TokenFile: filepath.Join(s.t.TempDir(), "token")}
	if err := os.WriteFile(client.TokenFile, []byte(serverToken), 0o600); err != nil {
		s.t.Fatal(err)
	}
	unclaimed, err := client.TellNamespaces(s.t.Context(), namespaces)
	if err != nil {
		s.t.Fatal(err)
	}
	return unclaimed
}

func team(uid, key string) gitstoreapi.Namespace {
	return gitstoreapi.Namespace{Name: "team", UID: uid, Key: key}
}

// refsOf returns the names of the refs that a caller sees, in one line.
func (s *testServer) refsOf(token string) string {
	s.t.Helper()
	c := s.client(token)
	var names []string
	for line := range strings.Lines(c.git("ls-remote", c.url)) {
		names = append(names, strings.Fields(line)[1])
	}
	return strings.Join(names, " ")
}

// TestANamespaceMadeAnewGetsNothingOfTheOldOne: neither its readers nor its tasks, also those of an
// old name, by no request of git.
func TestANamespaceMadeAnewGetsNothingOfTheOldOne(t *testing.T) {
	o := newOld(t)
	told := [][]gitstoreapi.Namespace{nil, {team(uidOfTeam, "team")}, {team(uidOfTeam, "team"), team(uidAnew, "team@"+uidAnew)}, {team("unknown", "team"), team(uidAnew, "team@"+uidAnew)}}
	for n, keys := range told {
		o.tell(keys...)
		for name, token := range map[string]string{
			"a reader": readerToken, "a reader of code": codeToken, "an account of another namespace": "account:other:ada",
			"a task": fmt.Sprintf("task:team:new%d:uid-new%d:1", n, n), "a task of the old name": fmt.Sprintf("task:team:fix:uid-same%d:1", n),
			"a pod that publishes": fmt.Sprintf("task:team:new%d:uid-new%d:0", n, n),
		} {
			thief := o.client(token)
			if seen, _, _ := thief.try("ls-remote", thief.url); seen != "" {
				t.Errorf("told %v, %s sees\n%s", keys, name, seen)
			}
			for _, version := range []string{"0", "2"} {
				for _, what := range append([]string{o.base, o.commit, o.state, o.blob, "refs/clew/uid-same0/code/1"}, o.refs...) {
					if _, _, err := thief.try("-c", "protocol.version="+version, "fetch", "--quiet", thief.url, what); err == nil {
						t.Errorf("told %v, %s got %s by version %s", keys, name, what, version)
					}
				}
			}
			if seen, _, _ := thief.try("cat-file", "--batch-all-objects", "--batch-check"); seen != "" {
				t.Errorf("told %v, %s has got\n%s", keys, name, seen)
			}
		}
	}
	for name, id := range map[string]string{"a checkpoint": o.commit, "the commit that a checkpoint is based on": o.base} {
		tip, err := hex.DecodeString(id)
		if err != nil {
			t.Fatal(err)
		}
		checkRefused(t, "a push that refers to "+name, o.pushPack("task:team:fix:uid-same0:1", "refs/clew/uid-same0/code/1", gitbomb.Pack(), tip), gitstoreapi.ObjectsRefused)
	}
	if code, body := o.ask(http.MethodGet, "/team/"+repository+".git/"+gitstoreapi.LackingPath, "task:team:fix:uid-same0:1"); code != http.StatusOK || strings.TrimSpace(body) != "{}" {
		t.Errorf("a task that asks for damaged objects gets code %d, %s", code, body)
	}
	stale := o.client("task:team:fix:uid-old:2") // of a pod that the new namespace cannot have
	stale.commit("a", "late")
	stale.refusedPush(gitstoreapi.PodGone, "does not exist any more", "HEAD:refs/heads/clew/fix/late")
	fsck(t, o.bare(repository))
}

// TestBranchesOfAnOldNameMakeRoom: the new namespace's task of an old name has the branches of the
// name to itself, and each of both goes with its own deletion.
func TestBranchesOfAnOldNameMakeRoom(t *testing.T) {
	for name, first := range map[string]string{"the old task is deleted first": "uid-old", "the new one is": "uid-new"} {
		t.Run(name, func(t *testing.T) {
			o := newOld(t)
			task := o.client("task:team:fix:uid-new:1")
			task.git("ls-remote", task.url)
			// As if the gitstore had been killed before it recorded the attempt, and had not removed
			// each branch yet.
			o.forget("uid-new", "uid-old")
			o.gitOut("update-ref", "refs/heads/clew/fix/kept-too", o.commit)
			own := task.commit("own", "words")
			// kept is a folder here, and was a branch there.
			task.push(own+":refs/clew/uid-new/code/1", own+":refs/heads/clew/fix/kept/deeper", own+":refs/heads/clew/fix/kept-too")
			if got, want := o.refsOf(readerToken), "refs/clew/uid-new/code/1 refs/heads/clew/fix/kept-too refs/heads/clew/fix/kept/deeper"; got != want {
				t.Errorf("readers of the new namespace see %s, want %s", got, want)
			}
			aside := refname.Displaced(uidOfTeam, "fix") + "uid-new/"
			want := map[string][]string{"uid-old": {o.refs[0], o.refs[1], aside + "kept", aside + "kept-too"}, "uid-new": strings.Fields(o.refsOf(readerToken))}
			checkRefs := func(uids ...string) {
				t.Helper()
				var all []string
				for _, uid := range uids {
					all = append(all, want[uid]...)
				}
				slices.Sort(all)
				if got := strings.Fields(o.gitOut("for-each-ref", "--format=%(refname)")); !slices.Equal(got, all) {
					t.Errorf("the gitstore has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(all, "\n"))
				}
			}
			checkRefs("uid-old", "uid-new")
			for _, uid := range []string{first, first} { // a deletion may be repeated
				if code, body := o.deleteTask(serverToken, uid, "fix"); code != http.StatusOK {
					t.Fatalf("code %d, %s", code, body)
				}
			}
			delete(want, first)
			checkRefs(slices.Collect(maps.Keys(want))...)
		})
	}
}

// forget removes a task's record, and what the record of another one says about its branches.
func (o *old) forget(uid, displaced string) {
	o.t.Helper()
	f, err := o.store.fences("team")
	if err != nil {
		o.t.Fatal(err)
	}
	record, err := f.read(displaced)
	if err != nil || !record.Displaced {
		o.t.Fatalf("the record of the old task: %+v, %v", record, err)
	}
	record.Displacing, record.Displaced = true, false
	if err := errors.Join(os.Remove(f.record(uid)), f.write(displaced, record)); err != nil {
		o.t.Fatal(err)
	}
}

// gitOut runs git in the repository of the gitstore.
func (s *testServer) gitOut(args ...string) string {
	s.t.Helper()
	out, err := git{binary: "git"}.run(s.t.Context(), s.bare(repository), append([]string{"--git-dir=."}, args...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// TestAGrantShowsWhatTheOldNamespaceHasLeft: nothing moves. Branches that had made room stay where
// they are, below the refs of the old task.
func TestAGrantShowsWhatTheOldNamespaceHasLeft(t *testing.T) {
	o := newOld(t)
	task := o.client("task:team:own:uid-own:1")
	own := task.commit("own", "words")
	task.push(own+":refs/clew/uid-own/code/1", own+":refs/heads/clew/own/mine")
	keys := []gitstoreapi.Namespace{team(uidOfTeam, "team"), team(uidAnew, "team@"+uidAnew)}
	if unclaimed := o.tell(keys...); len(unclaimed) > 0 {
		t.Errorf("unclaimed %v", unclaimed)
	}
	mine := "refs/clew/uid-own/code/1 refs/heads/clew/own/mine"
	if got := o.refsOf(readerToken); got != mine {
		t.Errorf("before the grant, readers see %s", got)
	}
	granted := []gitstoreapi.Namespace{keys[0], team(uidAnew, "team")}
	o.tell(granted...)
	code := "refs/clew/uid-old/code/1 refs/clew/uid-own/code/1 refs/heads/clew/fix/kept refs/heads/clew/fix/kept-too refs/heads/clew/own/mine"
	for token, want := range map[string]string{readerToken: strings.Replace(code, " ", " refs/clew/uid-old/state/1 ", 1), codeToken: code} {
		if got := o.refsOf(token); got != want {
			t.Errorf("after the grant, %s sees\n%s\nwant\n%s", token, got, want)
		}
	}
	if code, body := o.adopt(serverToken, "uid-new", "uid-old"); code != http.StatusOK || strings.TrimSpace(body) != `{"refs":2}` {
		t.Errorf("code %d, %s", code, body)
	}
	again := o.client("task:team:fix:uid-new:2")
	again.git("fetch", "--quiet", again.url, "refs/clew/uid-new/code/1", "refs/heads/clew/fix/kept")

	third := serveNamespace(t, o.store, Limits{}, wordOfToken{uid: "uid-third"})
	if seen, _, err := third.client(readerToken).try("ls-remote", third.url("team", repository)); err == nil {
		t.Errorf("the next namespace that is made anew sees\n%s", seen)
	}
	// What was told is lost, or from before the grant, with an older copy of the volume.
	for _, content := range []string{"{", "{}"} {
		f := fences{folder: filepath.Join(o.store.namespace("team"), "fences")}
		if err := os.WriteFile(f.ownersFile(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if seen, _, _ := third.client(readerToken).try("ls-remote", third.url("team", repository)); seen != "" {
			t.Errorf("with the file %s, the next namespace sees\n%s", content, seen)
		}
		o.tell(granted...)
		if got := o.refsOf(codeToken); !strings.Contains(got, "uid-old") {
			t.Errorf("told anew, readers see %s", got)
		}
	}
}

// TestWhatWasStoredBeforeUIDsWereRecorded belongs to the first namespace that the history knows.
func TestWhatWasStoredBeforeUIDsWereRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		first     gitstoreapi.Namespace
		old, anew bool
	}{
		"the namespace that exists":            {team(uidOfTeam, "team"), true, false},
		"one that was gone":                    {team("unknown", "team"), false, false},
		"one that has got those that was gone": {team(uidAnew, "team"), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOld(t)
			o.unstamp("uid-old")
			for _, s := range []*testServer{o.before, o.testServer} {
				if _, stderr, _ := s.client(readerToken).try("ls-remote", s.url("team", repository)); !strings.Contains(stderr, "503") {
					t.Errorf("before it was told, a reader gets %s", stderr)
				}
			}
			same := o.client("task:team:fix:uid-same:1")
			same.commit("a", "words")
			same.refusedPush(gitstoreapi.Unavailable, "has not told yet", "HEAD:refs/clew/uid-same/code/1")
			other := o.client("task:team:other:uid-other:1")
			other.commit("a", "words")
			other.push("HEAD:refs/clew/uid-other/code/1")

			if unclaimed := o.tell(); !slices.Equal(unclaimed, []string{"team"}) {
				t.Errorf("unclaimed %v", unclaimed)
			}
			o.tell(c.first)
			o.tell(c.first, team("uid-later", "team@uid-later"))
			for s, want := range map[*testServer]bool{o.before: c.old, o.testServer: c.anew} {
				seen, _, _ := s.client(readerToken).try("ls-remote", s.url("team", repository))
				if strings.Contains(seen, "uid-old") != want {
					t.Errorf("a reader sees\n%s\nwant the old task's: %t", seen, want)
				}
			}
			same.push("HEAD:refs/clew/uid-same/code/1")
			o.tell(team(uidAnew, "team"), team(uidOfTeam, "other"))
			if seen, _, _ := o.client(readerToken).try("ls-remote", o.url("team", repository)); strings.Contains(seen, "uid-old") != c.anew {
				t.Errorf("after the history was lost and begun anew, a reader sees\n%s", seen)
			}
		})
	}
	t.Run("an attempt that goes on is not held up", func(t *testing.T) {
		o := newOld(t)
		o.unstamp("uid-old")
		task := o.before.client("task:team:fix:uid-old:1")
		task.commit("a", "words")
		task.push("HEAD:refs/clew/uid-old/code/2", "HEAD:refs/heads/clew/fix/more")
		if got := o.before.refsOf(readerToken); !strings.Contains(got, "refs/clew/uid-old/code/1") || !strings.Contains(got, "refs/heads/clew/fix/kept-too") {
			t.Errorf("readers see %s", got)
		}
	})
}

// unstamp makes a record as it was before UIDs were recorded.
func (o *old) unstamp(uid string) {
	o.t.Helper()
	f, err := o.store.fences("team")
	if err != nil {
		o.t.Fatal(err)
	}
	record, err := f.read(uid)
	if err != nil {
		o.t.Fatal(err)
	}
	record.Namespace = ""
	if err := f.write(uid, record); err != nil {
		o.t.Fatal(err)
	}
}

// TestADamagedRecordShowsNothing: whose the task is that it belongs to is not known then.
func TestADamagedRecordShowsNothing(t *testing.T) {
	o := newOld(t)
	f, err := o.store.fences("team")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.record("uid-old"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if seen, _, err := o.client(readerToken).try("ls-remote", o.url("team", repository)); err == nil {
		t.Errorf("a reader sees\n%s", seen)
	}
	same, other := o.client("task:team:fix:uid-same:1"), o.client("task:team:other:uid-other:1")
	same.commit("a", "words")
	same.refusedPush(gitstoreapi.Unavailable, "could not be recorded", "HEAD:refs/clew/uid-same/code/1")
	other.commit("a", "words")
	other.push("HEAD:refs/clew/uid-other/code/1")

	o.tell(team(uidOfTeam, "team"), team(uidAnew, "team@"+uidAnew))
	if err := os.Remove(f.record("uid-old")); err != nil {
		t.Fatal(err)
	}
	if got := o.refsOf(readerToken); got != "refs/clew/uid-other/code/1" {
		t.Errorf("once the record was removed, a reader sees %s", got)
	}
}

func TestWhoMayTellAboutNamespaces(t *testing.T) {
	server := newTestServer(t, Limits{})
	for name, c := range map[string]struct {
		method, token, body string
		code                int
	}{
		"the server":            {http.MethodPut, serverToken, `{"namespaces":[{"name":"team","uid":"u","key":"team"}]}`, http.StatusOK},
		"nobody":                {http.MethodPut, "", `{}`, http.StatusUnauthorized},
		"the manager":           {http.MethodPut, managerToken, `{}`, http.StatusForbidden},
		"a task":                {http.MethodPut, taskToken("fix", 1), `{}`, http.StatusForbidden},
		"a reader":              {http.MethodPut, readerToken, `{}`, http.StatusForbidden},
		"another method":        {http.MethodGet, serverToken, ``, http.StatusBadRequest},
		"no document":           {http.MethodPut, serverToken, `x`, http.StatusBadRequest},
		"a name that is a path": {http.MethodPut, serverToken, `{"namespaces":[{"name":"..","uid":"u","key":"k"}]}`, http.StatusBadRequest},
		"no key":                {http.MethodPut, serverToken, `{"namespaces":[{"name":"team","uid":"u"}]}`, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), c.method, server.URL+gitstoreapi.NamespacesPath, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			if c.token != "" {
				r.Header.Set("Authorization", "Bearer "+c.token)
			}
			response, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if response.StatusCode != c.code {
				t.Errorf("code %d, want %d", response.StatusCode, c.code)
			}
		})
	}
}
