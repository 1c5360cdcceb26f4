package gitstore

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// copied returns a copy of the gitstore's folder as it is, from which it can be restored.
func (s *testServer) copied() string {
	s.t.Helper()
	folder := filepath.Join(s.t.TempDir(), "copy")
	if err := os.CopyFS(folder, os.DirFS(s.store.root)); err != nil {
		s.t.Fatal(err)
	}
	return folder
}

// restored serves a gitstore whose folder is restored from a copy.
func (s *testServer) restored(from string) *testServer {
	s.t.Helper()
	folder := filepath.Join(s.t.TempDir(), "restored")
	if err := os.CopyFS(folder, os.DirFS(from)); err != nil {
		s.t.Fatal(err)
	}
	store, err := Open(s.t.Context(), folder, testGitMemory, testHook())
	if err != nil {
		s.t.Fatal(err)
	}
	return serveStore(s.t, store, Limits{})
}

// as returns a client of the gitstore with a token.
func (s *testServer) as(token string) gitstoreapi.Client {
	s.t.Helper()
	client := gitstoreapi.Client{BaseURL: s.URL, CAFile: s.ca, TokenFile: filepath.Join(s.t.TempDir(), "token")}
	if err := os.WriteFile(client.TokenFile, []byte(token), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return client
}

// wantLacking fails unless the gitstore lacks these adoptions of the known ones.
func (s *testServer) wantLacking(known []gitstoreapi.TaskAdoption, want ...gitstoreapi.TaskAdoption) {
	s.t.Helper()
	for _, token := range []string{serverToken, managerToken} {
		got, err := s.as(token).LackingAdoptions(s.t.Context(), known)
		if err != nil {
			s.t.Fatal(err)
		}
		if diff := cmp.Diff(append([]gitstoreapi.TaskAdoption{}, want...), got); diff != "" {
			s.t.Errorf("the adoptions that the gitstore lacks, as it tells the %s (-want +got):\n%s", token, diff)
		}
	}
}

// TestARestoredGitstoreTellsWhichAdoptionsItLacks: it is asked for them again, and once only.
func TestARestoredGitstoreTellsWhichAdoptionsItLacks(t *testing.T) {
	server := newTestServer(t, Limits{})
	first := server.client("task:team:fix:uid-1:1")
	one := first.commit("a", "one")
	first.push(one+":refs/clew/uid-1/code/1", one+":refs/clew/uid-1/state/1")
	known := []gitstoreapi.TaskAdoption{{Namespace: "team", UID: "uid-2", Former: "uid-1", NamespaceUID: uidOfTeam}, {Namespace: "other", UID: "uid-4", Former: "uid-3"}}
	adopts := func(server *testServer) {
		t.Helper()
		adoption, err := server.as(serverToken).AdoptTask(t.Context(), known[0])
		if err != nil || adoption != (gitstoreapi.Adoption{Refs: 2}) {
			t.Fatalf("the adoption: %+v, %v", adoption, err)
		}
	}
	hasAdopted := func(server *testServer) {
		t.Helper()
		server.wantLacking(known, known[1])
		if refs := everything(t, server.bare(repository)); !strings.Contains(refs, "refs/clew/uid-2/code/1") || !strings.Contains(refs, "refs/clew/uid-2/state/1") {
			t.Errorf("the refs are\n%s", refs)
		}
		former := server.client("task:team:fix:uid-1:2")
		late := former.commit("a", "late")
		former.refusedPush(gitstoreapi.TaskDeleted, "can no longer push", late+":refs/clew/uid-1/code/2")
	}
	server.wantLacking(known, known...)
	before := server.copied()

	fences, err := server.store.fences("team")
	if err != nil {
		t.Fatal(err)
	}
	if err := fences.adopt(t.Context(), "uid-2", "uid-1", uidOfTeam); err != nil { // and then it is killed
		t.Fatal(err)
	}
	server.wantLacking(known, known...)
	during := server.copied()

	adopts(server)
	hasAdopted(server)
	after := server.copied()
	for name, older := range map[string]string{"before the adoption": before, "in the middle of it": during} {
		t.Run(name, func(t *testing.T) {
			restored := server.restored(older)
			restored.wantLacking(known, known...)
			adopts(restored)
			adopts(restored) // it may be repeated
			hasAdopted(restored)
		})
	}
	hasAdopted(server.restored(after)) // the newer copy is put back in its place
}

// TestARestoredGitstoreLearnsAgainWhoseAnAdoptedTaskIs: it has forgotten the former task, which was
// of a namespace made anew, and must not give what the new task has to the earlier namespace.
func TestARestoredGitstoreLearnsAgainWhoseAnAdoptedTaskIs(t *testing.T) {
	server := newTestServer(t, Limits{})
	old := server.client("task:team:old:uid-old:1")
	old.push(old.commit("a", "old") + ":refs/clew/uid-old/code/1")
	restored := server.restored(server.copied())
	restored.tell(team(uidOfTeam, "team"), team(uidAnew, "team@"+uidAnew))
	adoption := gitstoreapi.TaskAdoption{Namespace: "team", UID: "uid-2", Former: "uid-1", NamespaceUID: uidAnew}
	if got, err := restored.as(managerToken).AdoptTask(t.Context(), adoption); err != nil || !got.Unknown {
		t.Fatalf("the adoption: %+v, %v", got, err)
	}
	restored.wantLacking([]gitstoreapi.TaskAdoption{adoption})
	for uid, want := range map[string]map[string]bool{
		uidOfTeam: {"uid-old": true, "uid-1": false, "uid-2": false},
		uidAnew:   {"uid-old": false, "uid-1": true, "uid-2": true},
	} {
		owned, err := restored.store.belongings("team", uid)
		if err != nil {
			t.Fatal(err)
		}
		for task, has := range want {
			if owned.has(task) != has {
				t.Errorf("the task %s belongs to %s: %t, want %t", task, uid, !has, has)
			}
		}
	}

	anew := serveNamespace(t, restored.store, Limits{}, wordOfToken{uid: uidAnew})
	pod := anew.client("task:team:fix:uid-2:2")
	one := pod.commit("a", "one") // which the volume has
	pod.push(one + ":refs/clew/uid-2/code/1")
	if got := anew.refsOf(readerToken); got != "refs/clew/uid-2/code/1" {
		t.Errorf("readers of the namespace made anew see %s", got)
	}
	if got := restored.refsOf(readerToken); got != "refs/clew/uid-old/code/1" {
		t.Errorf("readers of the earlier namespace see %s", got)
	}
}

// TestADeletedTaskLeavesNothingOfItsFormersInARestoredGitstore: the gitstore does not know of the
// adoption yet, and takes the former task for another one of that name.
func TestADeletedTaskLeavesNothingOfItsFormersInARestoredGitstore(t *testing.T) {
	server := newTestServer(t, Limits{})
	first := server.client("task:team:fix:uid-1:1")
	one := first.commit("a", "one")
	first.push(one+":refs/clew/uid-1/code/1", one+":refs/clew/uid-1/live")
	first.push(first.commit("a", "two") + ":refs/heads/clew/fix/kept")
	// By more formers than fit into the headers of a request, and as an older server asks for it.
	var formers []string
	for n := range gitstoreapi.MaxFormers {
		formers = append(formers, fmt.Sprintf("former-%029d", n))
	}
	for how, ask := range map[string]func(*testServer) error{
		"in pages": func(server *testServer) error {
			_, err := server.as(serverToken).DeleteTask(t.Context(), "team", "uid-2", "fix", append(formers, "uid-1"))
			return err
		},
		"in the query": func(server *testServer) error {
			if code, body := server.ask(http.MethodDelete, "/team/tasks/uid-2?name=fix&former=uid-1", serverToken); code != http.StatusOK {
				return errors.New(body)
			}
			return nil
		},
	} {
		t.Run(how, func(t *testing.T) {
			restored := server.restored(server.copied())
			for range 2 { // it may be repeated
				if err := ask(restored); err != nil {
					t.Fatal(err)
				}
				if left := everything(t, restored.bare(repository)); left != "" {
					t.Errorf("after the deletion the repository has\n%s", left)
				}
			}
			former := restored.client("task:team:fix:uid-1:1")
			late := former.commit("a", "late")
			former.refusedPush(gitstoreapi.TaskDeleted, "can no longer push", late+":refs/clew/uid-1/code/2")
		})
	}
}

// The server may have listed the adoptions before the task's history was deleted.
func TestADeletedTaskAdoptsNothing(t *testing.T) {
	server := newTestServer(t, Limits{})
	first := server.client("task:team:fix:uid-1:1")
	one := first.commit("a", "one")
	first.push(one + ":refs/clew/uid-1/code/1")
	server.deleteTask(serverToken, "uid-2", "fix")
	adoption, err := server.as(serverToken).AdoptTask(t.Context(), gitstoreapi.TaskAdoption{Namespace: "team", UID: "uid-2", Former: "uid-1"})
	if err != nil || adoption.Refs > 0 {
		t.Errorf("the adoption: %+v, %v", adoption, err)
	}
	if refs := everything(t, server.bare(repository)); strings.Contains(refs, "uid-2") {
		t.Errorf("the refs are\n%s", refs)
	}
	server.wantLacking([]gitstoreapi.TaskAdoption{{Namespace: "team", UID: "uid-2", Former: "uid-1"}}) // it would be asked for again and again
}

// TestAnAdoptionBringsWhatTheFormerTaskHadAdopted: it needs no requests of its own.
func TestAnAdoptionBringsWhatTheFormerTaskHadAdopted(t *testing.T) {
	server := newTestServer(t, Limits{})
	first := server.client("task:team:fix:uid-1:1")
	one := first.commit("a", "one")
	first.push(one + ":refs/clew/uid-1/code/1")
	of := func(uid, former string) gitstoreapi.TaskAdoption {
		return gitstoreapi.TaskAdoption{Namespace: "team", UID: uid, Former: former}
	}
	fences, err := server.store.fences("team")
	if err != nil {
		t.Fatal(err)
	}
	if err := fences.adopt(t.Context(), "uid-2", "uid-1", uidOfTeam); err != nil { // and then it is killed
		t.Fatal(err)
	}
	during := server.copied()
	for _, a := range []gitstoreapi.TaskAdoption{of("uid-2", "uid-1"), of("uid-3", "uid-2")} {
		if _, err := server.as(serverToken).AdoptTask(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	known := []gitstoreapi.TaskAdoption{of("uid-3", "uid-1"), of("uid-3", "uid-2")}
	server.wantLacking(known)
	if refs := everything(t, server.bare(repository)); !strings.Contains(refs, "refs/clew/uid-3/code/1") {
		t.Errorf("the refs are\n%s", refs)
	}
	// What the former task had not got is still lacking.
	restored := server.restored(during)
	if _, err := restored.as(serverToken).AdoptTask(t.Context(), of("uid-3", "uid-2")); err != nil {
		t.Fatal(err)
	}
	restored.wantLacking(known, known[0])
}

func TestWhoMayAskForLackingAdoptions(t *testing.T) {
	server := newTestServer(t, Limits{})
	for name, test := range map[string]struct {
		method, token string
		code          int
	}{
		"a task":          {http.MethodPost, "task:team:fix:uid-2:1", http.StatusForbidden},
		"a reader":        {http.MethodPost, readerToken, http.StatusForbidden},
		"nobody":          {http.MethodPost, "", http.StatusUnauthorized},
		"by another verb": {http.MethodGet, serverToken, http.StatusBadRequest},
		"without a body":  {http.MethodPost, serverToken, http.StatusBadRequest},
	} {
		if code, body := server.ask(test.method, gitstoreapi.AdoptionsPath, test.token); code != test.code {
			t.Errorf("%s: code %d, want %d: %s", name, code, test.code, body)
		}
	}
	bad := gitstoreapi.TaskAdoption{Namespace: "team", UID: "../x", Former: "uid-1"}
	if _, err := server.as(serverToken).LackingAdoptions(t.Context(), []gitstoreapi.TaskAdoption{bad}); err == nil || !strings.Contains(err.Error(), "the UIDs of two tasks") {
		t.Errorf("a path for a UID: %v", err)
	}
	many := make([]gitstoreapi.TaskAdoption, gitstoreapi.MaxAdoptions+1)
	if _, err := server.as(serverToken).LackingAdoptions(t.Context(), many); err == nil || !strings.Contains(err.Error(), "at most 1000") {
		t.Errorf("too many: %v", err)
	}
	if code, body := server.ask(http.MethodPost, "/team/tasks/uid-2/adopt?former=uid-1&namespaceUID=..%2Fx", serverToken); code != http.StatusBadRequest {
		t.Errorf("a path for a namespace's UID: code %d, %s", code, body)
	}
}

// The cluster is lost, and Postgres is restored from a copy of before uid-2 adopted uid-1: it knows only
// uid-1, which the Task that is applied again adopts. The gitstore has what uid-2 pushed since.
func TestAnAdoptionBringsWhatTasksPushedThatAnOlderHistoryDoesNotKnow(t *testing.T) {
	for name, test := range map[string]struct {
		second  string // that has adopted uid-1
		begun   bool   // uid-3 has, before it adopts
		adopted bool
	}{
		"the task of before":           {second: "task:team:fix:uid-2:2", adopted: true},
		"a task of another name":       {second: "task:team:other:uid-2:2"},
		"not when it has its own ones": {second: "task:team:fix:uid-2:2", begun: true},
	} {
		t.Run(name, func(t *testing.T) {
			server := newTestServer(t, Limits{})
			first := server.client("task:team:fix:uid-1:1")
			one := first.commit("a", "one")
			first.push(one+":refs/clew/uid-1/code/1", one+":refs/clew/uid-1/state/1")
			fences, err := server.store.fences("team")
			if err != nil {
				t.Fatal(err)
			}
			if err := fences.adopt(t.Context(), "uid-2", "uid-1", uidOfTeam); err != nil {
				t.Fatal(err)
			}
			second := server.client(test.second)
			two := second.commit("a", "a day's work")
			second.push(two+":refs/clew/uid-2/code/2", two+":refs/clew/uid-2/state/2")
			third := server.client("task:team:fix:uid-3:1")
			own := third.commit("a", "begun")
			if test.begun {
				third.push(own + ":refs/clew/uid-3/code/2")
			}

			for range 2 { // it may be repeated
				if code, body := server.adopt(serverToken, "uid-3", "uid-1"); code != http.StatusOK {
					t.Fatalf("code %d, %s", code, body)
				}
				refs := everything(t, server.bare(repository))
				if !strings.Contains(refs, "refs/clew/uid-3/state/1") {
					t.Errorf("the task has not what the former one had:\n%s", refs)
				}
				if got := strings.Contains(refs, "refs/clew/uid-3/state/2"); got != test.adopted {
					t.Errorf("the task has the checkpoint that uid-2 pushed: %t, want %t:\n%s", got, test.adopted, refs)
				}
			}
			if !test.adopted {
				return
			}
			second.refusedPush(gitstoreapi.TaskDeleted, "can no longer push", own+":refs/clew/uid-2/code/3")
			if code, body := server.deleteTask(serverToken, "uid-3", "fix"); code != http.StatusOK {
				t.Fatalf("code %d, %s", code, body)
			}
			if left := everything(t, server.bare(repository)); left != "" {
				t.Errorf("after the deletion of all that the history knows of, the repository has\n%s", left)
			}
		})
	}
}
