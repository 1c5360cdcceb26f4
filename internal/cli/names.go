package cli

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clew-dev/clew/internal/refname"
)

// maxTaskName and maxForkName are the lengths of the longest names that the API accepts.
const maxTaskName, maxForkName = 46, 63

// checkTaskName rejects what the API does not take as the name of a task.
func checkTaskName(name string) error {
	switch {
	case len(name) > maxTaskName:
		return fmt.Errorf("the name of a task has at most %d characters, since its pods and checkpoints carry it in their names; this has %d", maxTaskName, len(name))
	case len(validation.IsDNS1123Label(name)) > 0:
		return errors.New("the name of a task has only lower-case letters, digits and '-', and begins and ends with a letter or a digit")
	}
	return nil
}

// checkObjectName rejects what the API does not take as the name of any other object.
func checkObjectName(name string) error {
	switch {
	case len(name) > validation.DNS1123SubdomainMaxLength:
		return fmt.Errorf("a name has at most %d characters; this has %d", validation.DNS1123SubdomainMaxLength, len(name))
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		return errors.New("a name has only lower-case letters, digits, '-' and '.', and begins and ends with a letter or a digit, as does each part between dots")
	}
	return nil
}

// checkPublishedBranch rejects a branch to which no work can be published. A ref for reviews may
// have options of its host, which the API judges.
func checkPublishedBranch(branch string) error {
	switch {
	case strings.HasPrefix(branch, "refs/for/"):
		return nil
	case strings.HasPrefix(branch, "refs/") && !strings.HasPrefix(branch, "refs/heads/"):
		return fmt.Errorf("--branch is %q: it can only be below refs/heads/ or refs/for/; leave refs/ out to name a branch", branch)
	}
	if err := refname.CheckBranch(branch); err != nil {
		return fmt.Errorf("--branch is %q: %w; use a branch name such as clew/fix-login", branch, err)
	}
	return nil
}
