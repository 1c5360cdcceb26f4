package refname_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/testing/refnames"
)

func TestBranchesAreTakenAsGitTakesThem(t *testing.T) {
	for name, want := range refnames.Branches() {
		if err := refname.CheckBranch(name); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
		tooLong := len(name) > 200 // the API's limit, not git's
		if !tooLong && gitTakes(t, name) != want {
			t.Errorf("git check-ref-format does not agree about %q", name)
		}
	}
	for _, name := range []string{"ünï", "a,b", "a%b"} {
		if refname.Check(name) != nil || refname.CheckBranch(name) == nil {
			t.Errorf("%q is a ref, and no name that Clew gives a branch", name)
		}
	}
}

func TestTheDefaultBranchIsMadeOfAnID(t *testing.T) {
	for id, want := range refnames.IDs() {
		branch := daemonapi.PreservedBranch("", id)
		if err := refname.CheckBranch(branch); (err == nil) != want || gitTakes(t, branch) != want {
			t.Errorf("%q: %v", branch, err)
		}
	}
}

func gitTakes(t *testing.T, branch string) bool {
	t.Helper()
	if strings.ContainsRune(branch, 0) {
		return false
	}
	return exec.CommandContext(t.Context(), "git", "check-ref-format", "--branch", branch).Run() == nil
}
