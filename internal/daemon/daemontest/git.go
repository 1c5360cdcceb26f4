package daemontest

import (
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// Git serves the bare repositories in a folder over HTTP, for fetching and pushing.
type Git struct {
	URL, Dir string
	down     atomic.Bool
	fence    atomic.Int64
	pushes   atomic.Int64
}

// NewGit starts a git server that ends with the test.
func NewGit(t testing.TB) *Git {
	t.Helper()
	execPath, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	g := &Git{Dir: t.TempDir()}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(execPath)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + g.Dir, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=clew", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"},
	}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		if strings.HasSuffix(r.URL.Path, "git-receive-pack") || r.URL.Query().Get("service") == "git-receive-pack" {
			if newest := g.fence.Load(); attemptOf(r) < newest {
				http.Error(w, gitstoreapi.Stale("work", attemptOf(r), newest).Error(), http.StatusConflict)
				return
			}
			g.pushes.Add(1)
		}
		backend.ServeHTTP(w, r)
	}))
	g.URL = h.URL
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return g
}

// SetDown makes the server refuse every request, or work again.
func (g *Git) SetDown(down bool) { g.down.Store(down) }

// Fence makes the server refuse pushes of attempts older than newest.
func (g *Git) Fence(newest int64) { g.fence.Store(newest) }

// attemptOf returns the attempt of the pod whose token the request has.
func attemptOf(r *http.Request) int64 {
	_, token, _ := r.BasicAuth()
	_, number, _ := strings.Cut(token, "/")
	attempt, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0
	}
	return attempt
}

// New creates an empty repository and returns its URL.
func (g *Git) New(t testing.TB, name string) string {
	t.Helper()
	g.Run(t, "", "init", "--quiet", "--bare", "--initial-branch=main", filepath.Join(g.Dir, name+".git"))
	return g.URL + "/" + name + ".git"
}

// NewOrigin creates a repository with one commit of the files and returns its URL.
func (g *Git) NewOrigin(t testing.TB, files map[string]string) string {
	t.Helper()
	url := g.New(t, "origin")
	work := t.TempDir()
	g.Run(t, work, "init", "--quiet", "--initial-branch=main")
	for path, text := range files {
		path = filepath.Join(work, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g.Run(t, work, "add", "-A")
	g.Run(t, work, "commit", "--quiet", "-m", "first")
	g.Run(t, work, "push", "--quiet", filepath.Join(g.Dir, "origin.git"), "main")
	return url
}

// Refs lists the refs of a repository.
func (g *Git) Refs(t testing.TB, name string) []string {
	t.Helper()
	return strings.Fields(g.Run(t, "", "--git-dir", filepath.Join(g.Dir, name+".git"), "for-each-ref", "--format=%(refname)"))
}

// Run runs git without the user's configuration.
func (g *Git) Run(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_DATE=1700000000 +0000", "GIT_COMMITTER_DATE=1700000000 +0000", "GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@b.c", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@b.c")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
