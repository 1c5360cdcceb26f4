package worktree

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// gitServer serves the repositories below a folder by git http-backend. If
// token is not "", it is wanted as the password.
func gitServer(t testing.TB, root, token string) (url string, requests *atomic.Int64) {
	t.Helper()
	exe, err := exec.Command("git", "--exec-path").Output()
	must(t, err)
	backend := &cgi.Handler{
		Stderr: io.Discard,
		Path:   filepath.Join(strings.TrimSpace(string(exe)), "git-http-backend"),
		Env:    []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=http.receivepack", "GIT_CONFIG_VALUE_0=true", "GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*"},
	}
	requests = &atomic.Int64{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if _, password, _ := r.BasicAuth(); token != "" && password != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, requests
}

func TestCloneByRef(t *testing.T) {
	origin := makeOrigin(t, 20)
	// An annotated tag of a tag, and a tag of a blob: no commit leads to them.
	gitIn(t, origin, "tag", "-a", "v1-again", "-m", "again", "v1")
	gitIn(t, origin, "tag", "a-blob", "HEAD:second.txt")
	url, _ := gitServer(t, filepath.Dir(origin), "")
	first := strings.TrimSpace(gitIn(t, origin, "rev-parse", "v1^{commit}"))
	second := strings.TrimSpace(gitIn(t, origin, "rev-parse", "trunk"))
	for _, tt := range []struct{ ref, wantRef, branch, base string }{
		{"", "refs/heads/trunk", "trunk", second},
		{"trunk", "refs/heads/trunk", "trunk", second},
		{"side/branch", "refs/heads/side/branch", "side/branch", first},
		{"refs/heads/side/branch", "refs/heads/side/branch", "side/branch", first},
		{"v1", "refs/tags/v1", "", first},
		{"refs/tags/v1-again", "refs/tags/v1-again", "", first},
		{first, first, "", first},
	} {
		t.Run(tt.ref, func(t *testing.T) {
			f := newFixture(t)
			got, err := f.repo.Clone(context.Background(), CloneRequest{URL: url + "/origin/.git", Ref: tt.ref})
			must(t, err)
			want := Origin{URL: url + "/origin/.git", Ref: tt.wantRef, Branch: tt.branch, Base: tt.base}
			if got != want {
				t.Errorf("the origin is %+v, want %+v", got, want)
			}
			if out := f.git("status", "--porcelain"); out != "" {
				t.Errorf("git status says %q", out)
			}
			if out := strings.TrimSpace(f.git("rev-parse", "HEAD")); out != tt.base {
				t.Errorf("HEAD is %s", out)
			}
			if tt.branch != "" {
				if out := f.git("status", "--branch", "--porcelain"); !strings.HasPrefix(out, "## "+tt.branch+"...origin/"+tt.branch+"\n") {
					t.Errorf("the upstream is %q", out)
				}
			}
			f.git("fsck", "--full")
			if out := f.git("tag", "-l"); out != "a-blob\nv1\nv1-again\n" {
				t.Errorf("the tags are %q", out)
			}
			f.git("fetch", "-q")
			c := f.checkpoint2(got.Base)
			if c.FilesChanged != 0 || c.Agent.DirtyCount != 0 {
				t.Errorf("right after the clone, changed are %+v, dirty %+v", c.Files, c.Agent.Dirty)
			}
			// The same elsewhere, with nothing but the two refs.
			store := filepath.Join(f.base, "store.git")
			gitIn(t, f.base, "init", "-q", "--bare", store)
			must(t, f.repo.Push(context.Background(), Remote{URL: "file://" + store}, RefUpdate{c.Code, c.CodeRef}, RefUpdate{c.State, c.StateRef}))
			g := newFixture(t)
			must(t, g.repo.Fetch(context.Background(), Remote{URL: "file://" + store}, c.CodeRef, c.StateRef))
			g.restore(c, ScopeBoth)
			if out := g.git("status", "--porcelain"); out != "" {
				t.Errorf("elsewhere git status says %q", out)
			}
			g.git("fsck", "--full")
			g.git("cat-file", "-p", "v1-again")
			g.git("cat-file", "-p", "a-blob")
		})
	}
}

// checkpoint2 takes a checkpoint on top of a given commit.
func (f *fixture) checkpoint2(parent string) Checkpoint {
	f.last.Code = parent
	return f.checkpoint()
}

func TestCloneRefused(t *testing.T) {
	origin := makeOrigin(t, 3)
	open, _ := gitServer(t, filepath.Dir(origin), "")
	closed, _ := gitServer(t, filepath.Dir(origin), "s3cret-token")
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, tt := range []struct {
		name string
		req  CloneRequest
		want Reason
	}{
		{"no such repository", CloneRequest{URL: open + "/other.git"}, RepositoryNotFound},
		{"no such branch", CloneRequest{URL: open + "/origin/.git", Ref: "none"}, RefNotFound},
		{"no such commit", CloneRequest{URL: open + "/origin/.git", Ref: strings.Repeat("12", 20)}, RefNotFound},
		{"no credentials", CloneRequest{URL: closed + "/origin/.git"}, AuthenticationFailed},
		{"wrong credentials", CloneRequest{URL: closed + "/origin/.git", Credentials: Credentials{Password: "wrong-token"}}, AuthenticationFailed},
		{"nobody there", CloneRequest{URL: gone.URL + "/origin/.git"}, Unreachable},
		{"no such host", CloneRequest{URL: "http://clew.invalid/x.git"}, Unreachable},
		{"option as ref", CloneRequest{URL: open + "/origin/.git", Ref: "--upload-pack=touch x"}, InvalidReference},
		{"program as URL", CloneRequest{URL: "ext::sh -c id"}, InvalidURL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			_, err := f.repo.Clone(context.Background(), tt.req)
			wantReason(t, err, tt.want)
			if strings.Contains(err.Error(), "token") {
				t.Errorf("the error shows the token: %v", err)
			}
			// Once the request is right, it works.
			_, err = f.repo.Clone(context.Background(), CloneRequest{URL: closed + "/origin/.git", Credentials: Credentials{Username: "user", Password: "s3cret-token"}})
			must(t, err)
			if text, _ := os.ReadFile(filepath.Join(f.work, ".git/config")); strings.Contains(string(text), "token") {
				t.Errorf("the agent's configuration holds the token: %s", text)
			}
		})
	}
}

