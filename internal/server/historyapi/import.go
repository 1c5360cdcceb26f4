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
	// maxLineBytes is how long a line of an import may be. Exports have longer
	// texts in pieces, on lines of their own.
	maxLineBytes = 32 << 20
	// maxUnzipped is how many times as large as its limit an import may be that
	// came zipped.
	maxUnzipped = 16
	// defaultImportBytes is how large a request to import may be.
	defaultImportBytes = 512 << 20
)

// importHistory takes in what an export gave out. It is stored as a whole or
// not at all. The body is read to a file first: how fast it comes is up to the
// caller, and the history store must not wait for that.
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
		return nil, fmt.Errorf("the history of the task %s is imported, but who did it could not be recorded: %w", task.Name, err)
	}
	found, err := a.find(c.Context(), task.Namespace, task.Name, task.UID)
	if err != nil {
		return nil, err
	}
	imported := taskHistoryOf(found)
	return &imported, nil
}

// upload reads the body into a file that has no name any more, from its
// beginning.
func (a *api) upload(r *http.Request) (*os.File, error) {
	file, err := os.CreateTemp(a.ImportDir, "clew-import-*")
	if err != nil {
		return nil, fmt.Errorf("make a file for an import: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("make a file for an import: %w", err), file.Close())
	}
	n, err := io.Copy(file, io.LimitReader(r.Body, a.importBytes+1))
	if err == nil && n > a.importBytes {
		err = tooLarge("the import is larger than %d bytes, which is the most that this server takes (--max-import-bytes)", a.importBytes)
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

// checkNew refuses the history of a Task that is there, in whatever namespace: a Task
// writes its history itself, and finds what is there under its UID when it begins. A
// Task that is made later has a UID that nobody knew before.
func (a *api) checkNew(c *call, file io.ReadSeeker, encoding string) error {
	uid, err := a.uidOf(file, encoding)
	if err != nil {
		return err
	}
	if uid == "" {
		return nil // what has none is refused when it is to be stored
	}
	if !history.IsUID(uid) {
		return badRequest("the task's UID is longer than %d bytes, or has characters that no UID has", history.MaxUIDBytes)
	}
	there, err := a.Tasks.HasUID(c.Context(), uid)
	if err != nil {
		a.Log.Info("could not check whether the Task still exists", "error", err.Error())
		return unavailable("it could not be seen at the moment whether a Task with this history's UID is there; try again")
	}
	if there {
		return exists(c.access, fmt.Errorf("there is a Task with the UID %s, which writes its history itself; import this one when that Task is deleted", uid))
	}
	return nil
}

// uidOf is the UID in the first line of an import, which is read from its beginning
// again afterwards; empty if it has none.
func (a *api) uidOf(file io.ReadSeeker, encoding string) (string, error) {
	lines, err := a.linesOf(file, encoding)
	if err != nil {
		return "", err
	}
	var task struct {
		UID string `json:"uid"`
	}
	for line, failed := range lines {
		// What cannot be read is refused when it is to be stored.
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
		return nil, badRequest("the body is not zipped as its header says: %v", err)
	}
	return readLines(&bounded{r: unzipped, left: maxUnzipped * a.importBytes}), nil
}

// bounded is a reader that fails when it has given so much.
type bounded struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("%w: it is far larger unzipped than zipped, as no export is", history.ErrInvalid)
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
				err = fmt.Errorf("%w: line %d is no line of an export: %w", history.ErrInvalid, number, err)
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
