// Package historyapi serves the aggregated API history.clew.dev: views of the
// history store that kubectl clew and others read through the API server, with
// the kubeconfig they have.
//
// Callers are who the API server's front proxy says they are (FrontProxy), and
// may read what the cluster's RBAC allows (SubjectAccess): get on
// tasks/conversation and tasks/timeline, list on timelines, all of the group
// history.clew.dev. Access is checked before anything is looked up, so that
// nobody learns from an answer whether a task exists that they may not read.
// Discovery and OpenAPI documents hold nothing to protect and are open.
//
// Answers are JSON. Errors are metav1.Status objects.
package historyapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/clew-dev/clew/internal/history"
)

const (
	groupPath   = "/apis/" + historyv1alpha1.Group
	versionPath = groupPath + "/" + historyv1alpha1.Version

	// requestTimeout bounds the time that one answer takes.
	requestTimeout = 30 * time.Second
	retryAfter     = 5 // seconds
)

// Store is what the API needs of the history store. Errors are those of
// package history.
type Store interface {
	TaskConversation(ctx context.Context, query history.ConversationQuery) (history.EntryPage, error)
	Timeline(ctx context.Context, query history.TimelineQuery) (history.EventPage, error)
}

// Access is what a caller wants to do.
type Access struct {
	Verb        string
	Resource    string
	Subresource string
	Namespace   string
	// Name is empty for a list.
	Name string
}

// Authorizer says whether a user may do something; reason is for people. An
// error means that it cannot be said at the moment.
type Authorizer interface {
	Authorize(ctx context.Context, user user.Info, access Access) (allowed bool, reason string, err error)
}

// Options of the API; all but Registerer are needed.
type Options struct {
	Store         Store
	Authenticator authenticator.Request
	Authorizer    Authorizer
	Log           logr.Logger
	// Registerer gets the metrics; nil for none.
	Registerer prometheus.Registerer
}

type api struct {
	Options
	metrics *metrics
}

// Register serves the API under /apis and /openapi of the mux.
func Register(mux *http.ServeMux, o Options) {
	a := &api{Options: o, metrics: newMetrics(o.Registerer)}
	documents(mux)
	a.serve(mux, "/namespaces/{namespace}/tasks/{name}/conversation",
		Access{Verb: "get", Resource: "tasks", Subresource: "conversation"}, a.conversation)
	a.serve(mux, "/namespaces/{namespace}/tasks/{name}/timeline",
		Access{Verb: "get", Resource: "tasks", Subresource: "timeline"}, a.timeline)
	for _, path := range []string{"/namespaces/{namespace}/timelines", "/namespaces/{namespace}/timeline"} {
		a.serve(mux, path, Access{Verb: "list", Resource: "timelines"}, a.timeline)
	}
	mux.HandleFunc("/apis/", notServed)
	mux.HandleFunc("/openapi/", notServed)
}

// read answers a request that may be answered.
type read func(r *http.Request, access Access) (any, error)

// serve puts authentication, authorisation and errors around a read.
func (a *api) serve(mux *http.ServeMux, path string, access Access, f read) {
	label := access.Resource
	if access.Subresource != "" {
		label += "/" + access.Subresource
	}
	mux.HandleFunc("GET "+versionPath+path, func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		access := access
		access.Namespace, access.Name = r.PathValue("namespace"), r.PathValue("name")

		answer, err := a.answer(r.WithContext(ctx), access, f)
		code := http.StatusOK
		if err != nil {
			code = a.fail(w, access, err)
		} else {
			writeJSON(w, code, answer)
		}
		a.metrics.observe(label, code, time.Since(start))
	})
}

func (a *api) answer(r *http.Request, access Access, f read) (any, error) {
	who, ok, err := a.Authenticator.AuthenticateRequest(r)
	if err != nil || !ok {
		return nil, apierrors.NewUnauthorized("this API is read through the Kubernetes API server, which says who asks; use its address, as kubectl does")
	}
	allowed, reason, err := a.Authorizer.Authorize(r.Context(), who.User, access)
	if err != nil {
		return nil, fmt.Errorf("%w: ask whether %s is allowed to: %w", errAuthorizer, who.User.GetName(), err)
	}
	if !allowed {
		return nil, forbidden(who.User, access, reason)
	}
	return f(r, access)
}

// errAuthorizer: the API server could not say what the caller may do.
var errAuthorizer = errors.New("the caller's rights could not be checked")

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

// fail writes an error as a Status object and returns its code.
func (a *api) fail(w http.ResponseWriter, access Access, err error) int {
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
	case errors.Is(err, history.ErrNotFound):
		status = notFound(access)
	case errors.Is(err, history.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		a.Log.Info("A history request could not be answered.", "error", err.Error())
		status = unavailable("the history store cannot be reached; try again")
	case errors.Is(err, errAuthorizer):
		a.Log.Info("A caller's rights could not be checked.", "error", err.Error())
		status = unavailable("the caller's rights could not be checked at the moment; try again")
	default:
		a.Log.Error(err, "A history request failed.", "namespace", access.Namespace, "name", access.Name)
		status = apierrors.NewInternalError(errors.New("the server failed; its log says why"))
	}
	return writeStatus(w, status.Status())
}

func notFound(access Access) *apierrors.StatusError {
	err := apierrors.NewNotFound(resourceOf(access), access.Name)
	err.ErrStatus.Message = fmt.Sprintf("the history of the namespace %q has nothing of this kind for a task %q; a task has a history once its first pod has begun", access.Namespace, access.Name)
	return err
}

func unavailable(message string) *apierrors.StatusError {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}

// notServed answers what is not served at all.
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

func writeStatus(w http.ResponseWriter, status metav1.Status) int {
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(status.Details.RetryAfterSeconds))
	}
	writeJSON(w, int(status.Code), status)
	return int(status.Code)
}

func writeJSON(w http.ResponseWriter, code int, answer any) {
	body, err := json.Marshal(answer)
	if err != nil {
		// None of the types served here can fail to encode.
		http.Error(w, "the answer could not be encoded", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-cache, private")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	// The caller may have gone; there is nobody to tell.
	_, _ = w.Write(body)
}
