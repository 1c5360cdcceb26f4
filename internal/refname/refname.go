// Package refname defines the valid names of git refs and branches, and the refs of
// checkpoints and of tasks' branches in the gitstore. It is the only definition for the
// plugin, the manager, the daemon and the gitstore.
// The rules of the API repeat CheckBranch in CEL, and a test keeps the two equal.
package refname

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Check returns an error if name is unsafe to pass to git as a ref, a branch or
// another revision. It follows git check-ref-format and also refuses a leading dash,
// since a command could take the name for an option.
func Check(name string) error {
	switch {
	case name == "" || len(name) > 1024:
		return errors.New("it must have 1 to 1024 bytes")
	case !utf8.ValidString(name):
		return errors.New("it is not valid UTF-8")
	case strings.Contains(name, "..") || strings.Contains(name, "@{") || strings.Contains(name, "//") || name == "@":
		return errors.New("it must not contain \"..\", \"//\" or \"@{\"")
	case strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") || strings.HasSuffix(name, "."):
		return errors.New("it must not begin with a slash or end with a slash or a dot")
	case strings.HasPrefix(name, "-"):
		return errors.New("it must not begin with a dash")
	}
	for _, r := range name {
		if r <= ' ' || r == 0x7f || strings.ContainsRune("~^:?*[\\", r) {
			return fmt.Errorf("it must not contain %q", r)
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return errors.New("no part of it may begin with a dot or end with .lock")
		}
	}
	return nil
}

// maxBranch is the length of the longest branch name that the API accepts. Each part
// of the name becomes a file name, to which git temporarily appends .lock.
const maxBranch = 200

// CheckBranch returns an error if Clew does not create branches with this name. It
// applies git's rules and allows only the characters that the API accepts.
func CheckBranch(name string) error {
	if len(name) > maxBranch {
		return fmt.Errorf("it must not have more than %d characters", maxBranch)
	}
	for _, r := range name {
		plain := r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("._/-", r)
		if !plain {
			return errors.New("it must contain only letters, digits and . _ / -")
		}
	}
	if name == "HEAD" {
		return errors.New("HEAD is not a valid branch name")
	}
	return Check(name)
}
