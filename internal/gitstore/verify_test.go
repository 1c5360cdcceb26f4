package gitstore

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// verify verifies a checkpoint of the task fix, as Clew's server does.
func (s *testServer) verify(number int, parameters ...string) gitstoreapi.Verification {
	s.t.Helper()
	code, body := s.ask(http.MethodGet, fmt.Sprintf("/team/tasks/uid-fix/verify?checkpoint=%d%s", number, strings.Join(parameters, "")), serverToken)
	var v gitstoreapi.Verification
	if err := json.Unmarshal([]byte(body), &v); code != http.StatusOK || err != nil {
		s.t.Fatalf("the verification of checkpoint %d: code %d, %s", number, code, body)
	}
	return v
}

// again is the parameter by which nothing that was verified before is trusted.
func again() string { return "&since=" + time.Now().UTC().Format(time.RFC3339Nano) }

// intact fails the test unless the checkpoints are intact.
func (s *testServer) intact(numbers ...int) {
	s.t.Helper()
	for _, n := range numbers {
		if v := s.verify(n); len(v.Damage) > 0 {
			s.t.Errorf("checkpoint %d is said to be damaged: %v", n, v.Damage)
		}
	}
}

// withCheckpoints returns a server whose task fix has three checkpoints of a file in a folder and of the
// agent's state, on top of a commit of the origin, and the client.
func withCheckpoints(t testing.TB) (*testServer, *client) {
	t.Helper()
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	fix.commit("README", "origin\n")
	daemon := fix.checkpoints()
	for n := 1; n <= 3; n++ {
		daemon.checkpoint(n)
	}
	return server, daemon
}

// checkpoint pushes a checkpoint of the task fix: its number is in a file of its own folder, and
// in the agent's state.
func (c *client) checkpoint(n int) {
	c.t.Helper()
	noise := strings.Repeat(fmt.Sprintf("%x\n", n*7919), 60) // enough to be worth damaging
	code := c.commit(fmt.Sprintf("src/%d.txt", n), fmt.Sprintf("file %d\n%s", n, noise))
	blob := c.gitWith(fmt.Sprintf("session %d\n%s", n, noise), "hash-object", "-w", "--stdin")
	tree := c.gitWith(fmt.Sprintf("100644 blob %s\tsession.jsonl\n", blob), "mktree")
	state := c.git("commit-tree", "-m", "state", tree)
	c.push(code+":"+codeRef("fix", n), state+":"+stateRef("fix", n))
}

// loosen stores each object of a repository in a file of its own.
func loosen(t testing.TB, path string) {
	t.Helper()
	packs, err := filepath.Glob(filepath.Join(path, "objects", "pack", "*.pack"))
	if err != nil || len(packs) == 0 {
		t.Fatalf("no packs in %s: %v", path, err)
	}
	for _, pack := range packs {
		content, err := os.ReadFile(pack)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{pack, strings.TrimSuffix(pack, ".pack") + ".idx", strings.TrimSuffix(pack, ".pack") + ".rev"} {
			if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		command := exec.Command("git", "--git-dir="+path, "unpack-objects", "-q")
		command.Env, command.Stdin = gitTestEnvironment(), strings.NewReader(string(content))
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("git unpack-objects: %v: %s", err, out)
		}
	}
}

// looseFile returns the file of a loose object.
func looseFile(path, id string) string { return filepath.Join(path, "objects", id[:2], id[2:]) }

// damages are the ways in which a file is damaged.
var damages = map[string]func(path string) error{
	"deleted":   os.Remove,
	"truncated": func(path string) error { return rewrite(path, func(b []byte) []byte { return b[:len(b)/2] }) },
	"flipped": func(path string) error {
		return rewrite(path, func(b []byte) []byte { b[len(b)/2] ^= 0x40; return b })
	},
}

// rewrite changes a file as a failing disk does.
func rewrite(path string, change func([]byte) []byte) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.Chmod(path, 0o644); err != nil {
		return err
	}
	// A second later, so that the time of the file's last change also differs.
	if err := os.WriteFile(path, change(slices.Clone(content)), 0o644); err != nil {
		return err
	}
	return os.Chtimes(path, time.Time{}, time.Now().Add(time.Second))
}

