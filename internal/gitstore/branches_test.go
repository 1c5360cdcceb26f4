package gitstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

func TestAPushCreatesFewBranches(t *testing.T) {
	task := Task{Name: "t", UID: "uid-t"}
	commands := func(n int, ref string) (list []Command) {
		for i := range n {
			list = append(list, Command{Old: strings.Repeat("0", 40), New: strings.Repeat("1", 40), Ref: fmt.Sprintf(ref, i+1)})
		}
		return list
	}
	for name, c := range map[string]struct {
		commands []Command
		allowed  bool
	}{
		"some branches":                       {commands(maxBranchesPerPush, "refs/heads/clew/t/b%d"), true},
		"many branches":                       {commands(maxBranchesPerPush+1, "refs/heads/clew/t/b%d/a/a/a/a"), false},
		"the checkpoints after a long outage": {commands(200, "refs/clew/uid-t/code/%d"), true},
		"more refs than any daemon pushes":    {commands(maxRefsPerPush+1, "refs/clew/uid-t/code/%d"), false},
	} {
		if refused := checkCommands(task, c.commands); (refused == nil) != c.allowed {
			t.Errorf("%s: refused with %v, want allowed %t", name, refused, c.allowed)
		}
	}
}

func TestATaskHasFewBranches(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: make test runs it")
	}
	s := newTestServer(t, Limits{})
	c := s.client(taskToken("t", 1))
	tip := c.commit("a", "x")
	c.push("HEAD:" + codeRef("t", 1))
	var refs strings.Builder
	for i := range maxBranchesPerTask - 1 {
		fmt.Fprintf(&refs, "create refs/heads/clew/t/b%d %s\n", i, tip)
	}
	c.gitWith(refs.String(), "--git-dir="+s.bare(repository), "update-ref", "--stdin")
	c.push("HEAD:refs/heads/clew/t/last")
	c.refusedPush(gitstoreapi.RefNotAllowed, "may have at most 500", "HEAD:refs/heads/clew/t/more")
	c.commit("a", "y")
	c.push("HEAD:refs/heads/clew/t/last")
}
