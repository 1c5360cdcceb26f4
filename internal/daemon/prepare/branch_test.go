package prepare_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// branchOf returns the branch that the agent's repository is on, and the ids of all branches.
func branchOf(t *testing.T, w *daemontest.World) (branch, refs string) {
	t.Helper()
	run := func(args ...string) string {
		out, err := exec.Command("git", append([]string{"-C", w.Path("")}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	return run("symbolic-ref", "--short", "HEAD"), run("for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads")
}

// TestAForkStartsOnABranchOfItsOwn: whatever kills prepare on the way, there is one new branch,
// and the conversation and files are the source's.
func TestAForkStartsOnABranchOfItsOwn(t *testing.T) {
	t.Parallel()
	source := three(t)
	was, before := branchOf(t, source)
	from := daemonapi.Source{TaskUID: source.UID, Checkpoint: 2, Commit: checkpointRecord(source, 2).GetCommit(),
		IncludeConversation: true, Position: 5, Branch: "clew/other", NumberBranch: true}
	head := strings.Fields(before)[1]
	for at := 1; ; at++ {
		w := source.Fork(fmt.Sprintf("fork-%d", at), from)
		w.Prompt = "Do it."
		where, done := prepareCrashing(t, w, 1, nil, &crashing{at: at})
		w.Prepare(1, nil)
		branch, refs := branchOf(t, w)
		expect(t, "branch, killed "+where, branch, "clew/other")
		expect(t, "branches, killed "+where, refs, fmt.Sprintf("clew/other %s\n%s %s", head, was, head))
		expect(t, "conversation, killed "+where, w.Lines(), callsOfThree[:5])
		expect(t, "a.txt, killed "+where, w.Read("a.txt"), "changed by 2\n")
		if done {
			break
		}
	}
	kept, _ := branchOf(t, source)
	expect(t, "the source's branch", kept, was)
}

// TestAForkOfAForkHasABranchOfItsOwn: also where the source is on a branch of that name.
func TestAForkOfAForkHasABranchOfItsOwn(t *testing.T) {
	t.Parallel()
	source := three(t)
	from := daemonapi.Source{TaskUID: source.UID, Checkpoint: 2, Branch: "clew/other", NumberBranch: true}
	first := source.Fork("first", from)
	first.Prepare(1, nil)
	attempt(first, 1, func(a *daemontest.Shim) { step(first, a, "f1", "f", "f") })
	from.TaskUID, from.Checkpoint = first.UID, 1
	second := first.Fork("second", from)
	second.Prepare(1, nil)
	branch, _ := branchOf(t, second)
	expect(t, "branch", branch, "clew/other-2")

	from.NumberBranch = false
	third := first.Fork("third", from)
	r := prepare.Run(t.Context(), third.PrepareConfig(1, nil))
	expect(t, "reason", r.Reason, "BranchExists")
	expect(t, "permanent", r.Permanent, true)
}
