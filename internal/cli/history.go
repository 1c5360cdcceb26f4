package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

// pageSize is how many entries one request asks for.
const pageSize = 500

// historyGet reads one object from the history API, which the Kubernetes API server
// proxies to Clew's server. path is relative to the namespace.
func (s *session) historyGet(ctx context.Context, path []string, params url.Values, into any) error {
	return s.history(ctx, "GET", path, params, into)
}

// history sends a request without a body to the history API.
func (s *session) history(ctx context.Context, verb string, path []string, params url.Values, into any) error {
	request, err := s.historyRequest(verb, path, params)
	if err != nil {
		return err
	}
	defer s.progressIfSlow("waiting for the history")()
	return s.answer(request.Do(ctx), into)
}

// answer decodes a response of the history API.
func (s *session) answer(result rest.Result, into any) error {
	// Unlike Raw, Error reads the message in the response's body.
	if err := result.Error(); err != nil {
		return s.explainHistory(err)
	}
	body, err := result.Raw()
	if err != nil {
		return s.explainHistory(err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the history API's response is not JSON: %w", err)
	}
	return nil
}

// historyRequest prepares a request to the history API.
func (s *session) historyRequest(verb string, path []string, params url.Values) (*rest.Request, error) {
	config := rest.CopyConfig(s.config)
	config.APIPath = "/apis"
	config.GroupVersion = &schema.GroupVersion{Group: historyv1.Group, Version: historyv1.Version}
	config.NegotiatedSerializer = serializer.NewCodecFactory(newScheme()).WithoutConversion()
	c, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, explainConnection(err)
	}
	// Retry only once: after that, the user should see the error.
	request := c.Verb(verb).MaxRetries(1).AbsPath(append([]string{"/apis", historyv1.Group, historyv1.Version, "namespaces", s.namespace}, path...)...)
	for name, values := range params {
		for _, value := range values {
			request = request.Param(name, value)
		}
	}
	return request, nil
}

// explainHistory turns an error of the history API into a sentence.
func (s *session) explainHistory(err error) error {
	const check = "check `kubectl get apiservice v1alpha1.history.clew.dev`"
	var status apierrors.APIStatus
	switch {
	case apierrors.HasStatusCause(err, historyv1.CauseDeletionUnfinished):
		return errors.New(message(err))
	case apierrors.IsServiceUnavailable(err):
		return fmt.Errorf("the history API is unavailable: %s; %s and the pods of clew-server", message(err), check)
	case isMissingResource(err), apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details == nil:
		return fmt.Errorf("this cluster does not serve Clew's history API; %s", check)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("you are not allowed to do this: %s; ask an administrator of the namespace for the role view to read, search and export, or admin to import and delete histories", lowerFirst(message(err)))
	case apierrors.IsNotFound(err):
		return &notInHistory{message(err)}
	case apierrors.IsBadRequest(err), apierrors.IsResourceExpired(err),
		apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsInternalError(err):
		return errors.New(message(err))
	}
	return explainConnection(err)
}

// notInHistory is returned for what the history does not contain.
type notInHistory struct{ message string }

// Error implements error.
func (e *notInHistory) Error() string { return e.message }
