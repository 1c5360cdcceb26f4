// Package historyapi serves the aggregated API history.clew.dev: views of the history
// store that kubectl clew and others read through the API server, with their existing
// kubeconfig.
//
// The caller's identity comes from the API server's front proxy (FrontProxy), and the
// cluster's RBAC decides what the caller may do (SubjectAccess), all in the group
// history.clew.dev: get tasks/conversation, tasks/timeline, tasks/snapshots, tasks/checkpoints and tasks/diff; list
// or watch timelines; list search; list and get taskhistories, get taskhistories/export, and
// create (an import) and delete taskhistories. Access is checked before anything is
// looked up, so that no response reveals whether a task exists that the caller may not
// read. Exports, imports and deletions are recorded in the timeline with the caller's
// name. Discovery and OpenAPI documents contain nothing to protect and are open.
//
// Responses are JSON, exports JSON lines. Errors are metav1.Status objects.
package historyapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/rewindtarget"
)

const (
	groupPath   = "/apis/" + historyv1alpha1.Group
	versionPath = groupPath + "/" + historyv1alpha1.Version

	// requestTimeout bounds the time of one response.
	requestTimeout = 30 * time.Second
	retryAfter     = 5 // seconds
)

// Store is what the API needs of the history store. Errors are those of package history.
type Store interface {
	TaskConversation(ctx context.Context, query history.ConversationQuery) (history.EntryPage, error)
	Timeline(ctx context.Context, query history.TimelineQuery) (history.EventPage, error)
	// Namespace returns the namespace that has the name now.
	Namespace(ctx context.Context, name string) (history.Namespace, error)
	// Entries returns history.ErrNotFound if Namespace would return another one than the query has.
	Entries(ctx context.Context, query history.EntriesQuery) ([]history.Event, error)
	Text(ctx context.Context, namespace string, p *conversation.Pieces) (string, error)
}

// Archive is what the API needs to find, export, import and delete histories. Errors are
// those of package history.
type Archive interface {
	Search(ctx context.Context, query history.SearchQuery) (history.SearchPage, error)
	Tasks(ctx context.Context, query history.TaskQuery) (history.TaskPage, error)
	MadeBy(ctx context.Context, task history.Key) (*history.MadeBy, error)
	TaskState(ctx context.Context, taskUID string) (history.TaskState, error)
	SnapshotsAfter(ctx context.Context, taskUID string, afterOrdinal int64, limit int) ([]history.Snapshot, error)
	rewindtarget.Store
	CheckpointBoundary(ctx context.Context, task history.Key, number int64) (history.Position, history.Totals, error)
	CheckpointsAfter(ctx context.Context, taskUID string, after int64, limit int) ([]history.Checkpoint, error)
	CheckpointsBefore(ctx context.Context, task history.Key, before int64, limit int) ([]history.Checkpoint, error)
	Export(ctx context.Context, namespace, name, uid string, write func(history.ExportLine) error) error
	Import(ctx context.Context, namespace, by string, lines iter.Seq2[history.ExportLine, error]) (history.Task, error)
	ClaimDeletion(ctx context.Context, uid string) (formers []string, err error)
	DeleteTask(ctx context.Context, uid string) (history.Deleted, error)
	RecordEvents(ctx context.Context, events []history.Event) error
}

// Tasks reads the Task objects in the cluster.
type Tasks interface {
	// TaskUID returns the UID of the Task of that name, empty if there is none. It does
	// not use a cache.
	TaskUID(ctx context.Context, namespace, name string) (string, error)
	// HasUID reports whether a Task of any namespace has that UID. It does not use a
	// cache.
	HasUID(ctx context.Context, uid string) (bool, error)
}

// Code stores the checkpoints of tasks.
type Code interface {
	// DeleteTask deletes everything stored of a task's code, and of that of the former tasks whose
	// histories it has adopted. It may be repeated.
	DeleteTask(ctx context.Context, namespace, uid, name string, formers []string) (CodeDeletion, error)
	// Diff compares two checkpoints of a task. Its refusals are *gitstoreapi.Refusal.
	Diff(ctx context.Context, namespace, uid string, q gitstoreapi.DiffQuery) (gitstoreapi.Diff, error)
}

// CodeDeletion counts what was deleted of a task's code.
type CodeDeletion struct {
	Refs, Repositories int
	Bytes              int64
}

