package volume

import (
	"slices"
	"testing"

	"github.com/clew-dev/clew/internal/daemonapi"
)

// Credentials stay out of checkpoints of a whole home, unless the user names them.
func TestCredentialsAreLeftOutOfTheHome(t *testing.T) {
	all := homeExclude(daemonapi.Config{AgentType: "Exec"})
	for _, path := range []string{".netrc", ".config/gh", ".aws", ".docker/config.json", ".kube", ".ssh", ".git-credentials", ".npmrc"} {
		if !slices.Contains(all, path) {
			t.Errorf("%s is part of checkpoints", path)
		}
	}
	for named, kept := range map[string]string{".aws": ".aws", ".aws/cli": ".aws", ".config": ".config/gh"} {
		left := homeExclude(daemonapi.Config{AgentType: "Exec", StatePaths: []string{named}})
		if slices.Contains(left, kept) {
			t.Errorf("with %s as state, %s is no part of checkpoints", named, kept)
		}
		if !slices.Contains(left, ".ssh") {
			t.Errorf("with %s as state, .ssh is part of checkpoints", named)
		}
	}
}
