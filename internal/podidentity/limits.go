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
	// How often it is asked again about tokens that were accepted, and about the
	// rights of their holders, for each namespace.
	knownPerSecond, knownBurst   = 25, 100
	rightsPerSecond, rightsBurst = 5, 50
	// lineTimeout is how long a token waits to be asked about.
	lineTimeout = 2 * time.Second
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
	clock              clock.PassiveClock
	accepted, refusals *cache.LRUExpireCache
}

func newAnswers(ttl time.Duration, size int, clock clock.PassiveClock) *answers {
	return &answers{
		ttl:      ttl,
		clock:    clock,
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
	// known holds the tokens that were accepted: they do not wait for others.
	known    *cache.LRUExpireCache
	unsigned *rate.Limiter
	// fresh, again and rights hold a limiter for each namespace: for its new
	// tokens, for those that are known, and for what their holders may do.
	fresh, again, rights *fairshare.Rates
}

func newLimits(clock clock.PassiveClock) *limits {
	return &limits{
		known:    cache.NewLRUExpireCacheWithClock(acceptedSize, clock),
		unsigned: rate.NewLimiter(unsignedPerSecond, unsignedBurst),
		fresh:    fairshare.NewRates(signedPerSecond, signedBurst),
		again:    fairshare.NewRates(knownPerSecond, knownBurst),
		rights:   fairshare.NewRates(rightsPerSecond, rightsBurst),
	}
}

// wait returns when the API server may be asked about a token.
func (l *limits) wait(ctx context.Context, token digest, said claims, signed bool) error {
	_, known := l.known.Get(token)
	limiter := l.unsigned
	switch {
	case known && !signed:
		return nil
	case known:
		limiter = l.again.Of(said.Kubernetes.Namespace)
	case signed:
		limiter = l.fresh.Of(said.Kubernetes.Namespace)
	}
	return inLine(ctx, limiter, "too many tokens of this namespace, or that were never seen before, are being checked at the moment; try again")
}

// waitForRights returns when the API server may be asked what a user may do.
func (l *limits) waitForRights(ctx context.Context, username string) error {
	whose := "user/" + username
	if namespace, ok := serviceAccountNamespace(username); ok {
		whose = "namespace/" + namespace
	}
	return inLine(ctx, l.rights.Of(whose), "too many questions about what the accounts of this namespace may read are being asked at the moment; try again")
}

// inLine waits for a limiter. A long line would keep a caller waiting behind
// strangers; a short one is refused at once, and another try is as good as the
// first.
func inLine(ctx context.Context, limiter *rate.Limiter, refusal string) error {
	ctx, cancel := context.WithTimeout(ctx, lineTimeout)
	defer cancel()
	if err := limiter.Wait(ctx); err != nil {
		return fail(ErrUnavailable, "%s", refusal)
	}
	return nil
}

func (l *limits) accept(token digest) { l.known.Add(token, struct{}{}, acceptedTTL) }
