// Command lint is golangci-lint with one linter more: apirules, which holds the
// Kubernetes API conventions of api/v1alpha1.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/golangci/golangci-lint/v2/pkg/commands"
	"github.com/golangci/golangci-lint/v2/pkg/exitcodes"
	"github.com/golangci/plugin-module-register/register"

	"github.com/clew-dev/clew/hack/tools/lint/apirules"
)

func main() {
	register.Plugin(apirules.Name, apirules.NewPlugin)
	// The file's modes "custom" and "custom version" need a version that is one.
	err := commands.Execute(commands.BuildInfo{GoVersion: runtime.Version(), Version: "2.15.0", Commit: "?"})
	if err != nil {
		fmt.Fprintf(os.Stderr, "golangci-lint: %v\n", err)
		os.Exit(exitcodes.Failure)
	}
}
