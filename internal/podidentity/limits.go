package podidentity

import (
	"context"
	"crypto/sha256"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"

	"github.com/clew-dev/clew/internal/fairshare"
)

const (
	// maxCacheTTL bounds how long a deleted pod's token or a withdrawn permission is
	// still honoured, and refusalTTL how long a refusal is cached.
	maxCacheTTL      = 30 * time.Second
	refusalTTL       = 10 * time.Second
	defaultCacheSize = 4096
	// acceptedTTL is how long an accepted token counts as known.
	acceptedTTL  = 2 * time.Hour
	acceptedSize = 16384

	// Limits of TokenReviews for tokens that were not accepted before: per namespace for
	// those that the API server signed, and in total for those whose signature cannot be
	// checked here.
	signedPerSecond, signedBurst     = 10, 100
	unsignedPerSecond, unsignedBurst = 10, 50
	// Limits, per namespace, of TokenReviews for tokens that were accepted before, and of
	// access reviews for the holders of tokens.
	knownPerSecond, knownBurst   = 25, 100
	rightsPerSecond, rightsBurst = 5, 50
	// limiterTimeout is how long a request waits for one of these limits.
	limiterTimeout = 2 * time.Second
)

// digest identifies a token, or a question about one, without storing the token.
type digest [sha256.Size]byte

// digestOf returns the digest of a question about a token.
func digestOf(token, question string) digest {
	sum := sha256.Sum256([]byte(token))
	return sha256.Sum256(append(sum[:], question...))
}

// answers caches a bounded number of answers for a short time. Refusals have a cache of
// their own, so that no number of strangers evicts the answers about known callers.
type answers struct {
	ttl                time.Duration
	clock              clock.PassiveClock
	accepted, refusals *cache.LRUExpireCache
}

// newAnswers returns caches for size answers and size refusals.
func newAnswers(ttl time.Duration, size int, clock clock.PassiveClock) *answers {
	return &answers{
		ttl:      ttl,
		clock:    clock,
		accepted: cache.NewLRUExpireCacheWithClock(size, clock),
		refusals: cache.NewLRUExpireCacheWithClock(size, clock),
	}
}

// limits keep strangers from using up the API server's capacity for callers that were
// accepted before, and one namespace from using up that for another.
type limits struct {
	// known holds the tokens that were accepted: they do not wait behind others.
	known    *cache.LRUExpireCache
	unsigned *rate.Limiter
	// newTokens, knownTokens and accessReviews contain a limiter per namespace: for its new
	// tokens, for its known tokens, and for the access reviews of their holders.
	newTokens, knownTokens, accessReviews *fairshare.Rates
}

// newLimits returns the limits with the constants above.
func newLimits(clock clock.PassiveClock) *limits {
	return &limits{
		known:         cache.NewLRUExpireCacheWithClock(acceptedSize, clock),
		unsigned:      rate.NewLimiter(unsignedPerSecond, unsignedBurst),
		newTokens:     fairshare.NewRates(signedPerSecond, signedBurst),
		knownTokens:   fairshare.NewRates(knownPerSecond, knownBurst),
		accessReviews: fairshare.NewRates(rightsPerSecond, rightsBurst),
	}
}

// wait waits until the API server may be asked about a token. signed says whether the
// token's signature was checked.
func (l *limits) wait(ctx context.Context, token digest, claimed claims, signed bool) error {
	_, known := l.known.Get(token)
	limiter := l.unsigned
	switch {
	case known && !signed:
		return nil
	case known:
		limiter = l.knownTokens.Of(claimed.Kubernetes.Namespace)
	case signed:
		limiter = l.newTokens.Of(claimed.Kubernetes.Namespace)
	}
	return waitFor(ctx, limiter, "too many tokens of this namespace, or tokens never seen before, are being checked; try again")
}

// waitForRights waits until the API server may be asked what a user may do.
func (l *limits) waitForRights(ctx context.Context, username string) error {
	key := "user/" + username
	if namespace, ok := serviceAccountNamespace(username); ok {
		key = "namespace/" + namespace
	}
	return waitFor(ctx, l.accessReviews.Of(key), "the permissions of too many accounts of this namespace are being checked; try again")
}

// waitFor waits for a limiter, for limiterTimeout at most. A longer queue would make known
// callers wait behind unknown ones. A caller that would have to wait longer is refused at once, and
// a retry has the same chance as the first try.
func waitFor(ctx context.Context, limiter *rate.Limiter, refusal string) error {
	ctx, cancel := context.WithTimeout(ctx, limiterTimeout)
	defer cancel()
	if err := limiter.Wait(ctx); err != nil {
		return fail(ErrUnavailable, "%s", refusal)
	}
	return nil
}

// accept records that a token was accepted.
func (l *limits) accept(token digest) { l.known.Add(token, struct{}{}, acceptedTTL) }
