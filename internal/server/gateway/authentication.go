package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/clew-dev/clew/internal/connections"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/podidentity"
)

const (
	// authenticationTimeout bounds how long a caller waits to be identified.
	authenticationTimeout = 10 * time.Second
	// bodyTimeout bounds the arrival of a request's body. Daemons give up a whole call
	// after the same time.
	bodyTimeout = 30 * time.Second
)

// Content types of daemons' requests: a single Protobuf message, or the beginning of a
// stream. Nothing else is decoded.
const (
	unaryType  = "application/proto"
	streamType = "application/connect+proto"
)

// connectionsOfTask is the number of connections a task's pods may keep: one, and those
// whose loss the server has not noticed yet.
const connectionsOfTask = 8

type identityKey struct{}

// identityOf returns the caller that authentication put into the context.
func identityOf(ctx context.Context) podidentity.Identity {
	id, _ := ctx.Value(identityKey{}).(podidentity.Identity)
	return id
}

// authentication admits only callers that are the pod of a task. It is an HTTP handler
// rather than an interceptor because Connect reads and decodes a whole message before it
// calls interceptors, and not a byte of an unidentified caller's body may be read. It
// also bounds the requests of known callers by size, by time, and by the caller's share
// of concurrent requests.
type authentication struct {
	gateway *Gateway
	errors  *connect.ErrorWriter
	next    http.Handler
}

func (a authentication) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if status := unsupported(r); status != 0 {
		http.Error(w, http.StatusText(status), status)
		return
	}
	id, err := a.identify(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	// A caller with more connections is served as well, on one that is closed soon.
	connections.Identify(r.Context(), connections.Caller{Namespace: id.Namespace, Name: "task/" + id.TaskUID, Max: connectionsOfTask})
	leave, err := a.gateway.shares.arrive(r, id)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	defer leave()
	arrived := &arrival{shares: a.gateway.shares, id: id, controller: http.NewResponseController(w), leave: leave}
	defer arrived.end()
	r = r.WithContext(context.WithValue(context.WithValue(r.Context(), identityKey{}, id), arrivalKey{}, arrived))
	r.Body = newBody(w, r)
	if !isStreaming(r) {
		// A request whose body does not arrive holds no work slot meanwhile.
		working := r.Context()
		if r.Body, err = arrived.receive(working, r.Body); err == nil && !takesSlot(r) {
			working, err = arrived.work(working)
		}
		if err != nil {
			a.refuse(w, r, err)
			return
		}
		r = r.WithContext(working)
	}
	a.next.ServeHTTP(w, r)
}

// receive returns the body after reading as much of it as will arrive.
func (a *arrival) receive(ctx context.Context, b io.ReadCloser) (io.ReadCloser, error) {
	var all bytes.Buffer
	_, err := all.ReadFrom(io.LimitReader(b, largeBytes))
	if err == nil && all.Len() == largeBytes {
		if err := a.enlarge(ctx); err != nil {
			return b, err
		}
		_, err = all.ReadFrom(b)
	}
	if err == nil && a.reduce == nil && manyElements(all.Bytes()) {
		if err := a.enlarge(ctx); err != nil {
			return b, err
		}
	}
	if err == nil {
		err = io.EOF
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(&all, failing{err}), b}, nil
}

// manyElements reports whether a request takes far more memory decoded than encoded. Only
// requests with records have many elements, so every body is counted as one.
func manyElements(body []byte) bool {
	elements := 0
	err := count(body, (&daemonv1.AppendRequest{}).ProtoReflect().Descriptor(), &elements)
	return err == nil && elements > largeElements
}

// failing is the end of a body.
type failing struct{ err error }

// Read implements io.Reader.
func (f failing) Read([]byte) (int, error) { return 0, f.err }

// unsupported returns the HTTP status for requests that no daemon sends; 0 for others.
// Compressed requests are refused because a small body may expand to a huge one.
func unsupported(r *http.Request) int {
	switch {
	case r.Method != http.MethodPost:
		return http.StatusMethodNotAllowed
	case procedureOf(r) == "":
		return http.StatusNotFound
	case r.Header.Get("Content-Type") != unaryType && r.Header.Get("Content-Type") != streamType,
		compressed(r.Header.Get("Content-Encoding")), compressed(r.Header.Get("Connect-Content-Encoding")):
		return http.StatusUnsupportedMediaType
	}
	return 0
}

func compressed(encoding string) bool { return encoding != "" && encoding != "identity" }

func (a authentication) identify(r *http.Request) (podidentity.Identity, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		token = ""
	}
	ctx, cancel := context.WithTimeout(r.Context(), authenticationTimeout)
	defer cancel()
	id, err := a.gateway.authenticator.Verify(ctx, strings.TrimSpace(token))
	if err != nil {
		return id, a.gateway.failure(r.Context(), err)
	}
	if id.Publishes {
		return id, a.gateway.failure(r.Context(), fmt.Errorf("%w: a pod that publishes a task's work has nothing to report here", podidentity.ErrForbidden))
	}
	return id, nil
}

func (a authentication) refuse(w http.ResponseWriter, r *http.Request, err error) {
	a.gateway.metrics.count(procedureOf(r), err)
	_ = a.errors.Write(w, r, err) // the caller may have disconnected
}

// body is the request body of a known caller, bounded by size and time.
type body struct {
	io.ReadCloser
	controller *http.ResponseController
}

func newBody(w http.ResponseWriter, r *http.Request) *body {
	most := int64(maxRequestBytes)
	switch {
	case isStreaming(r):
		most = maxStreamRequestBytes
	case procedureOf(r) == procedureCallTool:
		most = maxToolRequestBytes
	}
	b := &body{ReadCloser: http.MaxBytesReader(w, r.Body, most), controller: http.NewResponseController(w)}
	// If deadlines are not supported, only the size bounds the body.
	_ = b.controller.SetReadDeadline(time.Now().Add(bodyTimeout))
	return b
}

// Read implements io.Reader. The deadline ends with the body: a stream of responses may
// be long.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		_ = b.controller.SetReadDeadline(time.Time{})
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	_ = b.controller.SetReadDeadline(time.Time{})
	return b.ReadCloser.Close()
}
