package gitstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/namespaceid"
	"github.com/clew-dev/clew/internal/podidentity"
)

// Task identifies the attempt of a task that makes a request.
type Task struct {
	Namespace string
	// NamespaceUID is the UID of the namespace that has the name now.
	NamespaceUID string
	Name         string
	UID          string
	// Attempt is the number of the task's pod, from 1; 0 if it only reads.
	Attempt int64
	// ReadOnly is set for a pod that publishes the task's work.
	ReadOnly bool
	// Sources are the UIDs of the tasks that it was started from, whose refs it may read.
	Sources []string
	// Continues is set if the sources are to be read only while the gitstore has no checkpoint of the
	// task's own; see Reach.
	Continues bool
}

// Caller identifies who makes a request for a namespace's repositories.
type Caller struct {
	// Name is what the log calls the caller.
	Name string
	// Namespace is the namespace of the calling service account; empty for people, who
	// belong to none.
	Namespace string
	// NamespaceUID is the UID of the namespace that is asked about.
	NamespaceUID string
	// CodeOnly is set for a reader who may not read conversations, and thus not what agents
	// remember of them, which the refs of their state contain.
	CodeOnly bool
	// Task is set if the caller is the pod of a task in that namespace. Such a caller may
	// push; all others may only read.
	Task *Task
}

// Authenticator resolves tokens to callers. Its errors wrap the kinds of package
// podidentity; any other error counts as podidentity.ErrUnavailable.
type Authenticator interface {
	// Authenticate returns the holder of a token who may read the repositories of the
	// namespace, or the pod of a task that works with this one. The error is
	// errOtherRepository for the pod of a task that works with another one, and errTaskGone for
	// that of a Task that was deleted.
	Authenticate(ctx context.Context, token, namespace, repository string) (Caller, error)
	// AuthenticateServer accepts only the token of Clew's server, which may delete what
	// a task has stored.
	AuthenticateServer(ctx context.Context, token string) (Caller, error)
	// AuthenticateManager accepts only the token of Clew's manager, which may make and remove
	// the branches of tasks. Both may give a task the checkpoints of a former one.
	AuthenticateManager(ctx context.Context, token string) (Caller, error)
}

// PodAuthenticator is the Authenticator of a cluster: it accepts task pods by their
// identity, and others by their permission to get checkpoints, and conversations for more than
// the code.
type PodAuthenticator struct {
	Verifier *podidentity.Verifier
	// Names tells which namespace has a name now.
	Names Namespaces
	// Tasks looks up what the pods of tasks may reach.
	Tasks Tasks
	// Server is the ServiceAccount of Clew's server; the zero value matches nobody.
	Server ServiceAccount
	// Manager is the ServiceAccount of Clew's manager; the zero value matches nobody.
	Manager ServiceAccount
}

// Namespaces tells which namespace has a name; see package namespaceid.
type Namespaces interface {
	Get(ctx context.Context, name string) (namespaceid.Namespace, error)
}

// ServiceAccount names a service account of any namespace.
type ServiceAccount struct{ Namespace, Name string }

// ParseServiceAccount parses "<namespace>:<name>". An empty text gives the zero value.
func ParseServiceAccount(text string) (ServiceAccount, error) {
	if text == "" {
		return ServiceAccount{}, nil
	}
	namespace, name, ok := strings.Cut(text, ":")
	if !ok || !namespaceName.MatchString(namespace) || !taskName.MatchString(name) {
		return ServiceAccount{}, fmt.Errorf("%q is not a service account; write it as <namespace>:<name>", text)
	}
	return ServiceAccount{Namespace: namespace, Name: name}, nil
}

// AuthenticateServer implements Authenticator.
func (a PodAuthenticator) AuthenticateServer(ctx context.Context, token string) (Caller, error) {
	return a.authenticateAs(ctx, token, a.Server, "server")
}

// AuthenticateManager implements Authenticator.
func (a PodAuthenticator) AuthenticateManager(ctx context.Context, token string) (Caller, error) {
	return a.authenticateAs(ctx, token, a.Manager, "manager")
}

// authenticateAs accepts only the token of one service account.
func (a PodAuthenticator) authenticateAs(ctx context.Context, token string, account ServiceAccount, program string) (Caller, error) {
	if account == (ServiceAccount{}) {
		return Caller{}, fmt.Errorf("%w: no service account is configured as the %s's", podidentity.ErrForbidden, program)
	}
	err := a.Verifier.VerifyServiceAccount(ctx, token, account.Namespace, account.Name)
	return Caller{Name: account.Namespace + ":" + account.Name}, err
}

