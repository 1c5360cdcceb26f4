package gitstore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// maxReportBytes bounds how much of git's response to a push is held back.
const maxReportBytes = 4 << 20

// backendRequest is one validated request of git's smart protocol over HTTP, for git
// upload-pack or git receive-pack.
type backendRequest struct {
	repository Repository
	// service is the git command. advertise is set for the first of the two requests,
	// which asks for the list of refs.
	service   string
	advertise bool
	caller    string
	body      io.Reader
	// env and files are passed to git and its children in addition to the usual ones.
	env   []string
	files []*os.File
}

// serveBackend runs the git command of a request and passes its output to use, which must
// read it to the end. It returns when git has exited; the body may still be read after
// that, but what is read is discarded.
//
// Git's own http-backend would do the same with two more processes per request. The
// protocol version that the client asks for is not passed on: see view.
func (s *Store) serveBackend(ctx context.Context, request backendRequest, use func(answer *bufio.Reader) error) error {
	g := s.gitFor(request.repository)
	mode := "--stateless-rpc"
	if request.advertise {
		mode = "--http-backend-info-refs"
	}
	command := g.command(ctx, request.repository.Path, strings.TrimPrefix(request.service, "git-"), mode, ".")
	command.Env = append(append(command.Env, "GIT_COMMITTER_NAME="+request.caller, "GIT_COMMITTER_EMAIL="+request.caller), request.env...)
	command.ExtraFiles = request.files
	stderr := &tail{limit: 4 << 10}
	command.Stderr = stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	// A pipe instead of the command's Stdin: Wait would wait for all of that, even if the
	// client is silent.
	stdin, err := command.StdinPipe()
	if err != nil {
		return err
	}
	if err := g.start(command); err != nil {
		return fmt.Errorf("%s cannot be started: %w", request.service, err)
	}
	fed := feed(stdin, request.body)
	answer := bufio.NewReader(stdout)
	_, silent := answer.Peek(1)
	if silent == nil {
		err = use(answer)
	}
	if err != nil {
		// Nobody reads the rest: git must not keep running for minutes.
		_ = command.Cancel() // git may have exited already
		_, _ = io.Copy(io.Discard, stdout)
	}
	waited := g.wait(command)
	if ctx.Err() != nil {
		// Some children may have outlived their parent.
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	}
	if waited == nil {
		select {
		case waited = <-fed:
		default: // the client is still sending what git did not read
		}
	}
	// ErrWaitDelay: git exited with 0, but one of its children still runs.
	if waited != nil && !errors.Is(waited, exec.ErrWaitDelay) {
		return errors.Join(err, fmt.Errorf("%s: %w: %s", request.service, waited, stderr))
	}
	if silent != nil && err == nil {
		// Git succeeded without output, as it does for a push without commands.
		return use(bufio.NewReader(strings.NewReader("")))
	}
	return err
}

// feed copies body to git's standard input and sends the error that stopped the copy. The
// error is nil if git stopped reading, or if the push was cut off, which its intake reports.
func feed(stdin io.WriteCloser, body io.Reader) <-chan error {
	fed := make(chan error, 1)
	go func() {
		defer func() { _ = stdin.Close() }() // git may have exited
		var err error
		if body != nil {
			_, err = io.Copy(stdin, body)
		}
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) || errors.Is(err, errIntake) {
			err = nil
		}
		fed <- err
	}()
	return fed
}

// writeHeader begins the response that carries a git command's output.
func writeHeader(w http.ResponseWriter, request backendRequest) {
	setHeader(w, request)
	w.WriteHeader(http.StatusOK)
}

// setHeader sets the headers of the response that carries a git command's output.
func setHeader(w http.ResponseWriter, request backendRequest) {
	kind := "result"
	if request.advertise {
		kind = "advertisement"
	}
	header := w.Header()
	header.Set("Content-Type", "application/x-"+request.service+"-"+kind)
	header.Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
}

// announcement returns the packets that precede the list of refs.
func announcement(service string) []byte {
	return append(packet([]byte("# service="+service+"\n")), "0000"...)
}

// copyFlushing copies git's output to the client as it arrives.
func copyFlushing(w http.ResponseWriter, body io.Reader) error {
	flush := http.NewResponseController(w)
	buffer := make([]byte, 64<<10)
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return err
			}
			if err := flush.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// copyUntilReport copies git's output for a push up to the report of what was stored. It
// returns the report and all that follows, to be sent once the push is durable. What
// precedes the report is progress and keep-alives; once the push is cut off these are
// complaints about it, and are dropped. Without side-band there is only the report.
func copyUntilReport(w http.ResponseWriter, body *bufio.Reader, sideBand bool, cut func() bool) ([]byte, error) {
	for sideBand {
		line, raw, err := readPacket(body, maxReportBytes)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("git's output ended early: %w", err)
		}
		const report, keepAlive = 1, 1 // the band, and the length of an empty packet on it
		if err != nil || line == nil || line[0] == report && len(line) > keepAlive {
			rest, err := io.ReadAll(io.LimitReader(body, maxReportBytes))
			return append(raw, rest...), err
		}
		if cut() {
			continue
		}
		if _, err := w.Write(raw); err != nil {
			return nil, err
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(body, maxReportBytes))
}

// stored reports whether git's report says that every requested ref was updated.
func stored(report []byte) bool {
	return unpacked(report) && !bytes.Contains(report, []byte("ng refs/"))
}

// unpacked reports whether git's report says that all objects arrived.
func unpacked(report []byte) bool { return bytes.Contains(report, []byte("unpack ok\n")) }

// tail is a writer that keeps the last limit bytes written to it.
type tail struct {
	limit int
	kept  []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if excess := len(t.kept) - t.limit; excess > 0 {
		t.kept = t.kept[excess:]
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.kept)) }
