// Command lint is golangci-lint with one more linter: kube-api-linter, which checks
// api/v1alpha1 against the Kubernetes API conventions. .golangci.yml lists its rules, and
// gives a reason for each rule that is off.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/golangci/golangci-lint/v2/pkg/commands"
	"github.com/golangci/golangci-lint/v2/pkg/exitcodes"
	_ "sigs.k8s.io/kube-api-linter" // registers itself as kubeapilinter
)

func main() {
	// golangci-lint's commands "custom" and "custom version" parse this version.
	err := commands.Execute(commands.BuildInfo{GoVersion: runtime.Version(), Version: "2.15.0", Commit: "?"})
	if err != nil {
		fmt.Fprintf(os.Stderr, "golangci-lint: %v\n", err)
		os.Exit(exitcodes.Failure)
	}
}
