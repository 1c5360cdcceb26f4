package podidentity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

const (
	// keysPath is where the API server publishes the keys with which it signs service
	// account tokens.
	keysPath = "/openid/v1/jwks"
	// keysTTL is how long the keys are considered complete, and keysMinInterval the minimum
	// time between two reads, whatever strangers send.
	keysTTL         = 10 * time.Minute
	keysMinInterval = 10 * time.Second
	// keysTimeout bounds one read of the keys.
	keysTimeout = 5 * time.Second
	// clockLeeway is how far this clock and the API server's may differ.
	clockLeeway = time.Minute
)

// signatures returns the algorithms with which API servers sign.
func signatures() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}
}

// claims are the contents of a service account token.
type claims struct {
	jwt.Claims
	Kubernetes struct {
		Namespace string `json:"namespace"`
		// Pod is the pod that the token is bound to; empty if it is bound to none.
		Pod struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// errNoKeys is returned when the API server's keys are unknown, so that a token's
// signature cannot be checked.
var errNoKeys = errors.New("the keys of the API server are not known")

// inspector checks tokens locally: whether the API server signed them, for our audiences,
// and not too long ago. Whether the pod or account still exists only the API server knows;
// the local check keeps made-up tokens away from it.
type inspector struct {
	audiences []string
	keys      *keys
	clock     clock.PassiveClock
}

// expired is the refusal of a token that the API server has signed, but that has expired
// or is not valid yet.
type expired struct{ error }

// Unwrap returns the refusal.
func (e *expired) Unwrap() error { return e.error }

// inspect returns the claims of a token that the API server signed. For any other token
// the error wraps ErrUnauthenticated; it is expired if only the time is wrong, and
// errNoKeys if only the signature could not be checked.
func (i inspector) inspect(ctx context.Context, text string) (claims, error) {
	var claimed claims
	token, err := jwt.ParseSigned(text, signatures())
	if err != nil || len(token.Headers) != 1 {
		return claimed, fail(ErrUnauthenticated, "the token is not a service account token of Kubernetes; ask for one with kubectl create token --audience %s", i.audiences[0])
	}
	if err := token.UnsafeClaimsWithoutVerification(&claimed); err != nil {
		return claimed, fail(ErrUnauthenticated, "the token is not a service account token of Kubernetes; ask for one with kubectl create token --audience %s", i.audiences[0])
	}
	invalid := i.validate(claimed)
	var old *expired
	if invalid != nil && !errors.As(invalid, &old) {
		return claimed, invalid
	}
	key, err := i.keys.find(ctx, token.Headers[0].KeyID)
	switch {
	case err != nil && old != nil:
		return claimed, old.error // not expired: the signature is unchecked
	case err != nil:
		return claimed, err
	}
	if key == nil || token.Claims(key, &claimed) != nil {
		return claimed, fail(ErrUnauthenticated, "the token was not issued by this cluster; use a fresh one")
	}
	return claimed, invalid
}

// validate checks a token's audience, time and namespace.
func (i inspector) validate(claimed claims) error {
	err := claimed.ValidateWithLeeway(jwt.Expected{AnyAudience: i.audiences, Time: i.clock.Now()}, clockLeeway)
	switch {
	case errors.Is(err, jwt.ErrInvalidAudience):
		return fail(ErrUnauthenticated, "the token is not meant for the audience %q; ask for one that is, for example with kubectl create token --audience %s", i.audiences[0], i.audiences[0])
	case err != nil:
		return &expired{fail(ErrUnauthenticated, "the token has expired or is not valid yet; use a fresh one")}
	case claimed.Expiry == nil || claimed.Kubernetes.Namespace == "":
		return fail(ErrUnauthenticated, "the token is not one that the API server issues for a service account; use a fresh one")
	}
	return nil
}

// keys are the API server's signing keys, read when they are needed.
type keys struct {
	// client reads the keys; nil if there is no API server to read them from.
	client rest.Interface
	clock  clock.PassiveClock

	mu     sync.Mutex
	known  jose.JSONWebKeySet
	readAt time.Time
	err    error
}

// find returns the key with an id, nil if the API server has none with it. The error is
// errNoKeys if the key is unknown and the last read failed.
func (k *keys) find(ctx context.Context, id string) (*jose.JSONWebKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	found := k.known.Key(id)
	age := k.clock.Since(k.readAt)
	if age > keysTTL || len(found) == 0 && age > keysMinInterval {
		k.refresh(ctx)
		found = k.known.Key(id)
	}
	if len(found) > 0 {
		return &found[0], nil
	}
	if k.err != nil {
		return nil, fmt.Errorf("%w: %w", errNoKeys, k.err)
	}
	return nil, nil
}

// refresh reads the keys. If that fails, the keys known before are kept.
func (k *keys) refresh(ctx context.Context) {
	k.readAt = k.clock.Now()
	if k.client == nil {
		k.err = errors.New("there is no client to read them with")
		return
	}
	// Other callers wait for the keys as well, so this does not end with this caller's
	// context.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keysTimeout)
	defer cancel()
	var fresh jose.JSONWebKeySet
	body, err := k.client.Get().AbsPath(keysPath).Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(body, &fresh)
	}
	if k.err = err; err == nil {
		k.known = fresh
	}
}