func TestCloneIntoFullWorktree(t *testing.T) {
	f := newFixture(t)
	f.write("precious", "precious")
	_, err := f.repo.Clone(context.Background(), CloneRequest{})
	wantReason(t, err, WorktreeNotEmpty)
	if text, _ := os.ReadFile(filepath.Join(f.work, "precious")); string(text) != "precious" {
		t.Error("the file is gone")
	}
	must(t, os.Remove(filepath.Join(f.work, "precious")))
	o, err := f.repo.Clone(context.Background(), CloneRequest{})
	must(t, err)
	if o != (Origin{Ref: "refs/heads/main", Branch: "main"}) {
		t.Errorf("the origin is %+v", o)
	}
	if out := f.git("status", "--branch", "--porcelain"); out != "## No commits yet on main\n" {
		t.Errorf("git status says %q", out)
	}
	f.write("later", "later")
	again, err := f.repo.Clone(context.Background(), CloneRequest{})
	if err != nil || again != o {
		t.Errorf("a second clone says %+v, %v", again, err)
	}
	// An origin without any commit.
	empty := filepath.Join(t.TempDir(), "empty")
	gitIn(t, f.base, "init", "-q", "--bare", empty)
	g := cloned(t, empty)
	c := g.checkpoint()
	if c.Parent != "" || c.Tree != emptyTree.String() {
		t.Errorf("the checkpoint is %+v", c)
	}
}

