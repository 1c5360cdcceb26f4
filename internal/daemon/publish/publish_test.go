package publish_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/publish"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

const uid = "11111111-2222-3333-4444-555555555555"

// stage is a gitstore with one checkpoint of a task, and the origin of the task.
type stage struct {
	*testing.T
	git         *daemontest.Git
	cfg         publish.Config
	head        string // the agent's commit
	originURL   string
	repo        *worktree.Repo
	work        string // the agent's worktree
	last        string // the last checkpoint
	remote      worktree.Remote
	credentials string
}

// newStage is a stage whose agent has committed a file, and left one uncommitted.
func newStage(t *testing.T) *stage {
	t.Helper()
	return stageOf(t, func(s *stage, work string) {
		s.write(work, "own.txt", "by the agent\n")
		s.git.Run(t, work, "add", "-A")
		s.git.Run(t, work, "commit", "--quiet", "-m", "own")
		s.write(work, "left.txt", "left\n")
	})
}

func stageOf(t *testing.T, agent func(s *stage, work string)) *stage {
	t.Helper()
	s := &stage{T: t, git: daemontest.NewGit(t)}
	s.originURL = s.git.NewOrigin(t, map[string]string{"README.md": "read me\n"})
	store := s.git.New(t, "store")
	root := t.TempDir()
	work := filepath.Join(root, "work")
	for _, dir := range []string{work, filepath.Join(root, "home")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	repo, err := worktree.Open(t.Context(), worktree.Config{GitDir: filepath.Join(root, "git"), Worktree: work, Home: filepath.Join(root, "home"), HomeInclude: []string{"."}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = repo.Close() })
	cloned, err := repo.Clone(t.Context(), worktree.CloneRequest{URL: s.originURL})
	if err != nil {
		t.Fatal(err)
	}
	agent(s, work)
	s.repo, s.work, s.last, s.remote = repo, work, cloned.Base, worktree.Remote{URL: store}
	s.checkpoint(1)
	s.head = s.git.Run(t, work, "rev-parse", "HEAD")
	s.credentials = filepath.Join(root, "credentials")
	s.cfg = publish.Config{
		Pod: daemonapi.PublishConfig{
			Namespace: "team", Task: "fix", TaskUID: uid, Checkpoint: 1, Repository: daemonapi.Repository{URL: s.originURL},
			Ref: "refs/heads/clew/fix", Uncommitted: true, Message: "Fix it", AuthorName: "Bot", AuthorEmail: "bot@example.com",
		},
		Remote: func() (worktree.Remote, error) { return s.remote, nil }, CredentialsDir: s.credentials, Log: testr.New(t),
	}
	return s
}

// checkpoint takes a checkpoint, and has it in the gitstore.
func (s *stage) checkpoint(number int64) {
	s.Helper()
	c, err := s.repo.Checkpoint(s.Context(), worktree.CheckpointRequest{TaskUID: uid, Number: number, Parent: s.last, Message: "checkpoint", Time: time.Unix(1700000000+number, 0)})
	if err != nil {
		s.Fatal(err)
	}
	s.last = c.Code
	if err := s.repo.Push(s.Context(), s.remote, worktree.RefUpdate{Source: c.Code, Name: c.CodeRef}, worktree.RefUpdate{Source: c.State, Name: c.StateRef}); err != nil {
		s.Fatal(err)
	}
	s.git.Run(s.T, s.work, "push", "--quiet", filepath.Join(s.git.Dir, "store.git"), "HEAD:"+refname.Head(uid, s.git.Run(s.T, s.work, "rev-parse", "HEAD")))
}

func (s *stage) write(dir, name, text string) {
	s.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

// run publishes, with a fresh folder as in every pod.
func (s *stage) run(ctx context.Context) daemonapi.PublishResult {
	s.cfg.ScratchDir = s.TempDir()
	return publish.Run(ctx, s.cfg)
}

// origin runs git in the origin.
func (s *stage) origin(args ...string) string {
	return s.git.Run(s.T, filepath.Join(s.git.Dir, "origin.git"), args...)
}

// want fails unless the result has this reason and a message with all parts.
func (s *stage) want(got daemonapi.PublishResult, reason string, retryable bool, parts ...string) {
	s.Helper()
	if got.Reason != reason || got.Retryable != retryable {
		s.Errorf("the result is %s, retryable %v (%s); want %s, %v", got.Reason, got.Retryable, got.Message, reason, retryable)
	}
	for _, part := range parts {
		if !strings.Contains(got.Message, part) {
			s.Errorf("the message does not contain %q: %s", part, got.Message)
		}
	}
}

func TestACheckpointIsPublished(t *testing.T) {
	s := newStage(t)
	got := s.run(t.Context())
	want := daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: "refs/heads/clew/fix", Commit: s.origin("rev-parse", "clew/fix")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("the result (-want +got):\n%s", diff)
	}
	if got, want := s.origin("log", "-1", "--format=%an <%ae>%n%B", "clew/fix"), "Bot <bot@example.com>\nFix it\n\nClew-Task: team/fix\nClew-Checkpoint: 1"; got != want {
		t.Errorf("the commit on top is %q, want %q", got, want)
	}
	if got := s.origin("rev-parse", "clew/fix^"); got != s.head {
		t.Errorf("it is on top of %s, want %s", got, s.head)
	}
	want.Already, want.Onto = true, s.head
	if diff := cmp.Diff(want, s.run(t.Context())); diff != "" {
		t.Errorf("the second result (-want +got):\n%s", diff)
	}
}

func TestWhyACheckpointIsNotPublished(t *testing.T) {
	for name, tt := range map[string]struct {
		change    func(s *stage)
		reason    string
		retryable bool
		parts     []string
	}{
		"diverged": {func(s *stage) {
			s.origin("update-ref", "refs/heads/clew/fix", s.git.Run(s.T, filepath.Join(s.git.Dir, "origin.git"), "commit-tree", "-m", "theirs", "main^{tree}"))
		}, v1alpha1.ReasonDiverged, false, []string{"others have pushed to it", "discard theirs with ForceWithLease"}},
		"refused by a hook": {func(s *stage) {
			hook := filepath.Join(s.git.Dir, "origin.git", "hooks", "pre-receive")
			s.write(filepath.Dir(hook), "pre-receive", "#!/bin/sh\necho no pushes on Friday\nexit 1\n")
			if err := os.Chmod(hook, 0o755); err != nil {
				s.Fatal(err)
			}
		}, v1alpha1.ReasonPublishRefused, false, []string{"no pushes on Friday", "request it again"}},
		"protected": {func(s *stage) { s.cfg.Pod.ProtectedPaths = []string{"left.txt"} },
			v1alpha1.ReasonProtectedPaths, false, []string{"changes 1 file that", "approvedCommit to "}},
		"no such checkpoint": {func(s *stage) { s.cfg.Pod.Checkpoint = 2 }, v1alpha1.ReasonCheckpointNotFound, false, []string{"request it again"}},
		"a commit is missing": {func(s *stage) {
			s.git.Run(s.T, filepath.Join(s.git.Dir, "store.git"), "update-ref", "-d", refname.Head(uid, s.head))
		}, v1alpha1.ReasonCommitNotFound, false, []string{s0, "or request it again"}},
		"no Secret": {func(s *stage) { s.cfg.Pod.Repository.CredentialsSecret = "git" }, v1alpha1.ReasonCredentialsNotFound, false, []string{`create the Secret "git"`, "request it again"}},
		"unauthorized": {func(s *stage) {
			s.write(s.credentials, "token", "exp1red")
			s.cfg.Pod.Repository.URL = s.behind("t0ken")
		}, v1alpha1.ReasonPublishUnauthorized, false, []string{"correct the Secret", "request it again"}},
		"no such repository": {func(s *stage) { s.cfg.Pod.Repository.URL = s.git.URL + "/none.git" }, v1alpha1.ReasonRepositoryNotFound, false, []string{"request it again"}},
		"unreachable": {func(s *stage) {
			s.cfg.Pod.Repository.URL, s.cfg.RetryFor = "http://127.0.0.1:1/p.git", time.Millisecond
		}, v1alpha1.ReasonRepositoryUnreachable, true, nil},
		"gitstore down": {func(s *stage) { s.git.SetDown(true); s.cfg.RetryFor = time.Millisecond }, v1alpha1.ReasonGitStoreUnreachable, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			before := s.origin("for-each-ref")
			tt.change(s)
			if name == "diverged" {
				before = s.origin("for-each-ref")
			}
			got := s.run(t.Context())
			s.want(got, tt.reason, tt.retryable, tt.parts...)
			for _, private := range []string{"exp1red", "left.txt"} { // the password, and a file
				if strings.Contains(got.Message, private) {
					t.Errorf("the message has %s: %s", private, got.Message)
				}
			}
			if name == "protected" && !slices.Equal(got.Protected, []string{"left.txt"}) {
				t.Errorf("the protected files are %q", got.Protected)
			}
			if after := s.origin("for-each-ref"); after != before {
				t.Errorf("the origin was changed: %s", after)
			}
		})
	}
}

