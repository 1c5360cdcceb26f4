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

// gitServer serves the repositories below a folder through git http-backend. If
// token is not "", it requires that password.
func gitServer(t testing.TB, root, token string) (url string, requests *atomic.Int64) {
	t.Helper()
	handler, requests := gitHandler(t, root, token)
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv.URL, requests
}

// gitHandler is the handler of gitServer.
func gitHandler(t testing.TB, root, token string) (h http.Handler, requests *atomic.Int64) {
	t.Helper()
	exe, err := exec.Command("git", "--exec-path").Output()
	must(t, err)
	backend := &cgi.Handler{
		Stderr: io.Discard,
		Path:   filepath.Join(strings.TrimSpace(string(exe)), "git-http-backend"),
		Env:    []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=http.receivepack", "GIT_CONFIG_VALUE_0=true", "GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*"},
	}
	requests = &atomic.Int64{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if _, password, _ := r.BasicAuth(); token != "" && password != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}), requests
}

func TestCloneByRef(t *testing.T) {
	origin := makeOrigin(t, 20)
	// An annotated tag of a tag, and a tag of a blob: neither is reachable from a commit.
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
			wantEqual(t, "origin", want, got)
			wantEqual(t, "git status", "", f.git("status", "--porcelain"))
			wantEqual(t, "HEAD", tt.base, strings.TrimSpace(f.git("rev-parse", "HEAD")))
			if tt.branch != "" {
				if out := f.git("status", "--branch", "--porcelain"); !strings.HasPrefix(out, "## "+tt.branch+"...origin/"+tt.branch+"\n") {
					t.Errorf("git status prints %q, want the upstream origin/%s", out, tt.branch)
				}
			}
			f.git("fsck", "--full")
			wantEqual(t, "tags", "a-blob\nv1\nv1-again\n", f.git("tag", "-l"))
			f.git("fetch", "-q")
			c := f.checkpointOn(got.Base)
			wantEqual(t, "changed files right after the clone", nil, c.Files)
			wantEqual(t, "dirty files right after the clone", nil, c.Agent.Dirty)
			f.restoreElsewhere(c)
		})
	}
}

// restoreElsewhere restores a checkpoint of makeOrigin on another volume, from its two
// refs alone.
func (f *fixture) restoreElsewhere(c Checkpoint) {
	f.t.Helper()
	store := filepath.Join(f.base, "store.git")
	gitIn(f.t, f.base, "init", "-q", "--bare", store)
	must(f.t, f.repo.Push(context.Background(), Remote{URL: "file://" + store}, RefUpdate{Source: c.Code, Name: c.CodeRef}, RefUpdate{Source: c.State, Name: c.StateRef}))
	g := newFixture(f.t)
	must(f.t, g.repo.Fetch(context.Background(), Remote{URL: "file://" + store}, c.CodeRef, c.StateRef))
	g.restore(c, ScopeBoth)
	wantEqual(f.t, "git status on another volume", "", g.git("status", "--porcelain"))
	g.git("fsck", "--full")
	g.git("cat-file", "-p", "v1-again")
	g.git("cat-file", "-p", "a-blob")
}

