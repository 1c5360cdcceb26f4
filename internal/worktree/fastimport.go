package worktree

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/gitpath"
)

// identity is the author and committer of checkpoints.
const identity = "Clew <clew@clew.dev>"

// importer is a running git fast-import. It writes all objects of a checkpoint
// into one pack and updates the refs once the pack is on disk. Without the final
// "done" it updates no ref, so a killed caller leaves at most unreferenced objects.
type importer struct {
	cmd    *exec.Cmd
	stderr *endsBuffer
	in     *bufio.Writer
	pipe   io.WriteCloser
	out    *bufio.Reader
	sent   map[oid]bool
	pause  func() // called between blobs, and between parts of large ones
	err    error
}

// startImport starts git fast-import. The caller must call finish or abort.
func (r *Repo) startImport(ctx context.Context) (*importer, error) {
	cmd, stderr := r.command(ctx, gitCall{args: []string{
		"-c", "fastimport.unpackLimit=0", "-c", "pack.compression=1", "-c", "core.compression=1",
		"fast-import", "--quiet", "--done", "--force", "--date-format=raw", "--depth=0",
	}})
	im := &importer{cmd: cmd, stderr: stderr, sent: map[oid]bool{}, pause: r.pause}
	var err error
	if im.pipe, err = cmd.StdinPipe(); err != nil {
		return nil, failIO(err, "start git fast-import")
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, failIO(err, "start git fast-import")
	}
	im.in, im.out = bufio.NewWriterSize(im.pipe, 256<<10), bufio.NewReaderSize(stdout, 64<<10)
	if err := cmd.Start(); err != nil {
		return nil, failIO(err, "start git fast-import; is git installed?")
	}
	return im, nil
}

// printf writes commands. Errors are kept for finish, since git reports the cause on
// stderr.
func (im *importer) printf(format string, args ...any) {
	if im.err == nil {
		_, im.err = fmt.Fprintf(im.in, format, args...)
	}
}

// blob sends content, unless it has been sent before, and returns its id.
func (im *importer) blob(content []byte) oid {
	id := hashObject("blob", content)
	im.blobOf(id, content)
	return id
}

// blobOf is blob for content whose id is known.
func (im *importer) blobOf(id oid, content []byte) {
	if im.sent[id] {
		return
	}
	im.sent[id] = true
	im.printf("blob\ndata %d\n", len(content))
	if im.err == nil {
		_, im.err = im.in.Write(content)
	}
	im.printf("\n")
	im.pause()
}

// file sends size bytes of a file and returns the id of the content that was sent;
// whole is false if the file turned out to be shorter.
func (im *importer) file(f *os.File, size int64, secrets Secrets) (id oid, whole bool, err error) {
	im.printf("blob\ndata %d\n", size)
	id, whole, err = hashBlob(pausing{importWriter{im}, im.pause}, f, size, secrets)
	im.sent[id] = true
	im.printf("\n")
	return id, whole, err
}

// importWriter writes to git. Its errors are kept for finish, so that a copy only
// fails with errors of its source.
type importWriter struct{ im *importer }

func (w importWriter) Write(p []byte) (int, error) {
	if w.im.err == nil {
		_, w.im.err = w.im.in.Write(p)
	}
	return len(p), nil
}

// commit begins a commit on ref. The caller adds from, merge and file commands, then
// calls endCommit.
func (im *importer) commit(ref string, mark int, when time.Time, message string) {
	date := strconv.FormatInt(when.Unix(), 10) + " +0000"
	im.printf("commit %s\nmark :%d\nauthor %s %s\ncommitter %s %s\ndata %d\n%s\n", ref, mark, identity, date, identity, date, len(message), message)
}

func (im *importer) modify(mode uint32, id oid, path string) {
	im.printf("M %o %s %s\n", mode, id, gitpath.CQuote(path))
}

func (im *importer) remove(path string) { im.printf("D %s\n", gitpath.CQuote(path)) }

func (im *importer) endCommit() { im.printf("\n") }

// ask sends a command whose response is one line and returns that line.
func (im *importer) ask(format string, args ...any) string {
	im.printf(format, args...)
	if im.err == nil {
		im.err = im.in.Flush()
	}
	if im.err != nil {
		return ""
	}
	line, err := im.out.ReadString('\n')
	if err != nil {
		im.err = err
	}
	return strings.TrimSuffix(line, "\n")
}

// markOf returns the id of the commit with this mark.
func (im *importer) markOf(mark int) oid {
	return im.askOID(im.ask("get-mark :%d\n", mark))
}

// treeOf returns the tree of the commit with this mark.
func (im *importer) treeOf(mark int) oid {
	line := im.ask("ls :%d \"\"\n", mark)
	fields := strings.Fields(line)
	if len(fields) >= 3 && fields[1] == "tree" {
		return im.askOID(fields[2])
	}
	return im.askOID(line)
}

// askOID parses an object id in a response of git.
func (im *importer) askOID(text string) oid {
	if im.err != nil {
		return noOID
	}
	id, err := parseOID(text)
	if err != nil {
		im.err = fmt.Errorf("git fast-import answered %q where an object id was expected", text)
	}
	return id
}

// catBlobs calls f with the content of blobs that the repository has, in order, or
// with nil for a blob of more than limit bytes. All blobs are requested at once:
// waiting for each response would cost a context switch per blob.
func (im *importer) catBlobs(ids []oid, limit int, f func(i int, content []byte)) {
	if im.err != nil || len(ids) == 0 {
		return
	}
	answers := make(chan error, 1)
	go func() {
		for i, id := range ids {
			content, err := im.readBlob(id, limit)
			if err != nil {
				// Drain the responses, so that the requests below do not block.
				_, _ = io.Copy(io.Discard, im.out)
				answers <- err
				return
			}
			f(i, content)
		}
		answers <- nil
	}()
	for _, id := range ids {
		im.printf("cat-blob %s\n", id)
	}
	if im.err == nil {
		im.err = im.in.Flush()
	}
	if im.err != nil {
		im.pipe.Close() // git has ended or will end, and with it the responses
	}
	if err := <-answers; im.err == nil {
		im.err = err
	}
}

// readBlob reads one response to cat-blob.
func (im *importer) readBlob(id oid, limit int) ([]byte, error) {
	line, err := im.out.ReadString('\n')
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[1] != "blob" {
		return nil, fmt.Errorf("object %s is missing", id)
	}
	size, err := strconv.Atoi(fields[2])
	if err != nil || size < 0 {
		return nil, fmt.Errorf("git fast-import reported the size %q", fields[2])
	}
	if size > limit {
		_, err := im.out.Discard(size + 1)
		return nil, err
	}
	buf := make([]byte, size+1) // with the final line feed
	_, err = io.ReadFull(im.out, buf)
	return buf[:size], err
}

// finish lets git write the pack and the refs. An error of git itself takes
// precedence over the broken pipe that it causes.
func (im *importer) finish() error {
	im.printf("done\n")
	if im.err == nil {
		im.err = im.in.Flush()
	}
	im.pipe.Close()
	_, _ = io.Copy(io.Discard, im.out)
	if err := im.cmd.Wait(); err != nil {
		return &gitError{command: "fast-import", stderr: im.stderr.String(), err: err}
	}
	return im.err
}

// abort kills the process before it updates any ref.
func (im *importer) abort() {
	_ = im.cmd.Cancel()
	im.pipe.Close()
	_, _ = io.Copy(io.Discard, im.out)
	_ = im.cmd.Wait()
}
