package plan

import (
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// noProgram and noExecutable are how container runtimes say that what a command
// names cannot be executed; all else that keeps a container from starting may pass.
var (
	noProgram    = regexp.MustCompile(`exec: "[^"]*": (?:executable file not found|(?:stat [^:]*: )?no such file or directory)`)
	noExecutable = regexp.MustCompile(`exec: "[^"]*": (?:permission denied|is a directory|exec format error)`)
)

// unstartable is the ending of an attempt whose container was never started, since
// its program cannot be executed; nil for all others. The runtime says so itself,
// by a reason that nothing in a container can give: what a program ends with, and
// what it writes, is its own matter.
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

// checkProgram says what to do about a program that cannot be executed.
func checkProgram(container string) string {
	return fmt.Sprintf("check the command of the container %q, and its image", container)
}
