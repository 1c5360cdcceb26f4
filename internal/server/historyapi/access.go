package historyapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/namespaceid"
)

// How long, and how many, decisions are cached.
const (
	allowedTTL = 10 * time.Second
	deniedTTL  = 5 * time.Second
	decisions  = 4096
)

// Namespaces tells which namespace has a name; see package namespaceid.
type Namespaces interface {
	Get(ctx context.Context, name string) (namespaceid.Namespace, error)
}

// SubjectAccess is an Authorizer that asks the API server. A decision that it keeps holds for the
// namespace that it was about, and not for one that is made anew under the same name.
type SubjectAccess struct {
	client authorizationclient.SubjectAccessReviewInterface
	names  Namespaces
	known  *cache.LRUExpireCache
}

// NewSubjectAccess returns a SubjectAccess. The client's account must be
// allowed to create subjectaccessreviews.
func NewSubjectAccess(client authorizationclient.SubjectAccessReviewInterface, names Namespaces) *SubjectAccess {
	return &SubjectAccess{client: client, names: names, known: cache.NewLRUExpireCache(decisions)}
}

type decision struct {
	allowed bool
	reason  string
}

// Authorize implements Authorizer.
func (s *SubjectAccess) Authorize(ctx context.Context, who user.Info, access Access) (allowed bool, reason string, err error) {
	// Before the review, which is then about this namespace or a later one.
	namespace, err := s.names.Get(ctx, access.Namespace)
	exists := !errors.Is(err, namespaceid.ErrNone)
	if err != nil && exists {
		return false, "", fmt.Errorf("find out which namespace has the name %s: %w", access.Namespace, err)
	}
	spec := specOf(who, access)
	key, err := keyOf(spec, namespace.UID)
	if err != nil {
		return false, "", err
	}
	if known, ok := s.known.Get(key); ok {
		d := known.(decision)
		return d.allowed, d.reason, nil
	}
	review, err := s.client.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, "", fmt.Errorf("create a SubjectAccessReview: %w", err)
	}
	d := decision{allowed: review.Status.Allowed && !review.Status.Denied, reason: review.Status.Reason}
	ttl := deniedTTL
	if d.allowed {
		ttl = allowedTTL
	}
	if exists {
		s.known.Add(key, d, ttl)
	}
	return d.allowed, d.reason, nil
}

func specOf(who user.Info, access Access) authorizationv1.SubjectAccessReviewSpec {
	extra := make(map[string]authorizationv1.ExtraValue, len(who.GetExtra()))
	for key, values := range who.GetExtra() {
		extra[key] = values
	}
	return authorizationv1.SubjectAccessReviewSpec{
		User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: historyv1alpha1.Group, Version: historyv1alpha1.Version,
			Verb: access.Verb, Resource: access.Resource, Subresource: access.Subresource,
			Namespace: access.Namespace, Name: access.Name,
		},
	}
}

// keyOf returns the cache key of a request about a namespace; JSON sorts the keys of maps.
func keyOf(spec authorizationv1.SubjectAccessReviewSpec, namespaceUID string) ([sha256.Size]byte, error) {
	b, err := json.Marshal(spec)
	return sha256.Sum256(append(b, namespaceUID...)), err
}
