package plan

import (
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// noProgram and noExecutable match the messages of container runtimes for a command that
// cannot be executed. Every other failure to start a container may be temporary.
var (
	noProgram    = regexp.MustCompile(`exec: "[^"]*": (?:executable file not found|(?:stat [^:]*: )?no such file or directory)`)
	noExecutable = regexp.MustCompile(`exec: "[^"]*": (?:permission denied|is a directory|exec format error)`)
)

// unstartable returns the ending of an attempt whose container was never started because
// its program cannot be executed; nil for all others. The runtime reports that by a reason
// that nothing inside a container can set. A program's own exit code and output prove
// nothing.
func (d *decision) unstartable(container string, t *corev1.ContainerStateTerminated) *ending {
	if !slices.Contains([]string{"StartError", "ContainerCannotRun"}, t.Reason) {
		return nil
	}
	var reason, what string
	switch {
	case noProgram.MatchString(t.Message):
		reason, what = v1alpha1.ReasonProgramNotFound, "its program was not found"
	case noExecutable.MatchString(t.Message):
		reason, what = v1alpha1.ReasonProgramNotExecutable, "its program cannot be executed"
	default:
		return nil
	}
	e := d.failedEnding(t.ExitCode, fmt.Sprintf("the container %q was not started: %s: %s (%s)", container, what, checkProgram(container), t.Message))
	e.reason = reason
	return &e
}

// checkProgram returns the advice for a program that cannot be executed.
func checkProgram(container string) string {
	return fmt.Sprintf("check the command of the container %q, and its image", container)
}
