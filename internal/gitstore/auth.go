package gitstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/podidentity"
)

// Task is the attempt of a task that a request comes from.
type Task struct {
	Namespace string
	Name      string
	UID       string
	// Attempt counts the task's pod starts from 1.
	Attempt int64
	// Sources are the UIDs of tasks that it was started from, which it may read.
	Sources []string
}

// Caller is who makes a request for a namespace's repositories.
type Caller struct {
	// Name for the log.
	Name string
	// Namespace is that of the service account that calls; empty for people, of whom
	// only that is known what they read.
	Namespace string
	// Task is set if the caller is the pod of a task of that namespace. It may
	// push; anyone else only reads.
	Task *Task
}

// Authenticator finds out who holds a token and whether they may read the
// repositories of the namespace. Errors are of the kinds of package
// podidentity; other errors count as podidentity.ErrUnavailable.
type Authenticator interface {
	Authenticate(ctx context.Context, token, namespace string) (Caller, error)
	// AuthenticateServer accepts the token of Clew's server alone, which may
	// delete what a task has stored.
	AuthenticateServer(ctx context.Context, token string) (Caller, error)
}

// PodAuthenticator is the Authenticator for a cluster: task pods by their
// identity, others by their right to get checkpoints.
type PodAuthenticator struct {
	Verifier *podidentity.Verifier
	// Sources says which other tasks' checkpoints a task may read; none if nil.
	Sources Sources
	// Server is the ServiceAccount of Clew's server; the zero value is nobody.
	Server ServiceAccount
}

// ServiceAccount names one, of any namespace.
type ServiceAccount struct{ Namespace, Name string }

// ParseServiceAccount reads "<namespace>:<name>"; nothing is no account.
func ParseServiceAccount(text string) (ServiceAccount, error) {
	if text == "" {
		return ServiceAccount{}, nil
	}
	namespace, name, ok := strings.Cut(text, ":")
	if !ok || !namespaceName.MatchString(namespace) || !taskName.MatchString(name) {
		return ServiceAccount{}, fmt.Errorf("%q is no service account; write it as <namespace>:<name>", text)
	}
	return ServiceAccount{Namespace: namespace, Name: name}, nil
}

// AuthenticateServer implements Authenticator.
func (a PodAuthenticator) AuthenticateServer(ctx context.Context, token string) (Caller, error) {
	if a.Server == (ServiceAccount{}) {
		return Caller{}, fmt.Errorf("%w: no service account is named as the server's", podidentity.ErrForbidden)
	}
	err := a.Verifier.VerifyServiceAccount(ctx, token, a.Server.Namespace, a.Server.Name)
	return Caller{Name: a.Server.Namespace + ":" + a.Server.Name}, err
}

// Authenticate implements Authenticator.
func (a PodAuthenticator) Authenticate(ctx context.Context, token, namespace string) (Caller, error) {
	identity, err := a.Verifier.Verify(ctx, token)
	if errors.Is(err, podidentity.ErrNotTask) {
		reader, err := a.Verifier.VerifyReader(ctx, token, namespace)
		return Caller{Name: reader.Username, Namespace: reader.ServiceAccountNamespace()}, err
	}
	if err != nil {
		return Caller{}, err
	}
	if identity.Namespace != namespace {
		return Caller{}, podidentity.ErrForbidden
	}
	var sources []string
	if a.Sources != nil {
		if sources, err = a.Sources.Sources(ctx, namespace, identity.TaskName, identity.TaskUID); err != nil {
			return Caller{}, err
		}
	}
	return Caller{
		Name: identity.Namespace + "/" + identity.PodName,
		Task: &Task{Namespace: identity.Namespace, Name: identity.TaskName, UID: identity.TaskUID, Attempt: identity.Attempt, Sources: sources},
	}, nil
}

// tokenOf reads the token from the Authorization header: as bearer token, or
// as the password of Basic authentication, whose user does not matter.
func tokenOf(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// refuseServer is refuseAuthentication for what only the server may do.
func refuseServer(err error) *gitstoreapi.Refusal {
	switch {
	case errors.Is(err, podidentity.ErrUnauthenticated):
		return gitstoreapi.New(gitstoreapi.Unauthenticated, "%v", err)
	case errors.Is(err, podidentity.ErrForbidden):
		return gitstoreapi.New(gitstoreapi.Forbidden, "only Clew's server may delete what tasks have stored; its service account is named by --server-service-account")
	default:
		return gitstoreapi.New(gitstoreapi.Unavailable, "the token could not be checked at the moment; try again")
	}
}

// refuseAuthentication puts an Authenticator's error into a refusal.
func refuseAuthentication(err error, namespace string) *gitstoreapi.Refusal {
	switch {
	case errors.Is(err, podidentity.ErrPodGone):
		return gitstoreapi.New(gitstoreapi.PodGone, "%v", err)
	case errors.Is(err, podidentity.ErrUnauthenticated):
		return gitstoreapi.New(gitstoreapi.Unauthenticated, "%v", err)
	case errors.Is(err, podidentity.ErrForbidden):
		// The same words whether the repository exists or not.
		return gitstoreapi.New(gitstoreapi.Forbidden, "this token does not open the repositories of the namespace %s", namespace)
	default:
		return gitstoreapi.New(gitstoreapi.Unavailable, "the token could not be checked at the moment; try again")
	}
}