func TestPushAndFetch(t *testing.T) {
	ctx := context.Background()
	root := t.TempDir()
	store := filepath.Join(root, "store.git")
	gitIn(t, root, "init", "-q", "--bare", store)
	url, _ := gitServer(t, root, "s3cret-token")
	f := cloned(t, makeOrigin(t, 20))
	one := f.checkpoint()
	f.write("x", "x")
	two := f.checkpoint()
	good := Remote{URL: url + "/store.git", Token: "s3cret-token"}
	both := []RefUpdate{{one.CodeRef, one.CodeRef}, {one.State, one.StateRef}}
	wantReason(t, f.repo.Push(ctx, Remote{URL: url + "/store.git"}, both...), AuthenticationFailed)
	wantReason(t, f.repo.Push(ctx, Remote{URL: url + "/none.git", Token: good.Token}, both...), RepositoryNotFound)
	wantReason(t, f.repo.Push(ctx, Remote{URL: "http://127.0.0.1:1/x.git", Token: good.Token}, both...), Unreachable)
	wantReason(t, f.repo.Push(ctx, good, RefUpdate{strings.Repeat("12", 20), "refs/heads/x"}), CheckpointNotFound)
	wantReason(t, f.repo.Push(ctx, good, RefUpdate{one.Code, "--force"}), InvalidReference)
	must(t, f.repo.Push(ctx, good, both...))
	must(t, f.repo.Push(ctx, good, both...)) // the same again
	refs, err := f.repo.RemoteRefs(ctx, good, "refs/clew/uid-1/")
	must(t, err)
	if len(refs) != 2 || refs[one.CodeRef] != one.Code || refs[one.StateRef] != one.State {
		t.Errorf("the remote has %v", refs)
	}
	refs, err = f.repo.RemoteRefs(ctx, good, "refs/heads/")
	if err != nil || len(refs) != 0 {
		t.Errorf("the remote has the branches %v, %v", refs, err)
	}
	// All or none: a ref that may not go back holds the other one up.
	must(t, f.repo.Push(ctx, good, RefUpdate{two.Code, "refs/heads/b"}))
	err = f.repo.Push(ctx, good, RefUpdate{two.Code, two.CodeRef}, RefUpdate{one.Code, "refs/heads/b"})
	wantReason(t, err, Rejected)
	if refs, _ := f.repo.RemoteRefs(ctx, good, "refs/clew/"); len(refs) != 2 {
		t.Errorf("after a push that was refused the remote has %v", refs)
	}
	// A refusal of the remote's comes with its words.
	writeFile(t, filepath.Join(store, "hooks/pre-receive"), "#!/bin/sh\necho 'attempt 2 is not the newest' >&2\nexit 1\n", 0o755)
	err = f.repo.Push(ctx, good, RefUpdate{two.Code, two.CodeRef})
	wantReason(t, err, Rejected)
	if !strings.Contains(err.Error(), "attempt 2 is not the newest") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error is %v", err)
	}
	g := newFixture(t)
	wantReason(t, g.repo.Fetch(ctx, good, "refs/clew/uid-1/code/99"), RefNotFound)
	must(t, g.repo.Fetch(ctx, good, one.CodeRef, one.StateRef))
	g.restore(one, ScopeBoth)
	g.git("fsck", "--full")
}

