package gateway

import (
	"bytes"
	"context"
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
	// bodyTimeout is how long a request's body may take to arrive. Daemons give
	// a whole call up after as long.
	bodyTimeout = 30 * time.Second
)

// Content types of the requests that daemons send: Protobuf in one message, or
// as the beginning of a stream. Nothing else is decoded.
const (
	unaryType  = "application/proto"
	streamType = "application/connect+proto"
)

// connectionsOfTask is how many connections a task's pods may keep: one, and those of
// which the server has not noticed yet that they were cut.
const connectionsOfTask = 8

type identityKey struct{}

// identityOf is the caller that authentication put into the context.
func identityOf(ctx context.Context) podidentity.Identity {
	id, _ := ctx.Value(identityKey{}).(podidentity.Identity)
	return id
}

// authentication lets through only callers that are the pod of a task. It is an
// HTTP handler rather than an interceptor because Connect reads and decodes a
// whole message before it calls interceptors: no byte of a stranger's body may
// be read. What a known caller sends is bounded here as well, by size, by time,
// and by the caller's share of the requests under way.
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
	// Who has more open is served as well, on one that is closed soon.
	connections.Identify(r.Context(), connections.Caller{Namespace: id.Namespace, Name: "task/" + id.TaskUID, Max: connectionsOfTask})
	leave, err := a.gateway.shares.arrive(r, id)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	defer leave()
	arrived := &arrival{shares: a.gateway.shares, id: id, controller: http.NewResponseController(w)}
	defer arrived.end()
	r = r.WithContext(context.WithValue(context.WithValue(r.Context(), identityKey{}, id), arrivalKey{}, arrived))
	r.Body = newBody(w, r)
	if !lasts(r) {
		// Whose body does not come holds no place at work meanwhile.
		working := r.Context()
		if r.Body, err = arrived.receive(working, r.Body); err == nil {
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

// receive returns a body of which all has come that will come.
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

// manyElements says that a request takes far more memory decoded than encoded.
// Records alone have many elements; what is no such request is counted as one.
func manyElements(body []byte) bool {
	elements := 0
	err := count(body, (&daemonv1.AppendRequest{}).ProtoReflect().Descriptor(), &elements)
	return err == nil && elements > largeElements
}

// failing is the end of a body.
type failing struct{ err error }

// Read implements io.Reader.
func (f failing) Read([]byte) (int, error) { return 0, f.err }

// unsupported is the HTTP status for requests that no daemon sends; 0 for the
// others. Compressed requests are among them: a few bytes of such a body
// become many.
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
	return id, nil
}

func (a authentication) refuse(w http.ResponseWriter, r *http.Request, err error) {
	a.gateway.metrics.count(procedureOf(r), err)
	_ = a.errors.Write(w, r, err) // the caller may be gone
}

// body is a request's body of a known caller, bounded by size and time.
type body struct {
	io.ReadCloser
	controller *http.ResponseController
}

func newBody(w http.ResponseWriter, r *http.Request) *body {
	most := int64(maxRequestBytes)
	if lasts(r) {
		most = maxQuestionBytes
	}
	b := &body{ReadCloser: http.MaxBytesReader(w, r.Body, most), controller: http.NewResponseController(w)}
	// Where there are no deadlines, the size alone bounds it.
	_ = b.controller.SetReadDeadline(time.Now().Add(bodyTimeout))
	return b
}

// Read implements io.Reader. With the body's end the deadline goes: a stream of
// answers may be long.
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
