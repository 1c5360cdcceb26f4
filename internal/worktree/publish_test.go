package worktree

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

const pushToken = "t0ken-of-the-origin"

// publisher is a task whose origin is a bare repository behind https and a token.
type publisher struct {
	*fixture
	origin string // the folder of the bare repository
	push   OriginPush
}

// newPublisher clones an origin; the agent has committed once and left a file uncommitted.
func newPublisher(t *testing.T) *publisher {
	t.Helper()
	root := t.TempDir()
	p := &publisher{origin: filepath.Join(root, "project.git")}
	gitIn(t, root, "clone", "-q", "--bare", makeOrigin(t, 3), p.origin)
	p.fixture = cloned(t, p.origin)
	handler, _ := gitHandler(t, root, pushToken)
	srv := httptest.NewTLSServer(handler)
	t.Cleanup(srv.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	writeFile(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})), 0o600)
	p.push = OriginPush{URL: srv.URL + "/project.git", Credentials: Credentials{Password: pushToken}, CAFile: ca, Ref: "refs/heads/clew/work"}
	p.write("own.txt", "committed by the agent\n")
	p.commit("the agent's own commit")
	p.write("left.txt", "left uncommitted\n")
	return p
}

// commit commits everything, as the agent.
func (p *publisher) commit(message string) {
	p.t.Helper()
	p.git("add", "-A")
	p.git("commit", "-q", "-m", message)
}

// publication takes a checkpoint, stores the agent's commits, and returns what is to be pushed.
func (p *publisher) publication(change ...func(*PublishRequest)) Publication {
	p.t.Helper()
	c := p.checkpoint()
	p.git("push", "-q", "--no-verify", p.config().GitDir, fmt.Sprintf("+HEAD:refs/clew/uid-1/head/%d", c.Number))
	return p.publicationOf(c, change...)
}

func (p *publisher) publicationOf(c Checkpoint, change ...func(*PublishRequest)) Publication {
	p.t.Helper()
	req := PublishRequest{Target: c.target(), Uncommitted: true, Message: fmt.Sprintf("Work\n\nClew-Checkpoint: %d\n", c.Number), AuthorName: "Clew", AuthorEmail: "noreply@clew.dev"}
	for _, f := range change {
		f(&req)
	}
	made, err := p.repo.PublishCommit(context.Background(), req)
	must(p.t, err)
	return made
}

// send pushes a publication.
func (p *publisher) send(made Publication, change ...func(*OriginPush)) (OriginPushed, error) {
	push := p.push
	push.Publication = made
	for _, f := range change {
		f(&push)
	}
	return p.repo.PushOrigin(context.Background(), push)
}

// at returns the commit of a ref of the origin, "" if it does not exist.
func (p *publisher) at(ref string) string {
	out, err := gitTry(p.origin, "rev-parse", "--verify", "--quiet", ref)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}

// hook makes a script the origin's hook before each push.
func (p *publisher) hook(script string) {
	p.t.Helper()
	writeFile(p.t, filepath.Join(p.origin, "hooks", "pre-receive"), "#!/bin/sh\n"+script, 0o755)
}

// pushOfOthers adds a commit of somebody else to a branch of the origin.
func (p *publisher) pushOfOthers(branch string) string {
	p.t.Helper()
	work := p.t.TempDir()
	gitIn(p.t, work, "clone", "-q", p.origin, "w")
	work = filepath.Join(work, "w")
	if p.at("refs/heads/"+branch) != "" {
		gitIn(p.t, work, "checkout", "-q", branch)
	} else {
		gitIn(p.t, work, "checkout", "-q", "-b", branch)
	}
	writeFile(p.t, filepath.Join(work, "theirs.txt"), branch, 0o644)
	gitIn(p.t, work, "add", "-A")
	gitIn(p.t, work, "commit", "-q", "-m", "theirs")
	gitIn(p.t, work, "push", "-q", "origin", "HEAD:refs/heads/"+branch)
	return p.at("refs/heads/" + branch)
}

func TestTheAgentsCommitsAndOneOnTopArePublished(t *testing.T) {
	p := newPublisher(t)
	made := p.publication()
	if !made.OnTop || made.Unchanged() {
		t.Errorf("the publication is %+v", made)
	}
	pushed, err := p.send(made)
	must(t, err)
	wantEqual(t, "pushed", OriginPushed{}, pushed)
	want := "Work|Clew <noreply@clew.dev>|Clew-Checkpoint: 1\nthe agent's own commit|agent <agent@example.com>|\nsecond|agent <agent@example.com>|\nfirst|agent <agent@example.com>|"
	wantEqual(t, "log", want, strings.TrimSpace(gitIn(t, p.origin, "log", "--format=%s|%an <%ae>|%(trailers:separator=%x2c)", p.push.Ref)))
	wantEqual(t, "the commit on top", "A\tleft.txt", strings.TrimSpace(gitIn(t, p.origin, "diff-tree", "-r", "--no-commit-id", "--name-status", p.push.Ref)))
	gitIn(t, p.origin, "fsck", "--strict")
}

