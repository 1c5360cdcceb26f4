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

// Files that hold a secret: one of the code is skipped, so that a restore
// leaves it alone. Of one of the state tree, if it is a text, a copy is kept
// that has asterisks in the place of the secret; the agent can live with that,
// but not without its sessions or the configuration of its repository. A file
// whose name holds a secret is skipped wherever it is, and its name is masked
// where it is listed. As many
// asterisks as the secret has bytes, since a size is promised before a file is
// read.

// errSecret says that a file must not be captured.
var errSecret = errors.New("the file holds a secret")

// withoutSecrets returns what is captured of a file that has this content.
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

// withoutSecrets is a name, of a file or a branch, as it may leave the pod.
func (c *Config) withoutSecrets(name string) string {
	if c.Secrets == nil || !c.Secrets.Holds([]byte(name)) {
		return name
	}
	var out strings.Builder
	_, _, _ = c.Secrets.CopySame(&out, strings.NewReader(name))
	return out.String()
}

// storedHoldsSecret looks into a file of git's object store.
func (s *scanner) storedHoldsSecret(path string, size int64, content io.Reader) bool {
	switch {
	case !strings.HasSuffix(path, ".pack"):
		return s.objectHoldsSecret(content)
	case size <= maxPackLooked:
		return s.packHoldsSecret(content)
	}
	return false
}

// objectHoldsSecret looks into a loose object of git, which is compressed.
// Whatever cannot be read is none.
func (s *scanner) objectHoldsSecret(object io.Reader) bool {
	plain, err := zlib.NewReader(object)
	if err != nil {
		return false
	}
	_, found, _ := s.secrets.CopySame(io.Discard, plain)
	return found
}

// hashLarge hashes a file that is not kept in memory.
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
	look := &looking{Secrets: s.secrets}
	id, whole, err = hashBlob(pausing{text, s.pause}, f, size, look)
	if err == nil && look.found && (!j.state || !text.done()) {
		return id, whole, errSecret
	}
	return id, whole, err
}

// looking remembers whether a secret was found.
type looking struct {
	Secrets
	found bool
}

func (l *looking) CopySame(dst io.Writer, src io.Reader) (int64, bool, error) {
	n, found, err := l.Secrets.CopySame(dst, src)
	l.found = l.found || found
	return n, found, err
}

func isText(content []byte) bool {
	return utf8.Valid(content) && !bytes.Contains(content, []byte{0})
}

// textChecker tells whether all that is written to it is text.
type textChecker struct {
	rest   []byte // of a character that is not whole yet
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

func (t *textChecker) done() bool { return !t.binary && len(t.rest) == 0 }