// errOtherRepository is returned for the pod of a task that asks for a repository of its namespace
// which its task does not work with.
var errOtherRepository = errors.New("the pod of a task may use only the repository of its task's origin")

// errTaskGone is returned for the pod of a task whose Task was deleted.
var errTaskGone = errors.New("the pod's Task does not exist any more, and this pod should stop")

// Authenticate implements Authenticator.
func (a PodAuthenticator) Authenticate(ctx context.Context, token, namespace, repository string) (Caller, error) {
	identity, err := a.Verifier.Verify(ctx, token)
	if errors.Is(err, podidentity.ErrNotTask) {
		reader, err := a.Verifier.VerifyReader(ctx, token, namespace)
		if err != nil {
			return Caller{}, err
		}
		uid, err := a.namespaceUID(ctx, namespace)
		return Caller{Name: reader.Username, Namespace: reader.ServiceAccountNamespace(), NamespaceUID: uid, CodeOnly: !reader.Conversations}, err
	}
	if err != nil {
		return Caller{}, err
	}
	if identity.Namespace != namespace {
		return Caller{}, podidentity.ErrForbidden
	}
	uid, err := a.namespaceUID(ctx, namespace)
	if err != nil {
		return Caller{}, err
	}
	reach, err := a.Tasks.Reach(ctx, identity)
	if err != nil {
		return Caller{}, err
	}
	if reach.Repository != repository {
		return Caller{}, errOtherRepository
	}
	return Caller{
		Name: identity.Namespace + "/" + identity.PodName, NamespaceUID: uid,
		Task: &Task{Namespace: identity.Namespace, NamespaceUID: uid, Name: identity.TaskName, UID: identity.TaskUID, Attempt: identity.Attempt, ReadOnly: identity.Publishes, Sources: reach.Sources, Continues: reach.Continues},
	}, nil
}

// namespaceUID returns the UID of the namespace that has a name now. It is asked for only on behalf
// of callers who may use that namespace.
func (a PodAuthenticator) namespaceUID(ctx context.Context, name string) (string, error) {
	found, err := a.Names.Get(ctx, name)
	switch {
	case errors.Is(err, namespaceid.ErrNone):
		return "", podidentity.ErrForbidden
	case err != nil:
		return "", fmt.Errorf("%w: find out which namespace has the name %s: %w", podidentity.ErrUnavailable, name, err)
	}
	return found.UID, nil
}

// tokenOf returns the token in the Authorization header: the bearer token, or the
// password of Basic authentication, whose user name is ignored.
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

// refuseServer converts an error of AuthenticateServer or AuthenticateManager to a refusal.
func refuseServer(err error) *gitstoreapi.Refusal {
	switch {
	case errors.Is(err, podidentity.ErrUnauthenticated):
		return gitstoreapi.New(gitstoreapi.Unauthenticated, "%v", err)
	case errors.Is(err, podidentity.ErrForbidden):
		return gitstoreapi.New(gitstoreapi.Forbidden, "only Clew's server may delete or compare what tasks have stored, and only its manager make their branches; their service accounts are named by --server-service-account and --manager-service-account")
	default:
		return gitstoreapi.New(gitstoreapi.Unavailable, "the token cannot be checked at the moment; try again")
	}
}

// refuseAuthentication converts an error of Authenticate to a refusal.
func refuseAuthentication(err error, namespace string) *gitstoreapi.Refusal {
	switch {
	case errors.Is(err, podidentity.ErrPodGone), errors.Is(err, errTaskGone):
		return gitstoreapi.New(gitstoreapi.PodGone, "%v", err)
	case errors.Is(err, errOtherRepository):
		return gitstoreapi.New(gitstoreapi.Forbidden, "%v", err)
	case errors.Is(err, podidentity.ErrUnauthenticated):
		return gitstoreapi.New(gitstoreapi.Unauthenticated, "%v", err)
	case errors.Is(err, podidentity.ErrForbidden):
		// The message is the same whether or not the repository exists.
		return gitstoreapi.New(gitstoreapi.Forbidden, "this token does not give access to the repositories of the namespace %s", namespace)
	default:
		return gitstoreapi.New(gitstoreapi.Unavailable, "the token cannot be checked at the moment; try again")
	}
}
