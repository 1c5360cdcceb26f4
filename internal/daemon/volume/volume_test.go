package volume

import (
	"slices"
	"testing"

	"github.com/clew-dev/clew/internal/daemonapi"
)

// What programs log in with stays out of checkpoints of a whole home, unless the
// user names it.
func TestCredentialsAreLeftOutOfTheHome(t *testing.T) {
	all := homeExclude(daemonapi.Config{AgentType: "Exec"})
	for _, path := range []string{".netrc", ".config/gh", ".aws", ".docker/config.json", ".kube", ".ssh", ".git-credentials", ".npmrc"} {
		if !slices.Contains(all, path) {
			t.Errorf("%s is part of checkpoints", path)
		}
	}
	for _, named := range []string{".aws", ".aws/cli", ".config"} {
		left := homeExclude(daemonapi.Config{AgentType: "Exec", StatePaths: []string{named}})
		if named != ".config" && slices.Contains(left, ".aws") || named == ".config" && slices.Contains(left, ".config/gh") || !slices.Contains(left, ".ssh") {
			t.Errorf("with %s as state: %v", named, left)
		}
	}
}
