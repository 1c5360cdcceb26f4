package cli

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
)

// explain turns an API server error about one object into a sentence that says
// what to do. It returns nil for nil.
func (s *session) explain(err error, kind, name string) error {
	var groups *discovery.ErrGroupDiscoveryFailed
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err) && !isMissingResource(err):
		return fmt.Errorf("there is no %s %q in namespace %s; list the existing ones with `kubectl get %ss.clew.dev -n %s`", kind, name, s.namespace, kind, s.namespace)
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("a %s %q already exists in namespace %s; choose another name", kind, name, s.namespace)
	case apierrors.IsInvalid(err):
		return errors.New(causes(err))
	case meta.IsNoMatchError(err) || isMissingResource(err) || errors.As(err, &groups):
		return errNotInstalled
	}
	return explainConnection(err)
}

// errNotInstalled is returned for a cluster without Clew's CRDs.
var errNotInstalled = errors.New("this cluster does not have Clew's resources; install Clew there, or choose another cluster with --context")

// explainConnection turns an error that is not about one object into a sentence
// that says what to do. It returns nil for nil.
func explainConnection(err error) error {
	var netErr net.Error
	var urlErr *url.Error
	switch {
	case err == nil:
		return nil
	case apierrors.IsUnauthorized(err):
		return errors.New("the cluster rejected your credentials; log in again, or choose another context with --context")
	case apierrors.IsForbidden(err):
		return fmt.Errorf("you are not allowed to do this: %s; ask an administrator of the namespace for the role edit, or view for read access", lowerFirst(message(err)))
	case meta.IsNoMatchError(err):
		return errNotInstalled
	case errors.As(err, &urlErr) || errors.As(err, &netErr):
		return fmt.Errorf("the cluster cannot be reached: %w; check the context with `kubectl config current-context`", err)
	}
	return err
}

// isMissingResource distinguishes the 404 of a missing kind from that of a missing object.
func isMissingResource(err error) bool {
	return apierrors.IsNotFound(err) && strings.Contains(err.Error(), "the server could not find the requested resource")
}

// causes joins the sentences of a validation error, each with its field.
func causes(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return message(err)
	}
	var sentences []string
	for _, cause := range status.Status().Details.Causes {
		text := cause.Message
		if strings.Contains(text, "some validation rules were not checked") {
			continue // which says nothing about what the user gave
		}
		// In "Invalid value: {…}: sentence", the value is not what the user typed.
		if _, sentence, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(text, "Invalid value") {
			text = sentence
			if i := strings.LastIndex(text, "\": "); i >= 0 {
				text = text[i+3:]
			}
		}
		text = strings.TrimPrefix(text, "Forbidden: ")
		if cause.Field != "" && cause.Type != metav1.CauseTypeForbidden {
			text = cause.Field + ": " + text
		}
		sentences = append(sentences, text)
	}
	if len(sentences) == 0 {
		return message(err)
	}
	return strings.Join(sentences, "; ")
}

// message returns the API server's message without the prefix that client-go adds.
func message(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Message != "" {
		return status.Status().Message
	}
	return err.Error()
}

// lowerFirst lowers the first letter of a sentence, unless its first word is an
// acronym or is lower case already.
func lowerFirst(s string) string {
	if s == "" || strings.ToUpper(s[:1]) != s[:1] || (len(s) > 1 && strings.ToUpper(s[1:2]) == s[1:2]) {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
