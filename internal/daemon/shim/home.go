package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// writeHomeFiles writes the files that the agent needs in its home. The agent can write
// to its home, so no link in it is followed out of it.
func writeHomeFiles(env []string, files map[string][]byte) error {
	if len(files) == 0 {
		return nil
	}
	home := ""
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, "HOME="); ok {
			home = value
		}
	}
	root, err := os.OpenRoot(home)
	if err != nil {
		return fmt.Errorf("open the agent's home %q to write its settings, HOME must name a folder: %w", home, err)
	}
	defer root.Close()
	for name, data := range files {
		err := root.MkdirAll(path.Dir(name), 0o755)
		if err == nil {
			err = root.Remove(name)
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = root.WriteFile(name, data, 0o644)
		}
		if err != nil {
			return fmt.Errorf("write the agent's settings to %s in its home, remove the file or folder that is in the way: %w", name, err)
		}
	}
	return nil
}
