package v1alpha1_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/pathmatch"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// publish sets spec.publish, with a change.
func publish(f func(*v1alpha1.Publish)) change {
	return spec(func(s *v1alpha1.TaskSpec) {
		s.Publish = &v1alpha1.Publish{Branch: "clew/work"}
		f(s.Publish)
	})
}

func TestABadPublishIsRefusedWhenItIsApplied(t *testing.T) {
	branch := func(name string) change { return publish(func(p *v1alpha1.Publish) { p.Branch = name }) }
	author := func(name, email string) change {
		return publish(func(p *v1alpha1.Publish) { p.Author = &v1alpha1.CommitAuthor{Name: name, Email: email} })
	}
	protected := func(pattern string) change {
		return publish(func(p *v1alpha1.Publish) { p.ProtectedPaths = []string{pattern} })
	}
	const plain, below = "branch must be a plain git branch name", "branch can only be below refs/heads/ or refs/for/"
	existing := created(t, builders.Task("good-publish"))
	for name, tt := range map[string]struct {
		change   change
		sentence string
	}{
		"no repository": {func(t *v1alpha1.Task) {
			publish(func(*v1alpha1.Publish) {})(t)
			t.Spec.Repository = nil
		}, "publish needs a repository to push to"},
		"an option":              {branch("--mirror"), plain},
		"a refspec":              {branch("a:b"), plain},
		"forced":                 {branch("+main"), plain},
		"HEAD":                   {branch("HEAD"), plain},
		"a range":                {branch("a..b"), plain},
		"a lock":                 {branch("a.lock"), plain},
		"a tag":                  {branch("refs/tags/v1"), below},
		"refs of Clew":           {branch("refs/clew/x"), below},
		"pull requests":          {branch("refs/pull/1/head"), below},
		"an author in brackets":  {author("<a>", "a@b.c"), "without angle brackets"},
		"two lines":              {author("a\nb", "a@b.c"), "without angle brackets"},
		"no address":             {author("a", "abc"), "must be an address"},
		"Clew's own address":     {author("a", "clew@clew.dev"), "give the author another address"},
		"two options in one":     {publish(func(p *v1alpha1.Publish) { p.PushOptions = []string{"a\nb"} }), "a push option is one line"},
		"a path upwards":         {protected("../x"), "a path is relative to the worktree"},
		"a path of git":          {protected(".git/hooks"), "leave .git out"},
		"an unknown moment":      {publish(func(p *v1alpha1.Publish) { p.When = "Always" }), `supported values: "Completed", "Suspended", "Checkpoint"`},
		"a message with control": {publish(func(p *v1alpha1.Publish) { p.Message = "a\x00" }), "message must be text"},
		"part of a commit":       {publish(func(p *v1alpha1.Publish) { p.ApprovedCommit = "c0ffee" }), "spec.publish.approvedCommit"},
		"approving no commit":    {publish(func(p *v1alpha1.Publish) { p.ApprovedCommit = strings.Repeat("x", 40) }), "spec.publish.approvedCommit"},
	} {
		t.Run(name, func(t *testing.T) {
			expectRefused(t, create(builders.Task("bad-publish", tt.change)), tt.sentence)
			updated := existing.DeepCopy()
			tt.change(updated)
			if err := server.Client.Update(t.Context(), updated, client.DryRunAll); err == nil {
				t.Error("the update was accepted")
			}
		})
	}
}

func TestAGoodPublishIsAccepted(t *testing.T) {
	for name, change := range map[string]change{
		"a branch":      publish(func(*v1alpha1.Publish) {}),
		"a full branch": publish(func(p *v1alpha1.Publish) { p.Branch = "refs/heads/main" }),
		"Gerrit":        publish(func(p *v1alpha1.Publish) { p.Branch = "refs/for/main%topic=fix,wip" }),
		"an author": publish(func(p *v1alpha1.Publish) {
			p.Author = &v1alpha1.CommitAuthor{Name: "Ann Üñí", Email: "ann@example.com"}
		}),
		"a message": publish(func(p *v1alpha1.Publish) { p.Message = "Fix it\n\nAs asked." }),
		"push options": publish(func(p *v1alpha1.Publish) {
			p.PushOptions = []string{"merge_request.create", "merge_request.title=Fix: it's done"}
		}),
	} {
		if err := create(builders.Task("fine-publish", change)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	task := created(t, builders.Task("later"))
	publish(func(*v1alpha1.Publish) {})(task)
	if err := server.Client.Update(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	task.Spec.Publish.Branch, task.Spec.Publish.ApprovedCommit = "another", strings.Repeat("a", 40)
	if err := server.Client.Update(t.Context(), task); err != nil {
		t.Errorf("publish cannot be changed: %v", err)
	}
}

func TestFilesThatCISystemsRunAreProtectedByDefault(t *testing.T) {
	task := created(t, builders.Task("protected", publish(func(*v1alpha1.Publish) {})))
	if got := task.Spec.Publish.ProtectedPaths; got != nil {
		t.Errorf("the schema gives the task the list of today: %q", got)
	}
	set, err := pathmatch.New(v1alpha1.DefaultProtectedPaths())
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		".github/workflows/ci.yaml": true, ".github/actions/x/action.yml": true, ".gitlab-ci.yml": true, ".circleci/config.yml": true,
		".buildkite/pipeline.yml": true, "Jenkinsfile": true, "jenkins/Jenkinsfile.prod": true, ".forgejo/workflows/a.yml": true,
		".gitea/workflows/a.yml": true, "azure-pipelines.yml": true, ".drone.yml": true, ".woodpecker.yaml": true, ".woodpecker/a.yml": true,
		"main.go": false, ".github/CODEOWNERS": false, "docs/azure-pipelines.md": false,
	} {
		if got := set.Match(path); got != want {
			t.Errorf("%s is protected: %v, want %v", path, got, want)
		}
	}
	if p := task.Spec.Publish; p.When != v1alpha1.PublishCompleted || p.Uncommitted != v1alpha1.PublishCommit || p.OnDiverged != v1alpha1.DivergedFail || strings.Join(p.PushOptions, "") != "" {
		t.Errorf("the defaults are %+v", p)
	}
}