// Access is an action that a caller requests.
type Access struct {
	Verb        string
	Resource    string
	Subresource string
	Namespace   string
	// Name is empty for a list.
	Name string
}

// Authorizer decides whether a user may do something; reason is for people. An error
// means that it cannot be decided at the moment.
type Authorizer interface {
	Authorize(ctx context.Context, user user.Info, access Access) (allowed bool, reason string, err error)
}

// Options of the API; all but Registerer, Connections and Now are required.
type Options struct {
	Store Store
	// Archive, Tasks and Code serve searches, lists, differences, exports, imports and deletions;
	// without an Archive none of these is served.
	Archive Archive
	Tasks   Tasks
	Code    Code
	// Objects serves previews of rewinds, which are about the Task as it is.
	Objects Objects
	// Live serves differences to the present of running tasks.
	Live Live
	// Feed serves watches of timelines; without it, none is served.
	Feed Feed
	// Verifier serves verifications of checkpoints.
	Verifier      Verifier
	Authenticator authenticator.Request
	Authorizer    Authorizer
	Log           logr.Logger
	// Registerer receives the metrics; nil for none.
	Registerer prometheus.Registerer
	// Connections is the number of Store's connections, which bounds the requests that
	// use it; 6 if zero.
	Connections int
	// Now returns the time of events; time.Now if nil.
	Now func() time.Time
	// ImportDir is where imports are buffered before they are stored; the system's folder
	// for temporary files if empty. ImportBytes is the size of the largest import; 512
	// MiB if zero.
	ImportDir   string
	ImportBytes int64
}

type api struct {
	Options
	shares
	metrics     *metrics
	now         func() time.Time
	importBytes int64
}

const resourceTaskHistories = "taskhistories"

// Register serves the API under /apis and /openapi of the mux.
func Register(mux *http.ServeMux, o Options) {
	a := &api{Options: o, shares: newShares(o.Connections), metrics: newMetrics(o.Registerer), now: o.Now, importBytes: o.ImportBytes}
	if a.importBytes <= 0 {
		a.importBytes = defaultImportBytes
	}
	if a.now == nil {
		a.now = time.Now
	}
	documents(mux)
	const task, histories = "/namespaces/{namespace}/tasks/{name}", "/namespaces/{namespace}/" + resourceTaskHistories
	a.serve(mux, "GET "+versionPath+task+"/conversation", requestTimeout,
		Access{Verb: "get", Resource: "tasks", Subresource: "conversation"}, a.withAnswerSlot(a.conversation))
	a.read(mux, task+"/timeline", Access{Verb: "get", Resource: "tasks", Subresource: "timeline"}, a.timeline)
	for _, path := range []string{"/namespaces/{namespace}/timelines", "/namespaces/{namespace}/timeline"} {
		mux.HandleFunc("GET "+versionPath+path, a.listOrWatch(
			a.answer(requestTimeout, Access{Verb: "list", Resource: "timelines"}, a.withAnswerSlot(answering(http.StatusOK, a.withReadSlot(a.timeline)))),
			a.answer(watchTimeout, Access{Verb: "watch", Resource: "timelines"}, a.watchTimeline)))
	}
	if a.Archive != nil {
		a.archive(mux, task, histories)
	}
	mux.HandleFunc("/apis/", notServed)
	mux.HandleFunc("/openapi/", notServed)
}

