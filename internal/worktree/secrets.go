package worktree

import (
	"bytes"
	"compress/zlib"
	"errors"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// How files that contain a secret are captured:
//
//   - A file of the code is skipped, so that a restore leaves it alone.
//   - A text file of the state tree is captured with the secret masked. The agent
//     can work with that, but not without its sessions or the configuration of its
//     repository. Any other file of the state tree is skipped.
//   - A file whose name contains a secret is always skipped, and its name is masked
//     wherever it is listed.
//
// A secret is masked by as many asterisks as it has bytes, since the size of a file
// is announced before it is read.

// errSecret means that a file contains a secret and must not be captured.
var errSecret = errors.New("the file contains a secret")

// withoutSecrets returns the content to capture for a file with this content, or
// errSecret.
func (s *scanner) withoutSecrets(j *fileJob, content []byte) ([]byte, error) {
	if s.secrets == nil {
		return content, nil
	}
	if j.state && inObjectStore(j.path) {
		if s.storedHoldsSecret(j.path, int64(len(content)), bytes.NewReader(content)) {
			return nil, errSecret
		}
		return content, nil
	}
	if !s.secrets.Holds(content) {
		return content, nil
	}
	if !j.state || !isText(content) {
		return nil, errSecret
	}
	var out bytes.Buffer
	_, _, err := s.secrets.CopySame(&out, bytes.NewReader(content))
	return out.Bytes(), err
}

// withoutSecrets masks the secrets in the name of a file or branch, so that it may leave
// the pod.
func (c *Config) withoutSecrets(name string) string {
	if c.Secrets == nil || !c.Secrets.Holds([]byte(name)) {
		return name
	}
	var out strings.Builder
	_, _, _ = c.Secrets.CopySame(&out, strings.NewReader(name))
	return out.String()
}

// storedHoldsSecret reports whether a file of a git object store contains a secret.
func (s *scanner) storedHoldsSecret(path string, size int64, content io.Reader) bool {
	switch {
	case !strings.HasSuffix(path, ".pack"):
		return s.objectHoldsSecret(content)
	case size <= maxScannedPack:
		return s.packHoldsSecret(content)
	}
	return false
}

// objectHoldsSecret reports whether a loose git object, which is compressed,
// contains a secret. An object that cannot be read counts as containing none.
func (s *scanner) objectHoldsSecret(object io.Reader) bool {
	plain, err := zlib.NewReader(object)
	if err != nil {
		return false
	}
	_, found, _ := s.secrets.CopySame(io.Discard, plain)
	return found
}

// hashLarge hashes a file that is too large to be read into memory, or returns
// errSecret.
func (s *scanner) hashLarge(j *fileJob, f *os.File, size int64) (id oid, whole bool, err error) {
	switch {
	case s.secrets == nil:
		return hashBlob(pausing{io.Discard, s.pause}, f, size, nil)
	case j.state && inObjectStore(j.path):
		if id, whole, err = hashBlob(pausing{io.Discard, s.pause}, f, size, nil); err != nil {
			return id, whole, err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return id, whole, err
		}
		if s.storedHoldsSecret(j.path, size, f) {
			return id, whole, errSecret
		}
		return id, whole, nil
	}
	text := &textChecker{}
	detector := &secretDetector{Secrets: s.secrets}
	id, whole, err = hashBlob(pausing{text, s.pause}, f, size, detector)
	if err == nil && detector.found && (!j.state || !text.done()) {
		return id, whole, errSecret
	}
	return id, whole, err
}

// secretDetector remembers whether CopySame found a secret.
type secretDetector struct {
	Secrets
	found bool
}

// CopySame implements Secrets.
func (d *secretDetector) CopySame(dst io.Writer, src io.Reader) (int64, bool, error) {
	n, found, err := d.Secrets.CopySame(dst, src)
	d.found = d.found || found
	return n, found, err
}

// isText reports whether content is valid UTF-8 without NUL bytes.
func isText(content []byte) bool {
	return utf8.Valid(content) && !bytes.Contains(content, []byte{0})
}

// textChecker determines whether the data written to it is text.
type textChecker struct {
	rest   []byte // the beginning of an incomplete character
	binary bool
}

func (t *textChecker) Write(p []byte) (int, error) {
	if t.binary {
		return len(p), nil
	}
	b := append(t.rest, p...)
	end := len(b)
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				end = len(b) - i
			}
			break
		}
	}
	t.binary = !isText(b[:end])
	t.rest = bytes.Clone(b[end:])
	return len(p), nil
}

// done reports, after the last write, whether all data was text.
func (t *textChecker) done() bool { return !t.binary && len(t.rest) == 0 }
