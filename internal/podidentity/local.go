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
	// keysPath is where the API server publishes the keys that it signs service
	// account tokens with.
	keysPath = "/openid/v1/jwks"
	// keysKept is how long the keys are believed to be all there are, and
	// keysAgain the least time between two looks, whatever strangers send.
	keysKept  = 10 * time.Minute
	keysAgain = 10 * time.Second
	// keysTimeout bounds one look.
	keysTimeout = 5 * time.Second
	// clockLeeway is how far this clock and the API server's may differ.
	clockLeeway = time.Minute
)

// signatures are the algorithms that API servers sign with.
func signatures() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}
}

// claims are what a service account token says.
type claims struct {
	jwt.Claims
	Kubernetes struct {
		Namespace string `json:"namespace"`
		// Pod is what the token is bound to; empty if that is none.
		Pod struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// errNoKeys: the API server's keys are not known, so nobody can tell here
// whether it signed a token.
var errNoKeys = errors.New("the keys of the API server are not known")

// inspector looks at tokens without asking anybody: whether the API server
// signed them, for us, and not too long ago. That says nothing about whether
// the pod or account still exists, which the API server alone knows; it keeps
// from it what anybody can make up.
type inspector struct {
	audiences []string
	keys      *keys
	clock     clock.PassiveClock
}

// expired is the refusal of a token that the API server has signed, and that is
// too old or too new.
type expired struct{ error }

func (e *expired) Unwrap() error { return e.error }

// inspect returns what a token says that the API server signed. Otherwise the
// error wraps ErrUnauthenticated, and is expired if nothing else is wrong, or
// errNoKeys if only the signature could not be checked.
func (i inspector) inspect(ctx context.Context, text string) (claims, error) {
	var said claims
	token, err := jwt.ParseSigned(text, signatures())
	if err != nil || len(token.Headers) != 1 {
		return said, fail(ErrUnauthenticated, "the token is not a service account token of Kubernetes; ask for one with kubectl create token --audience %s", i.audiences[0])
	}
	if err := token.UnsafeClaimsWithoutVerification(&said); err != nil {
		return said, fail(ErrUnauthenticated, "the token is not a service account token of Kubernetes; ask for one with kubectl create token --audience %s", i.audiences[0])
	}
	invalid := i.validate(said)
	var old *expired
	if invalid != nil && !errors.As(invalid, &old) {
		return said, invalid
	}
	key, err := i.keys.find(ctx, token.Headers[0].KeyID)
	switch {
	case err != nil && old != nil:
		return said, old.error // nobody knows who says so
	case err != nil:
		return said, err
	}
	if key == nil || token.Claims(key, &said) != nil {
		return said, fail(ErrUnauthenticated, "the token was not issued by this cluster; use a fresh one")
	}
	return said, invalid
}

func (i inspector) validate(said claims) error {
	err := said.ValidateWithLeeway(jwt.Expected{AnyAudience: i.audiences, Time: i.clock.Now()}, clockLeeway)
	switch {
	case errors.Is(err, jwt.ErrInvalidAudience):
		return fail(ErrUnauthenticated, "the token is not meant for the audience %q; ask for one that is, for example with kubectl create token --audience %s", i.audiences[0], i.audiences[0])
	case err != nil:
		return &expired{fail(ErrUnauthenticated, "the token has expired or is not valid yet; use a fresh one")}
	case said.Expiry == nil || said.Kubernetes.Namespace == "":
		return fail(ErrUnauthenticated, "the token is not one that the API server issues for a service account; use a fresh one")
	}
	return nil
}

// keys are those of the API server, read when they are needed.
type keys struct {
	// client reads them; nil where there is nowhere to read them from.
	client rest.Interface
	clock  clock.PassiveClock

	mu     sync.Mutex
	known  jose.JSONWebKeySet
	looked time.Time
	err    error
}

// find returns the key of an id, nil if the API server has none of it. The
// error is errNoKeys if its keys could never be read.
func (k *keys) find(ctx context.Context, id string) (*jose.JSONWebKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	found := k.known.Key(id)
	age := k.clock.Since(k.looked)
	if age > keysKept || len(found) == 0 && age > keysAgain {
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

// refresh reads the keys; those known before are kept if it fails.
func (k *keys) refresh(ctx context.Context) {
	k.looked = k.clock.Now()
	if k.client == nil {
		k.err = errors.New("there is no client to read them with")
		return
	}
	// Others wait for the keys as well, so this does not end with its caller.
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