// TestPushSendsWhatIsNew pushes checkpoints of a task and of its fork whose state
// is large and does not change.
func TestPushSendsWhatIsNew(t *testing.T) {
	ctx := context.Background()
	root := t.TempDir()
	store := filepath.Join(root, "store.git")
	gitIn(t, root, "init", "-q", "--bare", store)
	gitIn(t, store, "config", "receive.unpackLimit", "1") // unpacked, what comes twice would not show
	url, _ := gitServer(t, root, "")
	remote := Remote{URL: url + "/store.git"}
	push := func(f *fixture, uid string, number int64, parent string) (c Checkpoint, grown int64) {
		t.Helper()
		before := sizeOf(t, store)
		c, err := f.repo.Checkpoint(ctx, CheckpointRequest{TaskUID: uid, Number: number, Parent: parent, Message: "x\n"})
		must(t, err)
		must(t, f.repo.Push(ctx, remote, RefUpdate{c.Code, c.CodeRef}, RefUpdate{c.State, c.StateRef}))
		must(t, f.repo.Push(ctx, remote, RefUpdate{c.Code, c.CodeRef}, RefUpdate{c.State, c.StateRef})) // the same again
		return c, sizeOf(t, store) - before
	}
	f := cloned(t, makeOrigin(t, 20))
	noise := make([]byte, 300<<10) // larger pushes come in pieces, which this server does not take
	rand.Read(noise)
	writeFile(t, filepath.Join(f.home, ".agent/session"), string(noise[:200<<10]), 0o600)
	f.write("staged", string(noise[200<<10:]))
	f.git("add", "staged")
	one, first := push(f, "uid-1", 1, f.last.Code)
	if first < 300<<10 {
		t.Fatalf("the first push brought %d bytes, which cannot be all", first)
	}
	f.reopen()
	f.write("x", "x")
	two, second := push(f, "uid-1", 2, one.Code)
	f.write("x", "y")
	_, third := push(f, "uid-1", 3, two.Code)

	g := newFixture(t)
	must(t, g.repo.Fetch(ctx, remote, one.CodeRef, one.StateRef))
	g.restore(one, ScopeBoth)
	g.reopen()
	own, forked := push(g, "uid-2", 1, one.Code)
	if second > 64<<10 || third > 64<<10 || forked > 64<<10 {
		t.Errorf("the pushes brought %d bytes, then %d and %d, and %d for a fork", first, second, third, forked)
	}

	// A remote that has lost everything gets everything.
	must(t, os.RemoveAll(store))
	gitIn(t, root, "init", "-q", "--bare", store)
	must(t, g.repo.Push(ctx, remote, RefUpdate{own.Code, own.CodeRef}, RefUpdate{own.State, own.StateRef}))
	g.write("x", "z")
	last, again := push(g, "uid-2", 2, own.Code)
	if again > 64<<10 {
		t.Errorf("the push brought %d bytes", again)
	}

	gitIn(t, store, "fsck", "--full")
	h := newFixture(t)
	must(t, h.repo.Fetch(ctx, remote, last.CodeRef, last.StateRef))
	h.restore(last, ScopeBoth)
	sameListing(t, "worktree", listing(t, g.work), listing(t, h.work))
	sameListing(t, "home", listing(t, g.home), listing(t, h.home))
	h.git("fsck", "--full")
}

func sizeOf(t *testing.T, folder string) (bytes int64) {
	t.Helper()
	must(t, filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	}))
	return bytes
}