// objectsOf names the objects of checkpoint 3 of the task fix by what they are.
func (c *client) objectsOf3() map[string]string {
	code, state := c.git("rev-parse", "HEAD"), c.git("ls-remote", c.url, stateRef("fix", 3))[:40]
	return map[string]string{
		"commit":              code,
		"tree of the root":    c.git("rev-parse", code+"^{tree}"),
		"tree of a folder":    c.git("rev-parse", code+":src"),
		"blob":                c.git("rev-parse", code+":src/3.txt"),
		"commit of the state": state,
		"tree of the state":   c.git("rev-parse", state+"^{tree}"),
		"blob of the state":   c.git("rev-parse", state+":session.jsonl"),
	}
}

func TestEveryDamagedObjectOfACheckpointIsFoundAndTheOthersStayIntact(t *testing.T) {
	for how, damage := range damages {
		t.Run(how, func(t *testing.T) {
			server, fix := withCheckpoints(t)
			loosen(t, server.bare(repository))
			server.intact(1, 2, 3)
			for what, id := range fix.objectsOf3() {
				file := looseFile(server.bare(repository), id)
				healthy, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if err := damage(file); err != nil {
					t.Fatal(err)
				}
				v := server.verify(3)
				if len(v.Damage) != 1 || v.Damage[0].Object != id {
					t.Errorf("%s %s: found %v, want the object %s", what, how, v.Damage, id)
				}
				if kind, _, _ := strings.Cut(what, " "); len(v.Damage) > 0 && v.Damage[0].Kind != kind {
					t.Errorf("%s %s is said to be a %s", what, how, v.Damage[0].Kind)
				}
				server.intact(2)
				if err := errorsOf(os.RemoveAll(file), os.WriteFile(file, healthy, 0o444)); err != nil {
					t.Fatal(err)
				}
			}
			server.intact(3)
		})
	}
}

func TestDamageIsNamedByItsPath(t *testing.T) {
	server, fix := withCheckpoints(t)
	loosen(t, server.bare(repository))
	file := fix.objectsOf3()["blob"]
	if err := os.Remove(looseFile(server.bare(repository), file)); err != nil {
		t.Fatal(err)
	}
	v := server.verify(3)
	want := "src/3.txt of its code (blob " + file[:12] + ") is missing"
	if len(v.Damage) != 1 || v.Damage[0].String() != want {
		t.Errorf("found %v, want %q", v.Damage, want)
	}
}

func TestDamagedPacksAreFound(t *testing.T) {
	for how, damage := range damages {
		t.Run(how, func(t *testing.T) {
			server, fix := withCheckpoints(t)
			server.intact(1, 2, 3)
			pack := server.packOf(fix.objectsOf3()["commit"])
			if err := damage(pack); err != nil {
				t.Fatal(err)
			}
			if v := server.verify(3, again()); len(v.Damage) == 0 {
				t.Error("no damage was found")
			}
			server.intact(1, 2)
		})
	}
}

func TestADamagedIndexOfAPackIsMadeAgain(t *testing.T) {
	for how, damage := range damages {
		t.Run(how, func(t *testing.T) {
			server, fix := withCheckpoints(t)
			server.intact(1, 2, 3)
			index := strings.TrimSuffix(server.packOf(fix.objectsOf3()["commit"]), ".pack") + ".idx"
			if err := damage(index); err != nil {
				t.Fatal(err)
			}
			server.intact(1, 2, 3)
			fsck(t, server.bare(repository))
		})
	}
}

func TestAPackWithoutItsIndexSurvivesMaintenance(t *testing.T) {
	server, fix := withCheckpoints(t)
	index := strings.TrimSuffix(server.packOf(fix.objectsOf3()["commit"]), ".pack") + ".idx"
	if err := os.Remove(index); err != nil {
		t.Fatal(err)
	}
	maintainer := NewMaintainer(server.handler, time.Hour, 0, server.handler.log)
	if err := maintainer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	maintainer.maintainAll(t.Context())
	fsck(t, server.bare(repository))
	server.intact(1, 2, 3)
}

