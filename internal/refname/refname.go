// Package refname says which names git refs may have. It is the one definition
// for the plugin, the manager and the daemon; the rules of the API repeat
// CheckBranch in CEL, and a test holds them together.
package refname

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Check reports why git must not be given name as a ref, a branch or another
// revision. It follows git check-ref-format, but also refuses a leading dash,
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

// maxBranch is the longest branch name that the API takes. A part of the name
// becomes the name of a file, with .lock appended for a moment.
const maxBranch = 200

// CheckBranch reports why Clew will not make a branch of this name: git's rules,
// and the plain characters that the API takes.
func CheckBranch(name string) error {
	if len(name) > maxBranch {
		return fmt.Errorf("it must not have more than %d characters", maxBranch)
	}
	for _, r := range name {
		plain := r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("._/-", r)
		if !plain {
			return errors.New("it may consist of letters, digits and . _ / - only")
		}
	}
	if name == "HEAD" {
		return errors.New("HEAD is not the name of a branch")
	}
	return Check(name)
}
