package podidentity

import (
	"context"
	"crypto/sha256"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
)

const (
	// maxCacheTTL bounds how long a deleted pod's token or a withdrawn right is
	// still honoured, and refusalTTL how long a refusal stands.
	maxCacheTTL      = 30 * time.Second
	refusalTTL       = 10 * time.Second
	defaultCacheSize = 4096
	// acceptedTTL is how long a token counts as known that was accepted.
	acceptedTTL  = 2 * time.Hour
	acceptedSize = 16384

	// How often the API server is asked about tokens that were not accepted
	// before: about those that it signed, for each namespace; and about those
	// whose signature cannot be checked here, for all of them together.
	signedPerSecond, signedBurst     = 10, 100
	unsignedPerSecond, unsignedBurst = 10, 50
	// lineTimeout is how long a token waits to be asked about.
	lineTimeout = 2 * time.Second
	// namespacesKept is for how many namespaces that is remembered.
	namespacesKept = 4096
)

// digest stands for a token, or for a question about it, without keeping it.
type digest [sha256.Size]byte

// digestOf names what was asked about a token.
func digestOf(token, question string) digest {
	sum := sha256.Sum256([]byte(token))
	return sha256.Sum256(append(sum[:], question...))
}

// answers remembers a bounded number of answers for a short time. Refusals are
// kept apart, so that no number of strangers makes the server forget whom it
// knows.
type answers struct {
	ttl                time.Duration
	accepted, refusals *cache.LRUExpireCache
}

func newAnswers(ttl time.Duration, size int, clock clock.PassiveClock) *answers {
	return &answers{
		ttl:      ttl,
		accepted: cache.NewLRUExpireCacheWithClock(size, clock),
		refusals: cache.NewLRUExpireCacheWithClock(size, clock),
	}
}

// get returns an answer that is remembered.
func (a *answers) get(key digest) (value any, ok bool, err error) {
	if value, ok := a.accepted.Get(key); ok {
		return value, true, nil
	}
	if refusal, ok := a.refusals.Get(key); ok {
		return nil, true, refusal.(error)
	}
	return nil, false, nil
}

// limits keep strangers from taking the API server's time from callers that
// were accepted before, and one namespace from taking it from another.
type limits struct {
	// known holds the tokens that were accepted: they wait for nobody.
	known      *cache.LRUExpireCache
	unsigned   *rate.Limiter
	namespaces *cache.LRUExpireCache
}

func newLimits(clock clock.PassiveClock) *limits {
	return &limits{
		known:      cache.NewLRUExpireCacheWithClock(acceptedSize, clock),
		unsigned:   rate.NewLimiter(unsignedPerSecond, unsignedBurst),
		namespaces: cache.NewLRUExpireCacheWithClock(namespacesKept, clock),
	}
}

// wait returns when the API server may be asked about a token.
func (l *limits) wait(ctx context.Context, token digest, said claims, signed bool) error {
	if _, known := l.known.Get(token); known {
		return nil
	}
	limiter := l.unsigned
	if signed {
		limiter = l.ofNamespace(said.Kubernetes.Namespace)
	}
	// A long line would keep a caller waiting behind strangers; a short one is
	// refused at once, and another try is as good as the first.
	ctx, cancel := context.WithTimeout(ctx, lineTimeout)
	defer cancel()
	if err := limiter.Wait(ctx); err != nil {
		return fail(ErrUnavailable, "too many tokens that were never seen before are being checked at the moment; try again")
	}
	return nil
}

func (l *limits) ofNamespace(namespace string) *rate.Limiter {
	if known, ok := l.namespaces.Get(namespace); ok {
		return known.(*rate.Limiter)
	}
	limiter := rate.NewLimiter(signedPerSecond, signedBurst)
	l.namespaces.Add(namespace, limiter, time.Hour)
	return limiter
}

func (l *limits) accept(token digest) { l.known.Add(token, struct{}{}, acceptedTTL) }
