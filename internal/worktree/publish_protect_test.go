package worktree

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// sendProtected pushes a publication, and returns the protected files for which it is refused.
func (p *publisher) sendProtected(made Publication, patterns []string, change ...func(*OriginPush)) []string {
	p.t.Helper()
	_, err := p.send(made, append(change, func(o *OriginPush) { o.ProtectedPaths = patterns })...)
	var held *ProtectedError
	if errors.As(err, &held) {
		wantReason(p.t, err, Protected)
		return held.Paths
	}
	must(p.t, err)
	return nil
}

func TestProtectedChangesAreFound(t *testing.T) {
	p := newPublisher(t)
	patterns := []string{".github/workflows/", "Jenkinsfile", ".woodpecker*", "folder/sub"}
	protected := func(made Publication) []string {
		return p.sendProtected(made, patterns, func(o *OriginPush) { o.Force = true })
	}
	wantEqual(t, "of files that nobody protects", nil, protected(p.publication()))
	p.write("sub/Jenkinsfile", "not the one at the top")
	p.write(".woodpecker/a.yaml", "x")
	p.write("other", "x")
	p.write(".github/CODEOWNERS", "x")
	must(t, os.Symlink("other", p.work+"/folder"))
	must(t, os.MkdirAll(p.work+"/.github/workflows", 0o755))
	must(t, os.Rename(p.work+"/own.txt", p.work+"/.github/workflows/own.yaml"))
	want := []string{".github/workflows/own.yaml", ".woodpecker/a.yaml", "folder"}
	wantEqual(t, "of files that are uncommitted", want, protected(p.publication()))
	p.commit("all of it")
	wantEqual(t, "of the agent's commits", want, protected(p.publication()))
	made := p.publication()
	made.Base = ""
	wantEqual(t, "without a base", want, protected(made))
}

func TestWhatTheBaseHasIsNoProtectedChange(t *testing.T) {
	p := newPublisher(t)
	wantEqual(t, "protected changes", nil, p.sendProtected(p.publication(), []string{"run.sh", "pkg"}))
}

// fixOfOthers changes what CI runs, in the trunk.
func (p *publisher) fixOfOthers() {
	p.t.Helper()
	work := filepath.Join(p.t.TempDir(), "w")
	gitIn(p.t, p.origin, "clone", "-q", p.origin, work)
	writeFile(p.t, work+"/run.sh", "#!/bin/sh\necho fixed\n", 0o755)
	gitIn(p.t, work, "commit", "-q", "-am", "what CI runs")
	gitIn(p.t, work, "push", "-q", "origin", "HEAD:"+trunk)
}

func TestAProtectedFileOfOthersIsNotTakenBack(t *testing.T) {
	protected := []string{"run.sh"}
	t.Run("by a merge", func(t *testing.T) {
		p := newPublisher(t)
		p.fixOfOthers()
		p.merge("trunk", "-s", "ours")
		wantEqual(t, "held back", protected, p.sendProtected(p.publication(), protected, ontoTrunk))
	})
	t.Run("by ForceWithLease", func(t *testing.T) {
		p := newPublisher(t)
		p.fixOfOthers()
		wantEqual(t, "held back", protected, p.sendProtected(p.publication(), protected, ontoTrunk, func(o *OriginPush) { o.Force = true }))
	})
	t.Run("when it was pushed meanwhile", func(t *testing.T) {
		p := newPublisher(t)
		var once atomic.Bool
		handler, _ := gitHandler(t, filepath.Dir(p.origin), "")
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("service") == "git-receive-pack" && !once.Swap(true) {
				p.fixOfOthers()
			}
			handler.ServeHTTP(w, r)
		}))
		defer srv.Close()
		got := p.sendProtected(p.publication(), protected, ontoTrunk, func(o *OriginPush) { o.URL, o.Credentials, o.Force = srv.URL+"/project.git", Credentials{}, true })
		wantEqual(t, "held back", protected, got)
	})
}

func TestALinkBelowAPatternIsAProtectedChange(t *testing.T) {
	p := newPublisher(t)
	p.write("elsewhere/prod/values.yaml", "x")
	p.write("charts/README.md", "a file leads nowhere")
	must(t, os.Symlink("../elsewhere", p.work+"/charts/new"))
	must(t, os.Symlink("elsewhere", p.work+"/other"))
	made := p.publication()
	wantEqual(t, "held back", []string{"charts/new"}, p.sendProtected(made, []string{"charts/*/prod/"}))
	wantEqual(t, "held back by any folder", []string{"charts/new", "other"}, p.sendProtected(made, []string{"**/values.yaml.d/"}))
}