// checkpointOn takes a checkpoint on top of the given commit.
func (f *fixture) checkpointOn(parent string) Checkpoint {
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
		{"no server", CloneRequest{URL: gone.URL + "/origin/.git"}, Unreachable},
		{"no such host", CloneRequest{URL: "http://clew.invalid/x.git"}, Unreachable},
		{"option as ref", CloneRequest{URL: open + "/origin/.git", Ref: "--upload-pack=touch x"}, InvalidReference},
		{"program as URL", CloneRequest{URL: "ext::sh -c id"}, InvalidURL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			_, err := f.repo.Clone(context.Background(), tt.req)
			wantReason(t, err, tt.want)
			if strings.Contains(err.Error(), "token") {
				t.Errorf("the error contains the token: %v", err)
			}
			// A correct request succeeds afterwards.
			_, err = f.repo.Clone(context.Background(), CloneRequest{URL: closed + "/origin/.git", Credentials: Credentials{Username: "user", Password: "s3cret-token"}})
			must(t, err)
			if text, _ := os.ReadFile(filepath.Join(f.work, ".git/config")); strings.Contains(string(text), "token") {
				t.Errorf("the agent's git configuration contains the token: %s", text)
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
		t.Error("the file was deleted or changed")
	}
	must(t, os.Remove(filepath.Join(f.work, "precious")))
	o, err := f.repo.Clone(context.Background(), CloneRequest{})
	must(t, err)
	wantEqual(t, "origin", Origin{Ref: "refs/heads/main", Branch: "main"}, o)
	wantEqual(t, "git status", "## No commits yet on main\n", f.git("status", "--branch", "--porcelain"))
	f.write("later", "later")
	again, err := f.repo.Clone(context.Background(), CloneRequest{})
	must(t, err)
	wantEqual(t, "origin returned by a second clone", o, again)
	// An origin without commits.
	empty := filepath.Join(t.TempDir(), "empty")
	gitIn(t, f.base, "init", "-q", "--bare", empty)
	g := cloned(t, empty)
	c := g.checkpoint()
	wantEqual(t, "parent and tree of the checkpoint", [2]string{"", emptyTree.String()}, [2]string{c.Parent, c.Tree})
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
	both := []RefUpdate{{Source: one.CodeRef, Name: one.CodeRef}, {Source: one.State, Name: one.StateRef}}
	wantReason(t, f.repo.Push(ctx, Remote{URL: url + "/store.git"}, both...), AuthenticationFailed)
	wantReason(t, f.repo.Push(ctx, Remote{URL: url + "/none.git", Token: good.Token}, both...), RepositoryNotFound)
	wantReason(t, f.repo.Push(ctx, Remote{URL: "http://127.0.0.1:1/x.git", Token: good.Token}, both...), Unreachable)
	wantReason(t, f.repo.Push(ctx, good, RefUpdate{Source: strings.Repeat("12", 20), Name: "refs/heads/x"}), CheckpointNotFound)
	wantReason(t, f.repo.Push(ctx, good, RefUpdate{Source: one.Code, Name: "--force"}), InvalidReference)
	must(t, f.repo.Push(ctx, good, both...))
	must(t, f.repo.Push(ctx, good, both...)) // idempotent
	refs, err := f.repo.RemoteRefs(ctx, good, "refs/clew/uid-1/")
	must(t, err)
	pushed := map[string]string{one.CodeRef: one.Code, one.StateRef: one.State}
	wantEqual(t, "checkpoint refs of the remote", pushed, refs)
	refs, err = f.repo.RemoteRefs(ctx, good, "refs/heads/")
	must(t, err)
	wantEqual(t, "branches of the remote", map[string]string{}, refs)
	// All or none: if one ref cannot be updated, the other one is not either.
	must(t, f.repo.Push(ctx, good, RefUpdate{Source: two.Code, Name: "refs/heads/b"}))
	err = f.repo.Push(ctx, good, RefUpdate{Source: two.Code, Name: two.CodeRef}, RefUpdate{Source: one.Code, Name: "refs/heads/b"})
	wantReason(t, err, Rejected)
	refs, err = f.repo.RemoteRefs(ctx, good, "refs/clew/")
	must(t, err)
	wantEqual(t, "checkpoint refs of the remote after a rejected push", pushed, refs)
	// The error of a rejected push contains the remote's message.
	writeFile(t, filepath.Join(store, "hooks/pre-receive"), "#!/bin/sh\necho 'attempt 2 is not the newest' >&2\nexit 1\n", 0o755)
	err = f.repo.Push(ctx, good, RefUpdate{Source: two.Code, Name: two.CodeRef})
	wantReason(t, err, Rejected)
	if !strings.Contains(err.Error(), "attempt 2 is not the newest") {
		t.Errorf("the error does not contain the remote's message: %v", err)
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error contains the token: %v", err)
	}
	g := newFixture(t)
	wantReason(t, g.repo.Fetch(ctx, good, "refs/clew/uid-1/code/99"), RefNotFound)
	must(t, g.repo.Fetch(ctx, good, one.CodeRef, one.StateRef))
	g.restore(one, ScopeBoth)
	g.git("fsck", "--full")
}

// TestPushSendsOnlyNewObjects pushes checkpoints of a task and of its fork whose state
// is large and does not change.
func TestPushSendsOnlyNewObjects(t *testing.T) {
	ctx := context.Background()
	root := t.TempDir()
	store := filepath.Join(root, "store.git")
	gitIn(t, root, "init", "-q", "--bare", store)
	gitIn(t, store, "config", "receive.unpackLimit", "1") // loose objects would hide that an object was sent twice
	url, _ := gitServer(t, root, "")
	remote := Remote{URL: url + "/store.git"}
	push := func(f *fixture, uid string, number int64, parent string) (Checkpoint, int64) {
		return f.pushMeasured(remote, store, CheckpointRequest{TaskUID: uid, Number: number, Parent: parent, Message: "x\n"})
	}
	f := cloned(t, makeOrigin(t, 20))
	noise := make([]byte, 300<<10) // larger pushes are chunked, which this server does not support
	rand.Read(noise)
	writeFile(t, filepath.Join(f.home, ".agent/session"), string(noise[:200<<10]), 0o600)
	f.write("staged", string(noise[200<<10:]))
	f.git("add", "staged")
	one, first := push(f, "uid-1", 1, f.last.Code)
	if first < 300<<10 {
		t.Fatalf("the first push sent only %d bytes", first)
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
	for name, sent := range map[string]int64{"second push": second, "third push": third, "first push of a fork": forked} {
		if sent > 64<<10 {
			t.Errorf("the %s sent %d bytes, but little has changed", name, sent)
		}
	}

	// A remote that has lost all objects gets all of them.
	must(t, os.RemoveAll(store))
	gitIn(t, root, "init", "-q", "--bare", store)
	must(t, g.repo.Push(ctx, remote, RefUpdate{Source: own.Code, Name: own.CodeRef}, RefUpdate{Source: own.State, Name: own.StateRef}))
	g.write("x", "z")
	last, again := push(g, "uid-2", 2, own.Code)
	if again > 64<<10 {
		t.Errorf("the next push sent %d bytes, but little has changed", again)
	}

	gitIn(t, store, "fsck", "--full")
	h := newFixture(t)
	must(t, h.repo.Fetch(ctx, remote, last.CodeRef, last.StateRef))
	h.restore(last, ScopeBoth)
	sameListing(t, "worktree", listing(t, g.work), listing(t, h.work))
	sameListing(t, "home", listing(t, g.home), listing(t, h.home))
	h.git("fsck", "--full")
}

// pushMeasured takes a checkpoint, pushes it to a store twice, and returns by how many bytes
// the store has grown.
func (f *fixture) pushMeasured(remote Remote, store string, req CheckpointRequest) (c Checkpoint, grown int64) {
	f.t.Helper()
	before := sizeOf(f.t, store)
	c, err := f.repo.Checkpoint(context.Background(), req)
	must(f.t, err)
	for range 2 { // the second push is a repetition
		must(f.t, f.repo.Push(context.Background(), remote, RefUpdate{Source: c.Code, Name: c.CodeRef}, RefUpdate{Source: c.State, Name: c.StateRef}))
	}
	return c, sizeOf(f.t, store) - before
}

// sizeOf returns the total size of the files below a folder.
func sizeOf(t testing.TB, folder string) (bytes int64) {
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

// TestOddTreesPassFsck pushes the oddest worktree to a repository that rejects names
// that would be dangerous to check out.
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
	must(t, f.repo.Push(context.Background(), Remote{URL: "file://" + store}, RefUpdate{Source: c.CodeRef, Name: c.CodeRef}, RefUpdate{Source: c.StateRef, Name: c.StateRef}))
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
		t.Errorf("there were up to %d packs, want at most 12", packs)
	}
	for _, c := range all {
		must(t, f.repo.Verify(ctx, c.target()))
	}
	gitIn(t, f.config().GitDir, "fsck", "--full")
	f.reopen()
	changed := strings.Fields(gitIn(t, f.config().GitDir, "diff-tree", "-r", "--name-only", all[0].Code, all[44].Code))
	wantEqual(t, "number of files that differ", 44, len(changed))
	must(t, f.repo.DeleteRefs(ctx, all[0].CodeRef, all[0].StateRef))
	refs, err := f.repo.Refs(ctx, "refs/clew/uid-1/")
	must(t, err)
	wantEqual(t, "number of refs after two were deleted", 88, len(refs))
	f.repo.cfg.MaxPacks = 1
	m, err := f.repo.Maintain(ctx)
	must(t, err)
	if !m.Repacked {
		t.Errorf("Maintain did not repack after refs were deleted: %+v", m)
	}
	if m.PacksAfter > 3 {
		t.Errorf("after refs were deleted there are %d packs, want at most 3", m.PacksAfter)
	}
	if _, err := gitTry(f.config().GitDir, "cat-file", "-e", all[0].State); err == nil {
		t.Error("the state commit of a deleted ref still exists")
	}
	gitIn(t, f.config().GitDir, "fsck", "--full")
	f.checkpoint()
	_, err = f.repo.ReadMeta(ctx, all[0].StateRef)
	wantReason(t, err, CheckpointNotFound)
	meta, err := f.repo.ReadMeta(ctx, all[3].StateRef)
	must(t, err)
	type part struct {
		Number, TotalFiles int64
		Code, Branch       string
	}
	wantEqual(t, "meta", part{4, 52, all[3].Code, "trunk"}, part{meta.Number, meta.TotalFiles, meta.Code, meta.Agent.Branch})
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
		t.Error("Open accepts session state outside of the home")
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
	type counts struct {
		Changed, Listed int
		Files, Bytes    int64
	}
	wantEqual(t, "counts of the checkpoint", counts{30, 5, 30, 30}, counts{c.FilesChanged, len(c.Files), c.TotalFiles, c.TotalBytes})
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