// archive registers what needs the Archive.
func (a *api) archive(mux *http.ServeMux, task, histories string) {
	a.read(mux, task+"/conversation/position", Access{Verb: "get", Resource: "tasks", Subresource: "conversation"}, a.position)
	checkpoints := Access{Verb: "get", Resource: "tasks", Subresource: subresourceCheckpoints}
	a.read(mux, task+"/"+subresourceCheckpoints, checkpoints, a.checkpoints)
	a.read(mux, task+"/"+subresourceCheckpoints+"/{number}", checkpoints, a.checkpoint)
	a.serve(mux, "GET "+versionPath+task+"/"+subresourceCheckpoints+"/{number}/verification", requestTimeout, checkpoints, a.verification)
	a.serve(mux, "GET "+versionPath+task+"/"+subresourceDiff, requestTimeout,
		Access{Verb: "get", Resource: "tasks", Subresource: subresourceDiff}, a.diff)
	a.serve(mux, "GET "+versionPath+task+"/"+subresourceDiff+"/rewind", requestTimeout,
		Access{Verb: "get", Resource: "tasks", Subresource: subresourceDiff}, a.rewindPreview)
	a.read(mux, task+"/snapshots", Access{Verb: "get", Resource: "tasks", Subresource: "snapshots"}, a.snapshots)
	a.serve(mux, "GET "+versionPath+"/namespaces/{namespace}/search", requestTimeout,
		Access{Verb: "list", Resource: "search"}, a.searchHandler)
	a.read(mux, histories, Access{Verb: "list", Resource: resourceTaskHistories}, a.taskHistories)
	a.read(mux, histories+"/{name}", Access{Verb: "get", Resource: resourceTaskHistories}, a.taskHistory)
	a.serve(mux, "GET "+versionPath+histories+"/{name}/export", transferTimeout,
		Access{Verb: "get", Resource: resourceTaskHistories, Subresource: "export"}, a.export)
	a.serve(mux, "POST "+versionPath+histories, transferTimeout,
		Access{Verb: "create", Resource: resourceTaskHistories}, answering(http.StatusCreated, a.importHistory))
	a.serve(mux, "DELETE "+versionPath+histories+"/{name}", deletionTimeout,
		Access{Verb: "delete", Resource: resourceTaskHistories}, answering(http.StatusOK, a.deleteHistory))
}

// call is an authorized request.
type call struct {
	*http.Request
	caller user.Info
	access Access
}

// read registers GETs that are answered with what f reads from the history store.
func (a *api) read(mux *http.ServeMux, path string, access Access, f func(*call) (any, error)) {
	a.serve(mux, "GET "+versionPath+path, requestTimeout, access, a.withAnswerSlot(answering(http.StatusOK, a.withReadSlot(f))))
}

// answering returns a handler that writes the object that f returns.
func answering(code int, f func(*call) (any, error)) func(http.ResponseWriter, *call) error {
	return func(w http.ResponseWriter, c *call) error {
		answer, err := f(c)
		if err != nil {
			return err
		}
		if l, ok := answer.(*items); ok {
			return l.writeTo(w)
		}
		writeJSON(w, code, answer)
		return nil
	}
}

// serve registers what answer returns.
func (a *api) serve(mux *http.ServeMux, pattern string, timeout time.Duration, access Access, f func(http.ResponseWriter, *call) error) {
	mux.HandleFunc(pattern, a.answer(timeout, access, f))
}

// answer returns the handler of requests that f answers, with authentication, authorisation and error
// handling.
func (a *api) answer(timeout time.Duration, access Access, f func(http.ResponseWriter, *call) error) http.HandlerFunc {
	label := resourceOf(access).Resource
	return func(response http.ResponseWriter, r *http.Request) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		access := access
		access.Namespace, access.Name = r.PathValue("namespace"), r.PathValue("name")
		w := &recorder{ResponseWriter: response}
		c, err := a.authorize(r.WithContext(ctx), access)
		if err == nil {
			err = f(w, c)
		}
		switch {
		case err != nil && w.code != 0:
			// A partial response must not be taken for a complete one.
			a.Log.Info("a response was cut off", "resource", label, "namespace", access.Namespace, "name", access.Name, "error", err.Error())
			a.metrics.observe(label, w.code, time.Since(start))
			panic(http.ErrAbortHandler)
		case err != nil:
			a.fail(w, access, err)
		}
		a.metrics.observe(label, w.code, time.Since(start))
	}
}

// authorize returns the call of a caller who may do what is requested.
func (a *api) authorize(r *http.Request, access Access) (*call, error) {
	who, ok, err := a.Authenticator.AuthenticateRequest(r)
	if err != nil || !ok {
		return nil, apierrors.NewUnauthorized("use this API through the address of the Kubernetes API server, as kubectl does: it authenticates the caller")
	}
	c := &call{Request: r, caller: who.User, access: access}
	return c, a.allow(c)
}

// allow fails unless the caller may do what is requested.
func (a *api) allow(c *call) error {
	allowed, reason, err := a.Authorizer.Authorize(c.Context(), c.caller, c.access)
	if err != nil {
		return fmt.Errorf("%w: check the permissions of %s: %w", errAuthorizer, c.caller.GetName(), err)
	}
	if !allowed {
		return forbidden(c.caller, c.access, reason)
	}
	return nil
}

