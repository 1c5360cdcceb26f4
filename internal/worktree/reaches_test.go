package worktree

import (
	"context"
	"strings"
	"testing"
)

// TestReaches: a commit counts if a ref that may be asked for reaches it, or one of the origin's,
// and not because the repository has it.
func TestReaches(t *testing.T) {
	origin := makeOrigin(t, 3)
	f := cloned(t, origin)
	first := f.checkpoint()
	f.write("a", "changed")
	second := f.checkpoint()
	head := strings.TrimSpace(f.git("rev-parse", "HEAD"))
	gitDir := f.config().GitDir
	commit := func(ref, message string) string {
		id := strings.TrimSpace(gitIn(t, gitDir, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit-tree", "-m", message, first.Code+"^{tree}"))
		if ref != "" {
			gitIn(t, gitDir, "update-ref", ref, id)
		}
		return id
	}
	foreign := commit("refs/clew/uid-2/code/1", "another task's")
	agents := commit("refs/clew/uid-1/head/1", "the agent's")
	lost := commit("", "no ref's")
	gitIn(t, gitDir, "-c", "user.name=a", "-c", "user.email=a@b.c", "tag", "-a", "-m", "a tag", "clew-test", first.Code)
	tag := strings.TrimSpace(gitIn(t, gitDir, "rev-parse", "clew-test"))
	gitIn(t, gitDir, "update-ref", "-d", "refs/tags/clew-test")
	tree := strings.TrimSpace(gitIn(t, gitDir, "rev-parse", first.Code+"^{tree}"))
	const code, heads = "refs/clew/uid-1/code/", "refs/clew/uid-1/head/"
	for name, c := range map[string]struct {
		id       string
		prefixes []string
		want     bool
	}{
		"a checkpoint":                     {first.Code, []string{code}, true},
		"the newest checkpoint":            {second.Code, []string{code, heads}, true},
		"a checkpoint, of no prefix":       {first.Code, nil, false},
		"the origin's HEAD":                {head, []string{code}, true},
		"the origin's HEAD, of no prefix":  {head, nil, true},
		"the agent's":                      {agents, []string{code, heads}, true},
		"the agent's, of the checkpoints'": {agents, []string{code}, false},
		"another task's":                   {foreign, []string{code, heads}, false},
		"no ref's":                         {lost, []string{code, heads}, false},
		"a state":                          {second.State, []string{code, heads}, false},
		"a tree":                           {tree, []string{code}, false},
		"a tag of a checkpoint":            {tag, []string{code}, false},
		"nothing":                          {strings.Repeat("a", 40), []string{code}, false},
	} {
		got, err := f.repo.Reaches(context.Background(), c.id, c.prefixes...)
		must(t, err)
		if got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	for _, id := range []string{"HEAD", code + "1", first.Code[:12], "--all"} {
		_, err := f.repo.Reaches(context.Background(), id, code)
		wantReason(t, err, InvalidReference)
	}
}
