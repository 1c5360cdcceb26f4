package refname_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/testing/refnames"
)

func TestBranchNamesAreValidatedAsGitDoes(t *testing.T) {
	for name, want := range refnames.Branches() {
		if err := refname.CheckBranch(name); (err == nil) != want {
			t.Errorf("CheckBranch(%q) returns %v, but valid should be %v", name, err, want)
		}
		tooLong := len(name) > 200 // the API's limit, not git's
		if !tooLong && gitAccepts(t, name) != want {
			t.Errorf("git check-ref-format disagrees about %q", name)
		}
	}
	for _, name := range []string{"ünï", "a,b", "a%b"} {
		if err := refname.Check(name); err != nil {
			t.Errorf("%q is a valid ref name, but Check returns %v", name, err)
		}
		if refname.CheckBranch(name) == nil {
			t.Errorf("CheckBranch accepts %q, which has other than plain characters", name)
		}
	}
}

func TestTheDefaultBranchOfAnID(t *testing.T) {
	for id, want := range refnames.IDs() {
		branch := daemonapi.PreservedBranch("", id)
		if err := refname.CheckBranch(branch); (err == nil) != want {
			t.Errorf("CheckBranch(%q) returns %v, but valid should be %v", branch, err, want)
		}
		if gitAccepts(t, branch) != want {
			t.Errorf("git check-ref-format disagrees about %q", branch)
		}
	}
}

// gitAccepts reports whether git check-ref-format accepts a branch name.
func gitAccepts(t *testing.T, branch string) bool {
	t.Helper()
	if strings.ContainsRune(branch, 0) {
		return false
	}
	return exec.CommandContext(t.Context(), "git", "check-ref-format", "--branch", branch).Run() == nil
}
