package gitstore

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/podidentity"
)

// TestMain lets the test binary also run as the hook that git runs, and as the server
// that a test kills.
func TestMain(m *testing.M) {
	switch {
	case slices.Equal(os.Args[1:], []string{"hook", "pre-receive"}):
		if err := PreReceive(os.Stdin, os.Stdout, os.Getenv); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case os.Getenv(serveForTest) != "":
		if err := serveUntilKilled(os.Getenv(serveForTest)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// testGitMemory suffices for what tests push, but not for what bombs need.
const testGitMemory = 64 << 20

// testHook returns the command line that runs the test binary as the hook.
func testHook() []string {
	binary, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return []string{binary, "hook", "pre-receive"}
}

// wordOfToken is an Authenticator that believes what a token says: it has the form
// task:<namespace>:<name>:<uid>:<attempt>, with the :<uid> of the task's source if it has
// one, or :former-<uid> if that is the source of a history that it continues; an attempt of 0 stands for the pod that publishes. Others are reader:<namespace>,
// code:<namespace>, and account:<namespace>:<name>. All are of the namespace with the UID, which is
// uidOfTeam if it is empty.
type wordOfToken struct{ uid string }

const uidOfTeam = "uid-of-team"

// Authenticate implements Authenticator.
func (w wordOfToken) Authenticate(ctx context.Context, token, namespace, _ string) (Caller, error) {
	caller, err := w.caller(ctx, token, namespace)
	caller.NamespaceUID = cmp.Or(w.uid, uidOfTeam)
	if caller.Task != nil {
		caller.Task.NamespaceUID = caller.NamespaceUID
	}
	return caller, err
}

func (wordOfToken) caller(_ context.Context, token, namespace string) (Caller, error) {
	parts := strings.Split(token, ":")
	switch {
	case parts[0] == "down":
		return Caller{}, podidentity.ErrUnavailable
	case parts[0] == "gone":
		return Caller{}, podidentity.ErrPodGone
	case parts[0] == "reader" && len(parts) == 2:
		if parts[1] != namespace {
			return Caller{}, podidentity.ErrForbidden
		}
		return Caller{Name: "ada"}, nil
	case parts[0] == "code" && len(parts) == 2:
		return Caller{Name: "bob", CodeOnly: true}, nil
	case parts[0] == "account" && len(parts) == 3: // a service account that may read every namespace
		return Caller{Name: "system:serviceaccount:" + parts[1] + ":" + parts[2], Namespace: parts[1]}, nil
	case parts[0] == "task" && slices.Contains([]int{5, 6}, len(parts)):
		if parts[1] != namespace {
			return Caller{}, podidentity.ErrForbidden
		}
		attempt, err := strconv.ParseInt(parts[4], 10, 64)
		if err != nil {
			return Caller{}, podidentity.ErrUnauthenticated
		}
		sources, continues := parts[5:], false
		if len(sources) > 0 {
			sources[0], continues = strings.CutPrefix(sources[0], "former-")
		}
		return Caller{Name: parts[2], Task: &Task{Namespace: parts[1], Name: parts[2], UID: parts[3], Attempt: attempt, ReadOnly: attempt == 0, Sources: sources, Continues: continues}}, nil
	}
	return Caller{}, podidentity.ErrUnauthenticated
}

// AuthenticateServer implements Authenticator.
func (wordOfToken) AuthenticateServer(_ context.Context, token string) (Caller, error) {
	switch {
	case token == "down":
		return Caller{}, podidentity.ErrUnavailable
	case token == serverToken:
		return Caller{Name: "clew-system:server"}, nil
	case token == managerToken, strings.HasPrefix(token, "task:"), strings.HasPrefix(token, "reader:"):
		return Caller{}, podidentity.ErrForbidden
	}
	return Caller{}, podidentity.ErrUnauthenticated
}

// AuthenticateManager implements Authenticator.
func (w wordOfToken) AuthenticateManager(ctx context.Context, token string) (Caller, error) {
	if token == managerToken {
		return Caller{Name: "clew-system:manager"}, nil
	}
	if token == serverToken {
		return Caller{}, podidentity.ErrForbidden
	}
	return w.AuthenticateServer(ctx, token)
}

// taskToken returns the token of an attempt of a task in the namespace "team", whose UID is
// "uid-<name>".
func taskToken(name string, attempt int) string {
	return fmt.Sprintf("task:team:%s:uid-%s:%d", name, name, attempt)
}

// forkToken returns the token of a task that was started from another one.
func forkToken(name, source string) string {
	return taskToken(name, 1) + ":uid-" + source
}

const (
	readerToken  = "reader:team"
	codeToken    = "code:team" // a reader who may not read conversations
	serverToken  = "server"
	managerToken = "manager"
	repository   = "r-0123456789abcdef0123"
)

// testServer serves the real handler over TLS.
type testServer struct {
	*httptest.Server
	t        testing.TB
	store    *Store
	handler  *Handler
	registry *prometheus.Registry
	ca       string
}

// newTestServer serves a new store.
func newTestServer(t testing.TB, limits Limits) *testServer {
	t.Helper()
	store, err := Open(t.Context(), t.TempDir(), testGitMemory, testHook())
	if err != nil {
		t.Fatal(err)
	}
	return serveStore(t, store, limits)
}

// again serves the same store with other limits.
func (s *testServer) again(limits Limits) *testServer {
	s.t.Helper()
	return serveStore(s.t, s.store, limits)
}

func serveStore(t testing.TB, store *Store, limits Limits) *testServer {
	t.Helper()
	return serveNamespace(t, store, limits, wordOfToken{})
}

// serveNamespace serves a store to those whom an authenticator knows.
func serveNamespace(t testing.TB, store *Store, limits Limits, of Authenticator) *testServer {
	t.Helper()
	log := logr.Discard()
	if os.Getenv("CLEW_TEST_LOG") != "" {
		log = testr.NewWithInterface(t, testr.Options{Verbosity: 1})
	}
	registry := prometheus.NewRegistry()
	handler, err := NewHandler(store, of, limits, log, registry)
	if err != nil {
		t.Fatal(err)
	}
	handler.verified.pause = 0
	server := httptest.NewUnstartedServer(handler)
	server.Config.MaxHeaderBytes = maxHeaderBytes
	server.StartTLS()
	t.Cleanup(func() {
		server.Close()
		handler.Close()
	})
	return &testServer{
		Server: server, t: t, store: store, handler: handler, registry: registry,
		ca: writeCA(t, server.Certificate()),
	}
}

func writeCA(t testing.TB, certificate *x509.Certificate) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	content := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (s *testServer) url(namespace, repository string) string {
	return s.URL + "/" + namespace + "/" + repository + ".git"
}

// bare returns the path of a repository on the server's disk.
func (s *testServer) bare(repository string) string {
	return s.store.repository("team", repository).Path
}

// client is a git client with a repository of its own.
type client struct {
	t   testing.TB
	dir string
	env []string
	url string
}

// client returns a client with an empty repository that sends the token.
func (s *testServer) client(token string) *client {
	s.t.Helper()
	return newClient(s.t, s.url("team", repository), s.ca, token)
}

func newClient(t testing.TB, url, ca, token string) *client {
	t.Helper()
	c := &client{t: t, dir: t.TempDir(), url: url}
	c.env = append(gitTestEnvironment(), "GIT_SSL_CAINFO="+ca,
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader", "GIT_CONFIG_VALUE_0=Authorization: Bearer "+token)
	c.git("init", "--quiet", "--initial-branch=main", ".")
	return c
}

func gitTestEnvironment() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_TERMINAL_PROMPT=0",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_AUTHOR_DATE=1700000000 +0000",
		"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.com", "GIT_COMMITTER_DATE=1700000000 +0000",
	}
}

// as returns the same client with another token.
func (c *client) as(token string) *client {
	other := *c
	other.env = append(append([]string{}, c.env...), "GIT_CONFIG_VALUE_0=Authorization: Bearer "+token)
	return &other
}

// try runs git and returns stdout, stderr and the error.
func (c *client) try(args ...string) (string, string, error) {
	return c.tryWith("", args...)
}

func (c *client) tryWith(stdin string, args ...string) (string, string, error) {
	command := exec.Command("git", args...)
	command.Dir, command.Env = c.dir, c.env
	command.Stdin = strings.NewReader(stdin)
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	return strings.TrimSpace(stdout.String()), stderr.String(), err
}

func (c *client) git(args ...string) string {
	c.t.Helper()
	return c.gitWith("", args...)
}

func (c *client) gitWith(stdin string, args ...string) string {
	c.t.Helper()
	stdout, stderr, err := c.tryWith(stdin, args...)
	if err != nil {
		c.t.Fatalf("git %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}

// commit writes files (path, content, path, content ...) and commits them,
// returning the commit.
func (c *client) commit(files ...string) string {
	c.t.Helper()
	for i := 0; i+1 < len(files); i += 2 {
		path := filepath.Join(c.dir, files[i])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			c.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(files[i+1]), 0o644); err != nil {
			c.t.Fatal(err)
		}
	}
	c.git("add", "--all")
	c.git("commit", "--quiet", "--allow-empty", "--message=work")
	return c.git("rev-parse", "HEAD")
}

// push pushes and fails the test if it is refused.
func (c *client) push(refspecs ...string) {
	c.t.Helper()
	c.git(append([]string{"push", "--quiet", "--atomic", c.url}, refspecs...)...)
}

// refusedPush pushes, and fails the test unless the push is refused for the reason, with
// output that contains says. It returns git's stderr.
func (c *client) refusedPush(reason gitstoreapi.Reason, says string, refspecs ...string) string {
	c.t.Helper()
	_, stderr, err := c.try(append([]string{"push", c.url}, refspecs...)...)
	if err == nil {
		c.t.Fatalf("the push of %q was accepted", refspecs)
	}
	refused, ok := gitstoreapi.Parse(stderr)
	if !ok || refused.Reason != reason {
		c.t.Fatalf("the push of %q was refused with %v, want %s\n%s", refspecs, refused, reason, stderr)
	}
	if !strings.Contains(stderr, says) {
		c.t.Fatalf("the refusal of the push of %q does not say %q:\n%s", refspecs, says, stderr)
	}
	return stderr
}

// checkRefused fails the test unless git's output shows a refusal for the reason. It
// returns the refusal, nil if there is none.
func checkRefused(t testing.TB, what, output string, reason gitstoreapi.Reason) *gitstoreapi.Refusal {
	t.Helper()
	refused, ok := gitstoreapi.Parse(output)
	if !ok {
		t.Errorf("%s: no refusal in %q", what, output)
		return nil
	}
	if refused.Reason != reason {
		t.Errorf("%s: refused with %v, want %s", what, refused, reason)
	}
	return refused
}

// containsAny reports whether a text contains one of the parts.
func containsAny(text string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}

// remoteRef returns the object that a ref of the server's repository points to, "" if the
// ref does not exist.
func (s *testServer) remoteRef(ref string) string {
	s.t.Helper()
	if _, err := os.Stat(s.bare(repository)); err != nil {
		return "" // not even the repository exists yet
	}
	out, err := exec.Command("git", "--git-dir="+s.bare(repository), "for-each-ref", "--format=%(objectname)", ref).Output()
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// fsck checks a whole bare repository.
func fsck(t testing.TB, path string) {
	t.Helper()
	command := exec.Command("git", "--git-dir="+path, "fsck", "--full", "--strict", "--no-dangling")
	command.Env = gitTestEnvironment()
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("git fsck: %v\n%s", err, output)
	}
}

func codeRef(task string, number int) string {
	return fmt.Sprintf("refs/clew/uid-%s/code/%d", task, number)
}

func stateRef(task string, number int) string {
	return fmt.Sprintf("refs/clew/uid-%s/state/%d", task, number)
}

// must returns a value that no error came with.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
