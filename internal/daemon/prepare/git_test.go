package prepare_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
)

// gitIn runs git in the worktree.
func gitIn(t *testing.T, w *daemontest.World, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = w.Path("")
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func gitStatus(t *testing.T, w *daemontest.World) string {
	t.Helper()
	cmd := exec.Command("git", "status", "--porcelain=v2", "--branch", "--untracked-files=all", "--ignored")
	cmd.Dir = w.Path("")
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_OPTIONAL_LOCKS=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