// s0 is what the message about a commit says that was not stored.
const s0 = "was not stored with the checkpoint"

// behind returns the origin's URL at a proxy that asks for a password.
func (s *stage) behind(password string) string {
	target, err := url.Parse(s.git.URL)
	if err != nil {
		s.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, got, _ := r.BasicAuth(); got != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	s.Cleanup(server.Close)
	return server.URL + "/origin.git"
}

func TestTheCredentialsOfTheSecretAreUsed(t *testing.T) {
	s := newStage(t)
	s.write(s.credentials, "token", "t0ken")
	s.cfg.Pod.Repository = daemonapi.Repository{URL: s.behind("t0ken"), CredentialsSecret: "git"}
	s.want(s.run(t.Context()), v1alpha1.ReasonPublished, false)
}

// An approval is of one commit: a task made anew has a checkpoint 1 as well.
func TestAnApprovalNamesTheCommit(t *testing.T) {
	s := newStage(t)
	s.cfg.Pod.ProtectedPaths, s.cfg.Pod.ApprovedCommit = []string{"left.txt"}, s.head
	held := s.run(t.Context())
	s.want(held, v1alpha1.ReasonProtectedPaths, false, "set publish.approvedCommit to "+held.Commit)
	s.cfg.Pod.ApprovedCommit = held.Commit
	s.want(s.run(t.Context()), v1alpha1.ReasonPublished, false)
	if got := s.origin("rev-parse", "clew/fix"); got != held.Commit {
		t.Errorf("%s was published, and %s approved", got, held.Commit)
	}
}

func TestATaskThatChangedNothingIsNotPublished(t *testing.T) {
	s := stageOf(t, func(*stage, string) {})
	s.want(s.run(t.Context()), v1alpha1.ReasonNothingToPublish, false, "checkpoint 1 has nothing")
}

// A pod is killed at any time; the next one begins anew.
func TestAPublishThatIsKilledConverges(t *testing.T) {
	s := newStage(t)
	for n := range 12 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n*25)*time.Millisecond) // the instant is the subject
		s.run(ctx)
		cancel()
	}
	s.want(s.run(t.Context()), v1alpha1.ReasonPublished, false)
	if got := s.origin("rev-list", "--count", "clew/fix"); got != "3" {
		t.Errorf("the branch has %s commits, want 3", got)
	}
	s.origin("fsck", "--strict")
}

func TestAResultFitsIntoATerminationMessage(t *testing.T) {
	long := daemonapi.PublishResult{Reason: v1alpha1.ReasonPublishRefused, Message: strings.Repeat("é\x01", 3000), Answer: strings.Repeat("\u2028", 2000), Commit: strings.Repeat("c", 40)}
	for i := range 10 {
		long.Protected = append(long.Protected, fmt.Sprint(i, strings.Repeat("\x02", 500)))
	}
	b, err := publish.Encode(long)
	if err != nil || len(b) > 4096 {
		t.Fatalf("the message has %d bytes (%v)", len(b), err)
	}
	var got daemonapi.PublishResult
	if err := json.Unmarshal(b, &got); err != nil || got.Reason != long.Reason || got.Commit != long.Commit {
		t.Errorf("it reads %+v (%v)", got, err)
	}
}
