package mask

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/clew-dev/clew/internal/daemonapi"
)

// maxFile is longer, in bytes, than any file of a Secret.
const maxFile = 2 << 20

// FromEnvironment returns a Masker for the values of the variables CLEW_MASK_* and of the
// files of the Secret volumes below dir, which need not exist. If it returns an error, the
// Masker has all values except those of the files that the error names.
func FromEnvironment(environ []string, dir string) (*Masker, error) {
	var values [][]byte
	for _, e := range environ {
		if name, value, _ := strings.Cut(e, "="); strings.HasPrefix(name, daemonapi.MaskPrefix) {
			values = append(values, []byte(value))
		}
	}
	var failed error
	volumes, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		failed = err
	}
	for _, v := range volumes {
		more, err := readVolume(filepath.Join(dir, v.Name()))
		values = append(values, more...)
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		failed = fmt.Errorf("read the Secrets to mask; make their files readable to all containers of the pod: %w", failed)
	}
	return New(values...), failed
}

// readVolume reads the files of a Secret volume. Names that begin with two dots are the
// kubelet's, and skipped: the files in them are reached by links.
func readVolume(path string) (values [][]byte, failed error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		file := filepath.Join(path, e.Name())
		info, err := os.Stat(file)
		switch {
		case strings.HasPrefix(e.Name(), ".."), errors.Is(err, fs.ErrNotExist):
		case err != nil:
			failed = errors.Join(failed, err)
		case info.IsDir():
			more, err := readVolume(file)
			values, failed = append(values, more...), errors.Join(failed, err)
		case info.Mode().IsRegular() && info.Size() <= maxFile:
			data, err := os.ReadFile(file)
			values, failed = append(values, data), errors.Join(failed, err)
		}
	}
	return values, failed
}

// Strip returns an environment without the variables CLEW_MASK_*.
func Strip(environ []string) []string {
	var out []string
	for _, e := range environ {
		if !strings.HasPrefix(e, daemonapi.MaskPrefix) {
			out = append(out, e)
		}
	}
	return out
}
