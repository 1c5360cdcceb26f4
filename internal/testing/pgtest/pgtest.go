// Package pgtest runs a real PostgreSQL for the tests of one package.
//
//	var pg *pgtest.Server
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Run(m, &pg, postgres.Migrate)) }
//
//	func TestX(t *testing.T) { store := open(pg.Database(t)) … }
//
// The server is started once per test process, in a folder of its own, from the programs
// on the PATH or in /usr/lib/postgresql, and listens only on a unix socket. It ends with
// the process, even if that is killed. Each test gets a database of its own, copied from
// a template that is prepared once.
//
// If CLEW_TEST_DSN names a server (with the right to create databases), Run uses that
// instead.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// DSNEnv is the environment variable with the DSN of an existing server to use.
const DSNEnv = "CLEW_TEST_DSN"

const (
	user     = "clew"
	template = "clew_template"
	// startTimeout is generous: test machines are busy.
	startTimeout = 60 * time.Second
)

// Prepare sets up the database that a DSN names as the tests need it.
type Prepare func(ctx context.Context, dsn string) error

// Server is a PostgreSQL server for tests.
type Server struct {
	// dsn is a URL; its database is used for administration.
	dsn      *url.URL
	template string
	count    atomic.Int64

	// The rest is set only if this process started the server.
	folder   string
	postgres string
	process  *process
}

// Run starts a server, sets *server, runs the tests and stops the server. It returns the
// exit code.
func Run(m *testing.M, server **Server, prepare Prepare) int {
	ctx := context.Background()
	s, err := connectOrStart(ctx, prepare)
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return 1
	}
	*server = s
	code := m.Run()
	if err := s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return max(code, 1)
	}
	return code
}

func connectOrStart(ctx context.Context, prepare Prepare) (*Server, error) {
	dsn := os.Getenv(DSNEnv)
	if dsn == "" {
		return Start(ctx, prepare)
	}
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme == "" {
		return nil, fmt.Errorf("%s must be a URL, postgres://user:password@host/database", DSNEnv)
	}
	s := &Server{dsn: u, template: fmt.Sprintf("%s_%d", template, os.Getpid())}
	return s, s.makeTemplate(ctx, prepare)
}