// TestOddTreesPassFsck pushes the oddest worktree to a repository that checks
// what it receives for names that could do harm where it is checked out.
func TestOddTreesPassFsck(t *testing.T) {
	f := cloned(t, makeOrigin(t, 5))
	f.fillOddly()
	for _, name := range []string{".git ", ".git.", ".g\u200cit", "x\\.git", ".git::$INDEX_ALLOCATION"} {
		f.write("more/"+name+"/file", "x")
	}
	want := listing(t, f.work)
	c := f.checkpoint()
	store := filepath.Join(f.base, "store.git")
	gitIn(t, f.base, "init", "-q", "--bare", store)
	gitIn(t, store, "config", "receive.fsckObjects", "true")
	must(t, f.repo.Push(context.Background(), Remote{URL: "file://" + store}, RefUpdate{c.CodeRef, c.CodeRef}, RefUpdate{c.StateRef, c.StateRef}))
	must(t, os.RemoveAll(filepath.Join(f.work, "more")))
	f.restore(c, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
	gitIn(t, f.base, "clone", "-q", store, "plain")
	gitIn(t, filepath.Join(f.base, "plain"), "fetch", "-q", "origin", c.CodeRef)
	gitIn(t, filepath.Join(f.base, "plain"), "checkout", "-q", "FETCH_HEAD")
}

func TestMaintainKeepsEverything(t *testing.T) {
	ctx := context.Background()
	f := cloned(t, makeOrigin(t, 50))
	f.repo.cfg.MaxPacks = 10
	var all []Checkpoint
	packs := 0
	for i := range 45 {
		f.write(fileName(i), fmt.Sprintf("round %d\n", i))
		writeFile(t, filepath.Join(f.home, ".agent/session.jsonl"), strings.Repeat("line\n", i*50), 0o644)
		all = append(all, f.checkpoint())
		m, err := f.repo.Maintain(ctx)
		must(t, err)
		packs = max(packs, m.PacksAfter)
	}
	if packs > 12 {
		t.Errorf("there were %d packs at a time", packs)
	}
	for _, c := range all {
		must(t, f.repo.Verify(ctx, c.target()))
	}
	gitIn(t, f.config().GitDir, "fsck", "--full")
	f.reopen()
	d, err := f.repo.Diff(ctx, all[0].Code, all[44].Code)
	must(t, err)
	if d.FilesChanged != 44 || d.LinesAdded != 44 || d.Files[0].Action != Modified {
		t.Errorf("the diff is %+v", d)
	}
	must(t, f.repo.DeleteRefs(ctx, all[0].CodeRef, all[0].StateRef))
	refs, err := f.repo.Refs(ctx, "refs/clew/uid-1/")
	must(t, err)
	if len(refs) != 88 {
		t.Errorf("there are %d refs", len(refs))
	}
	f.repo.cfg.MaxPacks = 1
	m, err := f.repo.Maintain(ctx)
	if err != nil || !m.Repacked || m.PacksAfter > 3 {
		t.Errorf("after refs were deleted: %+v, %v", m, err)
	}
	if _, err := gitTry(f.config().GitDir, "cat-file", "-e", all[0].State); err == nil {
		t.Error("a deleted state commit is still there")
	}
	gitIn(t, f.config().GitDir, "fsck", "--full")
	f.checkpoint()
	_, err = f.repo.ReadMeta(ctx, all[0].StateRef)
	wantReason(t, err, CheckpointNotFound)
	meta, err := f.repo.ReadMeta(ctx, all[3].StateRef)
	must(t, err)
	if meta.Code != all[3].Code || meta.Number != 4 || meta.Agent.Branch != "trunk" || meta.TotalFiles != 52 {
		t.Errorf("meta is %+v", meta)
	}
}

func TestOpenIsExclusive(t *testing.T) {
	f := newFixture(t)
	cfg := f.config()
	cfg.LockWait = 1
	_, err := Open(context.Background(), cfg)
	wantReason(t, err, InUse)
	must(t, f.repo.Close())
	r, err := Open(context.Background(), cfg)
	must(t, err)
	must(t, r.Close())
	cfg.HomeInclude = []string{"../outside"}
	if _, err := Open(context.Background(), cfg); err == nil {
		t.Error("session state outside of the home is accepted")
	}
}

func TestLimits(t *testing.T) {
	f := cloned(t, "")
	ctx := context.Background()
	for i := range 30 {
		f.write(fmt.Sprintf("f%d", i), "x")
	}
	f.repo.cfg.MaxFiles = 40
	_, err := f.repo.Checkpoint(ctx, CheckpointRequest{TaskUID: "u", Number: 1})
	wantReason(t, err, TooManyFiles)
	f.repo.cfg.MaxFiles, f.repo.cfg.MaxListed = 1000, 5
	c := f.checkpoint()
	if c.FilesChanged != 30 || len(c.Files) != 5 || c.TotalFiles != 30 || c.TotalBytes != 30 {
		t.Errorf("%d changed, %d listed, %d files, %d bytes", c.FilesChanged, len(c.Files), c.TotalFiles, c.TotalBytes)
	}
	for _, req := range []CheckpointRequest{{TaskUID: "../x", Number: 1}, {TaskUID: "a/b", Number: 1}, {TaskUID: "u", Number: 0}, {TaskUID: "u", Number: 1, Parent: "HEAD"}} {
		_, err := f.repo.Checkpoint(ctx, req)
		wantReason(t, err, InvalidReference)
	}
	_, err = f.repo.Checkpoint(ctx, CheckpointRequest{TaskUID: "u", Number: 1, Parent: strings.Repeat("12", 20)})
	wantReason(t, err, CheckpointNotFound)
	must(t, os.Rename(f.work, f.work+".aside"))
	_, err = f.repo.Checkpoint(ctx, CheckpointRequest{TaskUID: "u", Number: 1})
	wantReason(t, err, WorktreeMissing)
}
