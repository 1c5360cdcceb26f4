// Package origin reads what a pod knows of the repository that a task's code comes from.
package origin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/clew-dev/clew/internal/worktree"
)

// Credentials reads the credentials of the task's repository from the folder in which its
// Secret is mounted; "" for none. caFile is the path of its CA certificate, or "".
func Credentials(dir string) (c worktree.Credentials, caFile string, err error) {
	read := func(key string) string {
		b, readErr := os.ReadFile(filepath.Join(dir, key))
		if readErr != nil && !errors.Is(readErr, os.ErrNotExist) {
			err = fmt.Errorf("read the repository's credentials: %w", readErr)
		}
		return strings.TrimSuffix(string(b), "\n")
	}
	if dir == "" {
		return c, "", nil
	}
	c.Username, c.Password = read("username"), read("password")
	if token := read("token"); token != "" && c.Password == "" {
		c.Password = token
	}
	if read("ca.crt") != "" {
		caFile = filepath.Join(dir, "ca.crt")
	}
	return c, caFile, err
}