// Start starts a separate server, which may be stopped and restarted.
func Start(ctx context.Context, prepare Prepare) (*Server, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "clewpg")
	if err != nil {
		return nil, err
	}
	s := &Server{
		dsn:      &url.URL{Scheme: "postgres", Path: "/postgres", RawQuery: url.Values{"host": {folder}, "user": {user}}.Encode()},
		template: template, folder: folder, postgres: filepath.Join(bin, "postgres"),
	}
	if err := s.initialize(ctx, filepath.Join(bin, "initdb")); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	if err := s.Restart(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	if err := s.makeTemplate(ctx, prepare); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// programs returns the folder of the newest PostgreSQL's programs.
func programs() (string, error) {
	// The PATH may contain only a link to postgres.
	if initdb, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(initdb); err == nil {
			return filepath.Dir(real), nil
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return "", fmt.Errorf("no PostgreSQL was found on the PATH or in /usr/lib/postgresql; install it (Debian: apt-get install postgresql), or name a server in %s", DSNEnv)
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		return n
	}
	sort.Slice(found, func(i, j int) bool { return version(found[i]) < version(found[j]) })
	return filepath.Dir(found[len(found)-1]), nil
}

func (s *Server) data() string { return filepath.Join(s.folder, "data") }

func (s *Server) initialize(ctx context.Context, initdb string) error {
	if err := chown(s.folder); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, initdb, "--pgdata", s.data(), "--auth=trust", "--username="+user,
		"--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	cmd.Dir = s.folder
	cmd.SysProcAttr = unprivileged()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

// Program returns the path of one of PostgreSQL's programs.
func (s *Server) Program(name string) string {
	bin, err := programs()
	if err != nil {
		return name
	}
	return filepath.Join(bin, name)
}

// Restart starts the server after StopNow, on the same data.
func (s *Server) Restart(ctx context.Context) error {
	logPath := filepath.Join(s.folder, "log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	// Data lost in a crash of the machine does not matter here; data lost when the server
	// is killed does, and fsync makes no difference to that.
	cmd := exec.Command(s.postgres, "-D", s.data(), "-k", s.folder, "-c", "listen_addresses=",
		"-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=200", "-c", "shared_buffers=64MB")
	cmd.Dir = s.folder
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = unprivileged()
	if s.process, err = start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", s.postgres, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := s.admin(ctx, "SELECT 1")
		if err == nil {
			return nil
		}
		select {
		case <-s.process.done:
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
			continue
		}
		out, _ := os.ReadFile(logPath)
		return fmt.Errorf("PostgreSQL did not start: %w\n%s", err, out)
	}
}

// Pid returns the process id of the server; 0 if this process did not start it.
func (s *Server) Pid() int {
	if s.process == nil {
		return 0
	}
	return s.process.pid
}

// StopNow shuts the server down at once, breaking its connections, and keeps the data.
func (s *Server) StopNow() error {
	if s.process == nil {
		return nil
	}
	// SIGINT is PostgreSQL's fast shutdown.
	err := s.process.stop(syscall.SIGINT, startTimeout)
	s.process = nil
	return err
}

// Stop ends the server and removes its data.
func (s *Server) Stop() error {
	if s.folder == "" {
		return s.admin(context.Background(), "DROP DATABASE IF EXISTS "+s.template+" WITH (FORCE)")
	}
	return errors.Join(s.StopNow(), os.RemoveAll(s.folder))
}

func (s *Server) makeTemplate(ctx context.Context, prepare Prepare) error {
	if err := s.admin(ctx, "CREATE DATABASE "+s.template); err != nil {
		return err
	}
	if prepare == nil {
		return nil
	}
	if err := prepare(ctx, s.database(s.template)); err != nil {
		return fmt.Errorf("prepare the database for tests: %w", err)
	}
	return nil
}

// Database creates a prepared database for the test and returns its DSN. It is dropped
// when the test ends.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("clew_%d_%d", os.Getpid(), s.count.Add(1))
	if err := s.admin(t.Context(), "CREATE DATABASE "+name+" TEMPLATE "+s.template+" STRATEGY file_copy"); err != nil {
		t.Fatalf("create a database: %v", err)
	}
	t.Cleanup(func() {
		if err := s.admin(context.Background(), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("drop a database: %v", err)
		}
	})
	return s.database(name)
}

// Copy copies a database in its current state, for a test that restores it later. Nobody
// may be connected to the original meanwhile.
func (s *Server) Copy(t testing.TB, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("clew_%d_%d", os.Getpid(), s.count.Add(1))
	if err := s.admin(t.Context(), "CREATE DATABASE "+name+" TEMPLATE "+strings.TrimPrefix(u.Path, "/")+" STRATEGY file_copy"); err != nil {
		t.Fatalf("copy a database: %v", err)
	}
	t.Cleanup(func() {
		if err := s.admin(context.Background(), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("drop a database: %v", err)
		}
	})
	return s.database(name)
}

func (s *Server) database(name string) string {
	u := *s.dsn
	u.Path = "/" + name
	return u.String()
}

func (s *Server) admin(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, s.dsn.String())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	// CREATE DATABASE cannot be prepared.
	_, err = conn.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.SplitN(statement, " TEMPLATE", 2)[0], err)
	}
	return nil
}

// process is a child process that dies with this one.
type process struct {
	pid  int
	done chan struct{}
	err  error
}

// start starts the child on a thread that lives as long as the child: the kernel sends
// the death signal when the thread that started it ends.
func start(cmd *exec.Cmd) (*process, error) {
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, <-started
}

func (p *process) stop(signal syscall.Signal, timeout time.Duration) error {
	_ = syscall.Kill(p.pid, signal)
	select {
	case <-p.done:
		return nil
	case <-time.After(timeout):
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("PostgreSQL did not stop within %s and was killed", timeout)
	}
}