func TestACheckpointThatIsPublishedAgainPushesNothing(t *testing.T) {
	p := newPublisher(t)
	made := p.publication()
	_, err := p.send(made)
	must(t, err)
	again := p.publicationOf(p.last)
	wantEqual(t, "the commit of the repetition", made, again)
	p.hook("exit 1")
	pushed, err := p.send(again)
	must(t, err)
	wantEqual(t, "pushed", OriginPushed{Already: true, Onto: p.at(p.push.Ref + "^")}, pushed)
}

func TestWhatIsCommittedOnTop(t *testing.T) {
	p := newPublisher(t)
	p.write("gone.txt", "x")
	p.write("folder/file", "x")
	p.write("becomes-folder", "x")
	p.write("build/tracked", "x")
	p.write("skip-me", "x")
	p.commit("more")
	p.git("update-index", "--skip-worktree", "skip-me")
	must(t, os.Remove(p.work+"/skip-me"))
	must(t, os.Remove(p.work+"/gone.txt"))
	must(t, os.RemoveAll(p.work+"/folder"))
	p.write("folder", "a file now")
	must(t, os.Remove(p.work+"/becomes-folder"))
	p.write("becomes-folder/x", "x")
	p.write(".gitignore", "build/\n*.log\n")
	p.write(".git/info/exclude", "private\n")
	p.write("build/output", "ignored")
	p.write("build/tracked", "changed")
	p.write("a.log", "ignored")
	p.write("forced.log", "staged by the agent")
	p.git("add", "-f", "forced.log")
	p.write("private", "ignored")
	p.write("nested/file", "x")
	gitIn(t, p.work+"/nested", "init", "-q")
	must(t, os.Symlink("own.txt", p.work+"/link"))
	must(t, os.Chmod(p.work+"/own.txt", 0o755))
	must(t, os.MkdirAll(p.work+"/empty", 0o755))
	made := p.publication()
	got := strings.Fields(strings.ReplaceAll(gitIn(t, p.config().GitDir, "diff-tree", "-r", "--no-renames", "--no-commit-id", "--name-status", made.Commit), "\t", ":"))
	want := []string{"A:.gitignore", "D:becomes-folder", "A:becomes-folder/x", "M:build/tracked", "A:folder", "D:folder/file", "A:forced.log", "D:gone.txt", "A:link", "M:own.txt"}
	slices.Sort(got)
	slices.Sort(want)
	wantEqual(t, "the commit on top", want, got)
	// Git itself judges: it would commit the same.
	must(t, os.RemoveAll(p.work+"/nested"))
	p.git("add", "-A")
	wantEqual(t, "the tree", strings.TrimSpace(p.git("write-tree")), strings.TrimSpace(gitIn(t, p.config().GitDir, "rev-parse", made.Commit+"^{tree}")))
}

// A file over the limit, or with a secret in it, is not part of the checkpoint.
func TestSkippedFilesStayAsTheAgentCommittedThem(t *testing.T) {
	p := newPublisher(t)
	p.write("large", "small")
	p.commit("large is small")
	p.write("large", strings.Repeat("x", 2<<20))
	made := p.publication()
	wantEqual(t, "large", "small", gitIn(t, p.config().GitDir, "cat-file", "blob", made.Commit+":large"))
}

func TestConvertedLineEndingsAreNoChange(t *testing.T) {
	p := newPublisher(t)
	p.write(".gitattributes", "*.txt text eol=crlf\n")
	p.write("dos.txt", "a\r\nb\r\n")
	p.commit("dos")
	must(t, os.Remove(p.work+"/left.txt"))
	p.commit("nothing is left")
	made := p.publication()
	if made.OnTop {
		t.Errorf("the commit on top changes %s", gitIn(t, p.config().GitDir, "diff-tree", "-r", "--name-status", made.Commit))
	}
}

func TestUncommittedFilesMayBeLeftOut(t *testing.T) {
	p := newPublisher(t)
	made := p.publication(func(r *PublishRequest) { r.Uncommitted = false })
	wantEqual(t, "the commit", strings.TrimSpace(p.git("rev-parse", "HEAD")), made.Commit)
}