// packOf returns the pack that stores an object.
func (s *testServer) packOf(id string) string {
	s.t.Helper()
	indexes, err := filepath.Glob(filepath.Join(s.bare(repository), "objects", "pack", "*.idx"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, index := range indexes {
		ids, err := readIndex(index)
		if err != nil {
			s.t.Fatal(err)
		}
		if slices.Contains(ids, id) {
			return strings.TrimSuffix(index, ".idx") + ".pack"
		}
	}
	s.t.Fatalf("no pack has the object %s", id)
	return ""
}

func TestACheckpointThatBuildsOnDamageIsDamaged(t *testing.T) {
	server, fix := withCheckpoints(t)
	loosen(t, server.bare(repository))
	origin := fix.git("rev-parse", "HEAD~3")
	if err := os.Remove(looseFile(server.bare(repository), origin)); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 3; n++ {
		if v := server.verify(n); len(v.Damage) == 0 || v.Damage[0].Object != origin {
			t.Errorf("checkpoint %d: found %v, want the commit %s", n, v.Damage, origin)
		}
	}
}

func TestWhatWasVerifiedIsNotReadAgainOnTheSameDay(t *testing.T) {
	server, fix := withCheckpoints(t)
	now := time.Now()
	server.handler.verified.now = func() time.Time { return now }
	server.intact(1, 2, 3)
	blob := fix.objectsOf3()["blob"]
	pack := server.packOf(blob)
	info, err := os.Stat(pack)
	if err != nil {
		t.Fatal(err)
	}
	var size, stored, offset int
	for line := range strings.Lines(fix.git("verify-pack", "-v", pack)) {
		if rest, ok := strings.CutPrefix(line, blob+" blob "); ok {
			if _, err := fmt.Sscan(rest, &size, &stored, &offset); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A failing disk changes no times.
	flip := func(b []byte) []byte { b[offset+stored/2] ^= 0x40; return b }
	if err := errorsOf(rewrite(pack, flip), os.Chtimes(pack, time.Time{}, info.ModTime())); err != nil {
		t.Fatal(err)
	}
	server.intact(3)
	now = now.Add(verifiedFor + time.Second)
	if v := server.verify(3); len(v.Damage) == 0 {
		t.Error("the damage was not found on the next day")
	}
}

// TestOneWhoAsksOftenHasLittleReadAgain: whoever may read checkpoints may ask for verifications
// without end.
func TestOneWhoAsksOftenHasLittleReadAgain(t *testing.T) {
	server, fix := withCheckpoints(t)
	now := time.Now()
	verified := server.handler.verified
	verified.now, verified.pause = func() time.Time { return now }, rereadPause
	server.intact(1, 2, 3)
	readAgain := func(want bool, when string, parameters ...string) {
		t.Helper()
		parts := verified.of(*must(server.handler.store.repositoryOf("team", "uid-fix")))
		before := parts.since
		server.verify(3, parameters...)
		if got := parts.since != before; got != want {
			t.Errorf("%s: all was read again: %t, want %t", when, got, want)
		}
	}
	readAgain(false, "without a request for it")
	now = now.Add(time.Second)
	readAgain(true, "at the first request", again())
	for range 3 {
		now = now.Add(rereadPause / 4)
		readAgain(false, "at the next ones", "&since="+now.UTC().Format(time.RFC3339Nano))
	}
	tip := fix.git("rev-parse", "HEAD")
	fix.commit("more.txt", "more")
	if _, _, err := fix.try("push", fix.url, "HEAD:refs/heads/elsewhere"); err == nil {
		t.Error("a push that must be refused was stored")
	}
	now = now.Add(rereadPause)
	readAgain(false, "after a push that was refused")
	verified.suspect(*must(server.handler.store.repositoryOf("team", "uid-fix")), "fatal: unable to read tree "+tip)
	readAgain(true, "after a fetch met damage")
	verified.suspect(*must(server.handler.store.repositoryOf("team", "uid-fix")), "fatal: unable to read tree "+tip)
	readAgain(false, "after the next one")
	now = now.Add(rereadPause)
	readAgain(true, "once the pause is over")
}

// TestALooseObjectIsReadOnce: a repository with objects that are in no pack is verified by its files
// nevertheless.
func TestALooseObjectIsReadOnce(t *testing.T) {
	server, fix := withCheckpoints(t)
	id := fix.gitWith("loose", "--git-dir="+server.bare(repository), "hash-object", "-w", "--stdin")
	server.intact(1, 2, 3)
	parts := server.handler.verified.of(*must(server.handler.store.repositoryOf("team", "uid-fix")))
	file := looseFile(server.bare(repository), id)
	if _, ok := parts.files[file]; !ok {
		t.Errorf("what was verified does not contain %s", file)
	}
	for how, damage := range damages {
		healthy := must(os.ReadFile(file))
		if err := damage(file); err != nil {
			t.Fatal(err)
		}
		server.intact(3) // it does not need the object
		if _, found := parts.damaged[file]; found == (how == "deleted") {
			t.Errorf("%s: it counts as damaged: %t", how, found)
		}
		if err := errorsOf(os.RemoveAll(file), os.WriteFile(file, healthy, 0o444)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAVerificationIsRefused(t *testing.T) {
	server, _ := withCheckpoints(t)
	for name, tc := range map[string]struct {
		method, path, token string
		reason              gitstoreapi.Reason
	}{
		"reader":         {http.MethodGet, "/team/tasks/uid-fix/verify?checkpoint=1", readerToken, gitstoreapi.Forbidden},
		"task":           {http.MethodGet, "/team/tasks/uid-fix/verify?checkpoint=1", taskToken("fix", 1), gitstoreapi.Forbidden},
		"nobody":         {http.MethodGet, "/team/tasks/uid-fix/verify?checkpoint=1", "", gitstoreapi.Unauthenticated},
		"other method":   {http.MethodPost, "/team/tasks/uid-fix/verify?checkpoint=1", serverToken, gitstoreapi.BadRequest},
		"no checkpoint":  {http.MethodGet, "/team/tasks/uid-fix/verify", serverToken, gitstoreapi.BadRequest},
		"bad checkpoint": {http.MethodGet, "/team/tasks/uid-fix/verify?checkpoint=-1", serverToken, gitstoreapi.BadRequest},
		"other task":     {http.MethodGet, "/team/tasks/uid-other/verify?checkpoint=1", serverToken, gitstoreapi.NotFound},
	} {
		_, body := server.ask(tc.method, tc.path, tc.token)
		checkRefused(t, name, body, tc.reason)
	}
	if v := server.verify(9); len(v.Damage) != 2 || v.Damage[0].What != "is not in the gitstore" {
		t.Errorf("a checkpoint that does not exist: %+v", v)
	}
}

// TestWhatGitMeetsIsVerifiedAgain: a fetch or a difference meets damage in a file whose size and times
// have not changed since it was verified.
func TestWhatGitMeetsIsVerifiedAgain(t *testing.T) {
	for who, meet := range map[string]func(*testServer, *client){
		"a fetch": func(s *testServer, _ *client) {
			other := s.client(taskToken("fix", 1))
			if _, _, err := other.try("fetch", other.url, codeRef("fix", 3)); err == nil {
				t.Error("a damaged checkpoint was fetched")
			}
		},
		"a difference": func(s *testServer, _ *client) {
			s.ask(http.MethodGet, "/team/tasks/uid-fix/diff?from=checkpoint/1&to=checkpoint/3", serverToken)
		},
	} {
		t.Run(who, func(t *testing.T) {
			server, fix := withCheckpoints(t)
			server.intact(1, 2, 3)
			file := server.packOf(fix.objectsOf3()["commit"])
			info, err := os.Stat(file)
			if err == nil {
				at := offsetIn(t, file, fix.objectsOf3()["blob"]) + 12
				err = rewrite(file, func(b []byte) []byte { b[at] ^= 0x40; return b })
			}
			if err == nil {
				err = os.Chtimes(file, time.Time{}, info.ModTime())
			}
			if err != nil {
				t.Fatal(err)
			}
			server.intact(3)
			meet(server, fix)
			if found := server.verify(3).Damage; len(found) == 0 {
				t.Error("the damage was met, and is not found")
			}
		})
	}
}

func TestAPushThatBuildsOnDamagedObjectsIsToldSo(t *testing.T) {
	server, fix := withCheckpoints(t)
	loosen(t, server.bare(repository))
	if err := damages["flipped"](looseFile(server.bare(repository), fix.objectsOf3()["tree of a folder"])); err != nil {
		t.Fatal(err)
	}
	next := fix.commit("more.txt", "more")
	fix.refusedPush(gitstoreapi.Unavailable, gitstoreapi.DamagedObjects, next+":"+codeRef("fix", 4), next+":"+stateRef("fix", 4))
}

// offsetIn returns where an object begins in a pack.
func offsetIn(t testing.TB, pack, id string) int {
	t.Helper()
	index, err := os.Open(strings.TrimSuffix(pack, ".pack") + ".idx")
	if err != nil {
		t.Fatal(err)
	}
	defer index.Close()
	command := exec.Command("git", "show-index")
	command.Stdin = index
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		var at int
		var found string
		if _, err := fmt.Sscan(line, &at, &found); err == nil && found == id {
			return at
		}
	}
	t.Fatalf("the pack %s does not contain %s", pack, id)
	return 0
}
