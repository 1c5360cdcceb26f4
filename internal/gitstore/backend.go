package gitstore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// maxReportBytes bounds what is held back of git's answer to a push.
const maxReportBytes = 4 << 20

// backendRequest is one request for git http-backend. All of it was checked.
type backendRequest struct {
	repository Repository
	method     string
	// path below the repository, without a leading slash; query as CGI wants it.
	path, query string
	contentType string
	gzip        bool
	caller      string
	body        io.Reader
	// env and files go to git and all its children in addition.
	env   []string
	files []*os.File
}

// backendResponse is what git answers.
type backendResponse struct {
	status int
	header http.Header
	body   *bufio.Reader
}

// serveBackend runs git http-backend and gives its answer to use, reading
// which use must not stop before the end. It returns when git has ended.
func (s *Store) serveBackend(ctx context.Context, request backendRequest, use func(backendResponse) error) error {
	g := s.gitFor(request.repository)
	command := g.command(ctx, s.root, "http-backend")
	command.Env = append(command.Env, s.cgi(request)...)
	command.Stdin = request.body
	command.ExtraFiles = request.files
	stderr := &tail{limit: 4 << 10}
	command.Stderr = stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := g.start(command); err != nil {
		return fmt.Errorf("git http-backend cannot be started: %w", err)
	}
	response, err := readCGI(bufio.NewReader(stdout))
	if err == nil {
		err = use(response)
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
	// ErrWaitDelay: git has ended well, while the client goes on sending what
	// git did not want.
	if waited != nil && !errors.Is(waited, exec.ErrWaitDelay) {
		err = errors.Join(err, fmt.Errorf("git http-backend: %w: %s", waited, stderr))
	}
	return err
}

// cgi returns the environment by which http-backend learns of the request. The
// version of the protocol that the client wishes is not passed on: see view. It
// does not learn the length of the body, and goes by its end: told a length,
// http-backend spins for ever if the body ends early, as it does when the
// client goes away or this process is killed.
func (s *Store) cgi(request backendRequest) []string {
	env := []string{
		"GIT_PROJECT_ROOT=" + s.namespace(request.repository.Namespace),
		"GIT_HTTP_EXPORT_ALL=1",
		"PATH_INFO=/" + request.repository.Name + ".git/" + request.path,
		"REQUEST_METHOD=" + request.method,
		"QUERY_STRING=" + request.query,
		"CONTENT_TYPE=" + request.contentType,
		"REMOTE_USER=" + request.caller,
		"SERVER_PROTOCOL=HTTP/1.1",
		"GATEWAY_INTERFACE=CGI/1.1",
	}
	if request.gzip {
		env = append(env, "HTTP_CONTENT_ENCODING=gzip")
	}
	return append(env, request.env...)
}

// readCGI reads the header of a CGI answer.
func readCGI(body *bufio.Reader) (backendResponse, error) {
	header, err := textproto.NewReader(body).ReadMIMEHeader()
	if err != nil {
		return backendResponse{}, fmt.Errorf("git http-backend gave no answer: %w", err)
	}
	response := backendResponse{status: http.StatusOK, header: http.Header(header), body: body}
	if status := response.header.Get("Status"); status != "" {
		code, _, _ := strings.Cut(status, " ")
		if response.status, err = strconv.Atoi(code); err != nil {
			return backendResponse{}, fmt.Errorf("git http-backend gave the status %q", status)
		}
		response.header.Del("Status")
	}
	return response, nil
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
	return bytes.Contains(report, []byte("unpack ok\n")) && !bytes.Contains(report, []byte("ng refs/"))
}

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