func TestATaskThatChangedNothingHasNothingToPublish(t *testing.T) {
	f := cloned(t, makeOrigin(t, 1))
	p := &publisher{fixture: f}
	if made := p.publicationOf(f.checkpoint()); !made.Unchanged() || made.OnTop {
		t.Errorf("the publication is %+v, want the base", made)
	}
}

func TestWithoutARepositoryTheFilesAreTheFirstCommit(t *testing.T) {
	f := cloned(t, "")
	f.write("a", "b")
	p := &publisher{fixture: f}
	made := p.publicationOf(f.checkpoint())
	wantEqual(t, "parents", made.Commit, strings.TrimSpace(gitIn(t, f.config().GitDir, "rev-list", "--parents", made.Commit)))
}

func TestCommitsThatWereNotStoredAreMissed(t *testing.T) {
	p := newPublisher(t)
	c := p.checkpoint()
	_, err := p.repo.PublishCommit(context.Background(), PublishRequest{Target: c.target(), Uncommitted: true})
	wantReason(t, err, CommitMissing)
}

func TestAPushDiscardsNothingOfOthers(t *testing.T) {
	p := newPublisher(t)
	theirs := p.pushOfOthers("clew/work")
	made := p.publication()
	_, err := p.send(made)
	wantReason(t, err, Diverged)
	wantEqual(t, "the branch", theirs, p.at(p.push.Ref))
	_, err = p.send(made, func(o *OriginPush) { o.Force = true })
	must(t, err)
	wantEqual(t, "the branch after ForceWithLease", made.Commit, p.at(p.push.Ref))
}

func TestAPushDiscardsNothingThatOthersPushMeanwhile(t *testing.T) {
	for _, force := range []bool{false, true} {
		t.Run(fmt.Sprint("force ", force), func(t *testing.T) {
			p := newPublisher(t)
			made := p.publication()
			var theirs string
			var once atomic.Bool
			handler, _ := gitHandler(t, filepath.Dir(p.origin), "")
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				// Between reading the ref and pushing.
				if r.URL.Query().Get("service") == "git-receive-pack" && !once.Swap(true) {
					theirs = p.pushOfOthers("clew/work")
				}
				handler.ServeHTTP(w, r)
			}))
			defer srv.Close()
			_, err := p.send(made, func(o *OriginPush) { o.URL, o.Credentials, o.Force = srv.URL+"/project.git", Credentials{}, force })
			if force { // the second try has seen theirs
				must(t, err)
				wantEqual(t, "the branch", made.Commit, p.at(p.push.Ref))
				return
			}
			wantReason(t, err, Diverged)
			wantEqual(t, "the branch", theirs, p.at(p.push.Ref))
		})
	}
}

func TestWhatClewPublishedItselfIsReplaced(t *testing.T) {
	p := newPublisher(t)
	first := p.publication()
	_, err := p.send(first)
	must(t, err)
	p.write("left.txt", "changed")
	second := p.publication()
	_, err = p.send(second)
	wantReason(t, err, Diverged)
	_, err = p.send(second, func(o *OriginPush) { o.Replaces = first.Commit })
	must(t, err)
	wantEqual(t, "the branch", second.Commit, p.at(p.push.Ref))
}

func TestABranchThatIsBehindIsMovedForward(t *testing.T) {
	p := newPublisher(t)
	_, err := p.send(Publication{Commit: p.last.Code}, func(o *OriginPush) { o.Ref = "refs/heads/trunk" })
	must(t, err)
	made := p.publication()
	_, err = p.send(made, func(o *OriginPush) { o.Ref = "refs/heads/trunk" })
	must(t, err)
	wantEqual(t, "trunk", made.Commit, p.at("refs/heads/trunk"))
}

func TestARefForReviewIsPushed(t *testing.T) {
	p := newPublisher(t)
	made := p.publication()
	_, err := p.send(made, func(o *OriginPush) { o.Ref = "refs/for/main" })
	must(t, err)
	wantEqual(t, "refs/for/main", made.Commit, p.at("refs/for/main"))
}

