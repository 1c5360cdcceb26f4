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

// maxReportBytes bounds what is held back of git's answer to a push.
const maxReportBytes = 4 << 20

// backendRequest is one request of git's smart protocol over HTTP, for git
// upload-pack or git receive-pack. All of it was checked.
type backendRequest struct {
	repository Repository
	// service is the git command; advertise: the first of the two requests.
	service   string
	advertise bool
	caller    string
	body      io.Reader
	// env and files go to git and all its children in addition.
	env   []string
	files []*os.File
}

// serveBackend runs the git command of a request and gives its answer to use, reading
// which use must not stop before the end. It returns when git has ended; something may
// still be read from the body then, but goes nowhere.
//
// Git's own http-backend would do the same by two processes more for each request. The
// version of the protocol that the client wishes is not passed on: see view.
func (s *Store) serveBackend(ctx context.Context, request backendRequest, use func(answer *bufio.Reader) error) error {
	g := s.gitFor(request.repository)
	how := "--stateless-rpc"
	if request.advertise {
		how = "--http-backend-info-refs"
	}
	command := g.command(ctx, request.repository.Path, strings.TrimPrefix(request.service, "git-"), how, ".")
	command.Env = append(append(command.Env, "GIT_COMMITTER_NAME="+request.caller, "GIT_COMMITTER_EMAIL="+request.caller), request.env...)
	command.ExtraFiles = request.files
	stderr := &tail{limit: 4 << 10}
	command.Stderr = stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	// Not as the command's Stdin, for all of which its Wait would wait, be the client silent.
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
		// Nobody wants the rest: git should not go on for minutes.
		_ = command.Cancel() // it may have ended already
		_, _ = io.Copy(io.Discard, stdout)
	}
	waited := g.wait(command)
	if ctx.Err() != nil {
		// Children that did not end with their parent.
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	}
	if waited == nil {
		select {
		case waited = <-fed:
		default: // the client goes on sending what git did not want
		}
	}
	// ErrWaitDelay: git has ended well, and a child of it has not ended yet.
	if waited != nil && !errors.Is(waited, exec.ErrWaitDelay) {
		return errors.Join(err, fmt.Errorf("%s: %w: %s", request.service, waited, stderr))
	}
	if silent != nil && err == nil {
		// All is well and there is nothing to say, as to a push without commands.
		return use(bufio.NewReader(strings.NewReader("")))
	}
	return err
}

// feed gives git what it is to read, and tells why not all of it could be read: nil if git
// wants no more, or the push was cut off, which its intake tells of.
func feed(stdin io.WriteCloser, body io.Reader) <-chan error {
	fed := make(chan error, 1)
	go func() {
		defer func() { _ = stdin.Close() }() // git may have ended
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

// writeHeader begins the answer of a git command.
func writeHeader(w http.ResponseWriter, request backendRequest) {
	setHeader(w, request)
	w.WriteHeader(http.StatusOK)
}

// setHeader says what the answer of a git command is, once something is written of it.
func setHeader(w http.ResponseWriter, request backendRequest) {
	kind := "result"
	if request.advertise {
		kind = "advertisement"
	}
	header := w.Header()
	header.Set("Content-Type", "application/x-"+request.service+"-"+kind)
	header.Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
}

// announcement is what goes before the list of refs.
func announcement(service string) []byte {
	return append(packet([]byte("# service="+service+"\n")), "0000"...)
}

// copyFlushing copies git's answer as it comes.
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

// copyUntilReport copies git's answer to a push, but for the report of what
// was stored and all that follows: that it returns, to be sent once it is true
// for good. What goes before are progress and signs of life, and complaints once
// the push was cut off, which are left out. Without side-band there is only the
// report.
func copyUntilReport(w http.ResponseWriter, body *bufio.Reader, sideBand bool, cut func() bool) ([]byte, error) {
	for sideBand {
		line, raw, err := readPacket(body, maxReportBytes)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("git broke off its answer: %w", err)
		}
		const report, signOfLife = 1, 1 // the band, and the length of an empty packet on it
		if err != nil || line == nil || line[0] == report && len(line) > signOfLife {
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

// stored reads from git's report whether everything that was asked for has
// been stored.
func stored(report []byte) bool {
	return unpacked(report) && !bytes.Contains(report, []byte("ng refs/"))
}

// unpacked reads from git's report whether all objects came in.
func unpacked(report []byte) bool { return bytes.Contains(report, []byte("unpack ok\n")) }

// tail keeps the end of what is written to it.
type tail struct {
	limit int
	kept  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if excess := len(t.kept) - t.limit; excess > 0 {
		t.kept = t.kept[excess:]
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.kept)) }
