//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// TestMain sees to the git host that the tests' tasks clone from.
func TestMain(m *testing.M) {
	manifests := "../../hack/demo/manifests/"
	for _, args := range [][]string{
		{"apply", "-f", manifests + "namespace.yaml"},
		{"--namespace", originNamespace, "apply", "-f", manifests + "origin.yaml"},
		{"--namespace", originNamespace, "rollout", "status", "deployment/origin", "--timeout=120s"},
	} {
		if out, err := exec.Command("kubectl", args...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "the tests' git host: kubectl %v: %v\n%s", args, err, out)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}