func TestPushOptionsReachTheHook(t *testing.T) {
	p := newPublisher(t)
	made := p.publication()
	options := func(o *OriginPush) {
		o.Options = []string{"merge_request.create", "merge_request.title=It's done; $(id)"}
	}
	_, err := p.send(made, options)
	wantReason(t, err, Rejected)
	if want := "remove pushOptions"; !strings.Contains(err.Error(), want) {
		t.Errorf("the error does not contain %q: %v", want, err)
	}
	gitIn(t, p.origin, "config", "receive.advertisePushOptions", "true")
	p.hook(`echo "View merge request: https://git.example.com/1 ($GIT_PUSH_OPTION_0, $GIT_PUSH_OPTION_1)"`)
	pushed, err := p.send(made, options)
	must(t, err)
	wantEqual(t, "the answer", "View merge request: https://git.example.com/1 (merge_request.create, merge_request.title=It's done; $(id))", pushed.Answer)
}

func TestAHooksRefusalIsTold(t *testing.T) {
	p := newPublisher(t)
	p.hook(`printf 'Policy 7:\033[31m no pushes\007 on Friday\n'; yes padding | head -2000; exit 1`)
	_, err := p.send(p.publication())
	wantReason(t, err, Rejected)
	var refused *PushRefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("the error is %v", err)
	}
	if !strings.HasPrefix(refused.Answer, "pre-receive hook declined\nPolicy 7:[31m no pushes on Friday\npadding\n") || len(refused.Answer) > maxAnswer+100 {
		t.Errorf("the answer has %d bytes: %.200q", len(refused.Answer), refused.Answer)
	}
	wantEqual(t, "the branch", "", p.at(p.push.Ref))
}

func TestExpiredCredentialsAreNoSecretAndNoPush(t *testing.T) {
	p := newPublisher(t)
	made := p.publication()
	for _, wrong := range []Credentials{{Password: "exp1red"}, {}} {
		_, err := p.send(made, func(o *OriginPush) { o.Credentials = wrong })
		wantReason(t, err, AuthenticationFailed)
		if strings.Contains(err.Error(), "exp1red") {
			t.Errorf("the error contains the password: %v", err)
		}
	}
	wantEqual(t, "the branch", "", p.at(p.push.Ref))
}

func TestThePasswordIsInNoArgumentOfGit(t *testing.T) {
	p := newPublisher(t)
	made := p.publication()
	dir := t.TempDir()
	writeFile(t, dir+"/git", "#!/bin/sh\nprintf '%s\\n' \"$@\" >>'"+dir+"/log'\nexec git \"$@\"\n", 0o755)
	p.repo.cfg.Git = dir + "/git"
	_, err := p.send(made)
	must(t, err)
	log, err := os.ReadFile(dir + "/log")
	must(t, err)
	if !strings.Contains(string(log), "push\n") || strings.Contains(string(log), pushToken) {
		t.Errorf("git's arguments contain the password, or no push:\n%s", log)
	}
}

func TestAPushDoesNotFollowARedirectToAnotherHost(t *testing.T) {
	p := newPublisher(t)
	made := p.publication()
	var seen atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.Add(1) }))
	defer elsewhere.Close()
	origin := redirecting(t, func(r *http.Request) string { return elsewhere.URL + r.URL.RequestURI() })
	for _, credentials := range []Credentials{{Password: pushToken}, {}} {
		_, err := p.send(made, func(o *OriginPush) { o.URL, o.Credentials = origin+"/project.git", credentials })
		wantReason(t, err, InvalidURL)
	}
	if seen.Load() != 0 {
		t.Errorf("the other host received %d requests", seen.Load())
	}
}

// The configuration of the repository that checkpoints come from is not the one of a push.
func TestNothingThatAnAgentWritesChangesWhereAPushGoes(t *testing.T) {
	p := newPublisher(t)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere.git")
	gitIn(t, p.work, "init", "-q", "--bare", elsewhere)
	p.git("config", "url.file://"+elsewhere+".pushInsteadOf", p.push.URL)
	p.git("config", "remote.origin.pushurl", "file://"+elsewhere)
	p.write(".git/hooks/pre-push", "#!/bin/sh\nexit 1\n")
	must(t, os.Chmod(p.work+"/.git/hooks/pre-push", 0o755))
	p.write(".gitattributes", "* filter=evil\n")
	made := p.publication()
	_, err := p.send(made)
	must(t, err)
	wantEqual(t, "the branch", made.Commit, p.at(p.push.Ref))
	wantEqual(t, "refs elsewhere", "", gitIn(t, elsewhere, "for-each-ref"))
}

func TestAnInvalidRefIsNotPushed(t *testing.T) {
	p := newPublisher(t)
	for _, ref := range []string{"main", "refs/heads/a..b", "--force", "refs/heads/a:refs/heads/b", ""} {
		_, err := p.send(Publication{Commit: p.last.Code}, func(o *OriginPush) { o.Ref = ref })
		wantReason(t, err, InvalidReference)
	}
}
