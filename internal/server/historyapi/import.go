package historyapi

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/clew-dev/clew/internal/history"
)

const (
	// maxLineBytes bounds a line of an import. Exports split longer texts into pieces on
	// lines of their own.
	maxLineBytes = 32 << 20
	// maxUnzipped bounds the decompressed size of a compressed import, as a multiple of
	// its limit.
	maxUnzipped = 16
	// defaultImportBytes bounds an import request.
	defaultImportBytes = 512 << 20
)

// importHistory imports an export. It is stored completely or not at all. The body is
// buffered in a file first: the caller decides how fast it arrives, and the history store
// must not wait for that.
func (a *api) importHistory(c *call) (any, error) {
	release, err := a.enter(c, a.uploads)
	if err != nil {
		return nil, err
	}
	defer release()
	file, err := a.upload(c.Request)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	encoding := c.Header.Get("Content-Encoding")
	if err := a.checkNew(c, file, encoding); err != nil {
		return nil, err
	}
	lines, err := a.linesOf(file, encoding)
	if err != nil {
		return nil, err
	}
	task, err := a.Archive.Import(c.Context(), c.access.Namespace, c.caller.GetName(), lines)
	if err != nil {
		return nil, err
	}
	if err := a.audit(c, task, reasonImported, "the history was imported from an export"); err != nil {
		return nil, fmt.Errorf("the history of the task %s is imported, but who imported it could not be recorded: %w", task.Name, err)
	}
	found, err := a.find(c.Context(), task.Namespace, task.Name, task.UID)
	if err != nil {
		return nil, err
	}
	imported := taskHistoryOf(found)
	return &imported, nil
}

// upload copies the body into an unlinked file and rewinds it.
func (a *api) upload(r *http.Request) (*os.File, error) {
	file, err := os.CreateTemp(a.ImportDir, "clew-import-*")
	if err != nil {
		return nil, fmt.Errorf("create a file for an import: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("create a file for an import: %w", err), file.Close())
	}
	n, err := io.Copy(file, io.LimitReader(r.Body, a.importBytes+1))
	if err == nil && n > a.importBytes {
		err = tooLarge("the import is larger than %d bytes, the limit of this server (--max-import-bytes)", a.importBytes)
	} else if err != nil {
		err = badRequest("the body could not be read: %v", err)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// checkNew refuses the history of an existing Task, in whatever namespace: a Task writes
// its history itself, and finds what is stored under its UID when it begins. A Task that
// is created later has a new UID.
func (a *api) checkNew(c *call, file io.ReadSeeker, encoding string) error {
	uid, err := a.uidOf(file, encoding)
	if err != nil {
		return err
	}
	if uid == "" {
		return nil // an import without a UID is refused when it is stored
	}
	if !history.IsUID(uid) {
		return badRequest("the task's UID is longer than %d bytes, or has characters that no UID has", history.MaxUIDBytes)
	}
	exists, err := a.Tasks.HasUID(c.Context(), uid)
	if err != nil {
		a.Log.Info("could not check whether the Task still exists", "error", err.Error())
		return unavailable("could not check whether a Task with this history's UID exists; try again")
	}
	if exists {
		return alreadyExists(c.access, fmt.Errorf("a Task with the UID %s exists and writes its history itself; delete it before importing this history", uid))
	}
	return nil
}

// uidOf returns the UID in the first line of an import, empty if it has none, and rewinds
// the file.
func (a *api) uidOf(file io.ReadSeeker, encoding string) (string, error) {
	lines, err := a.linesOf(file, encoding)
	if err != nil {
		return "", err
	}
	var task struct {
		UID string `json:"uid"`
	}
	for line, failed := range lines {
		// What cannot be read is refused when it is stored.
		if failed == nil {
			_ = json.Unmarshal(line.Body, &task)
		}
		break
	}
	_, err = file.Seek(0, io.SeekStart)
	return task.UID, err
}

func tooLarge(format string, args ...any) error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(format, args...))
}

// linesOf reads the lines of a body.
func (a *api) linesOf(body io.Reader, encoding string) (iter.Seq2[history.ExportLine, error], error) {
	if !strings.EqualFold(encoding, "gzip") {
		return readLines(body), nil
	}
	unzipped, err := gzip.NewReader(body)
	if err != nil {
		return nil, badRequest("the body is not gzip data, as its Content-Encoding says: %v", err)
	}
	return readLines(&bounded{r: unzipped, left: maxUnzipped * a.importBytes}), nil
}

// bounded is a reader that fails after a number of bytes.
type bounded struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("%w: it is far larger decompressed than an export can be", history.ErrInvalid)
	}
	return n, err
}

// readLines reads JSON lines, one at a time.
func readLines(body io.Reader) iter.Seq2[history.ExportLine, error] {
	return func(yield func(history.ExportLine, error) bool) {
		lines := bufio.NewScanner(body)
		lines.Buffer(make([]byte, 0, flushEvery), maxLineBytes)
		for number := 1; lines.Scan(); number++ {
			if len(lines.Bytes()) == 0 {
				continue
			}
			var line history.ExportLine
			err := json.Unmarshal(lines.Bytes(), &line)
			if err != nil {
				err = fmt.Errorf("%w: line %d is not a line of an export: %w", history.ErrInvalid, number, err)
			}
			if !yield(line, err) || err != nil {
				return
			}
		}
		if err := lines.Err(); err != nil {
			if errors.Is(err, bufio.ErrTooLong) {
				err = fmt.Errorf("%w: a line is longer than %d bytes", history.ErrInvalid, maxLineBytes)
			}
			yield(history.ExportLine{}, fmt.Errorf("read the lines to import: %w", err))
		}
	}
}