// recorder remembers the status code of the response, 0 before there is one.
type recorder struct {
	http.ResponseWriter
	code int
}

func (r *recorder) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find the real writer.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// errAuthorizer: the API server could not decide what the caller may do.
var errAuthorizer = errors.New("the caller's permissions could not be checked")

func resourceOf(access Access) schema.GroupResource {
	resource := access.Resource
	if access.Subresource != "" {
		resource += "/" + access.Subresource
	}
	return schema.GroupResource{Group: historyv1alpha1.Group, Resource: resource}
}

func forbidden(who user.Info, access Access, reason string) error {
	why := fmt.Errorf("user %q may not %s %s in the namespace %q", who.GetName(), access.Verb, resourceOf(access), access.Namespace)
	if reason != "" {
		why = fmt.Errorf("%w: %s", why, reason)
	}
	return apierrors.NewForbidden(resourceOf(access), access.Name, why)
}

// fail writes an error as a Status object.
func (a *api) fail(w http.ResponseWriter, access Access, err error) {
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
	case errors.Is(err, history.ErrNotFound):
		status = notFound(access)
	case errors.Is(err, history.ErrInvalid):
		status = apierrors.NewBadRequest(err.Error())
	case errors.Is(err, history.ErrLimitReached):
		status = apierrors.NewForbidden(resourceOf(access), access.Name, err)
	case errors.Is(err, history.ErrExists):
		status = alreadyExists(access, err)
	case errors.Is(err, history.ErrCorrupted):
		a.Log.Error(err, "a stored history is damaged", "namespace", access.Namespace, "name", access.Name)
		status = corrupted()
	case errors.Is(err, history.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		a.Log.Info("a history request could not be answered", "error", err.Error())
		status = unavailable("the history store cannot be reached; try again")
		if errors.Is(err, history.ErrOldSchema) {
			status = unavailable(history.ErrOldSchema.Error() + "; try again")
		}
	case errors.Is(err, errAuthorizer):
		a.Log.Info("a caller's rights could not be checked", "error", err.Error())
		status = unavailable("the caller's permissions could not be checked; try again")
	default:
		a.Log.Error(err, "a history request failed", "namespace", access.Namespace, "name", access.Name)
		status = apierrors.NewInternalError(errors.New("the server failed; its log says why"))
	}
	writeStatus(w, status.Status())
}

// corrupted is the answer that stored messages differ from what was recorded.
func corrupted() *apierrors.StatusError {
	const message = "messages of this history are missing in the history database, or differ from what was recorded: restore it from a backup; the server's log says which"
	status := apierrors.NewInternalError(errors.New(message))
	status.ErrStatus.Message = message
	status.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseType(v1alpha1.ReasonCorrupted), Message: message}}
	return status
}

func alreadyExists(access Access, err error) *apierrors.StatusError {
	status := apierrors.NewAlreadyExists(resourceOf(access), access.Name)
	status.ErrStatus.Message = err.Error()
	return status
}

func notFound(access Access) *apierrors.StatusError {
	err := apierrors.NewNotFound(resourceOf(access), access.Name)
	err.ErrStatus.Message = fmt.Sprintf("there is no such history of a task %q in namespace %s: check its name, and the UID, branch or message if you gave one; a task has a history once its first pod has begun", access.Name, access.Namespace)
	return err
}

func unavailable(message string) *apierrors.StatusError {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}

// notServed answers requests for anything that is not served.
func notServed(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		writeStatus(w, apierrors.NewMethodNotSupported(schema.GroupResource{Group: historyv1alpha1.Group}, r.Method).Status())
		return
	}
	writeStatus(w, metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
		Message: "the server could not find the requested resource",
	})
}

func writeStatus(w http.ResponseWriter, status metav1.Status) {
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(status.Details.RetryAfterSeconds))
	}
	writeJSON(w, int(status.Code), status)
}

// writeJSON responds with one object; lists, which may be large, use a listWriter.
func writeJSON(w http.ResponseWriter, code int, answer any) {
	body, err := json.Marshal(answer)
	if err != nil {
		// None of the types served here can fail to encode.
		http.Error(w, "the response could not be encoded", http.StatusInternalServerError)
		return
	}
	jsonHeader(w)
	w.WriteHeader(code)
	// The caller may have disconnected; then nobody can be told.
	_, _ = w.Write(body)
}

func jsonHeader(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-cache, private")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}
