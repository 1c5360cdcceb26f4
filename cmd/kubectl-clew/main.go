// Command kubectl-clew is the kubectl plugin: once it is on the PATH, kubectl runs
// it as `kubectl clew`. If it is also linked as kubectl_complete-clew, kubectl uses
// it for shell completion of `kubectl clew`.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/clew-dev/clew/internal/cli"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	cmd := cli.New(streams, cli.Options{Version: version})
	if filepath.Base(os.Args[0]) == "kubectl_complete-clew" {
		cmd.SetArgs(append([]string{"__complete"}, os.Args[1:]...))
	}
	err := cmd.ExecuteContext(ctx)
	stop()
	code, report := cli.Exit(err)
	if report {
		fmt.Fprintln(os.Stderr, "error: "+err.Error())
	}
	os.Exit(code)
}
