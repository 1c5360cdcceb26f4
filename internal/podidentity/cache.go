package podidentity

import (
	"crypto/sha256"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// maxCacheTTL bounds how long a deleted pod's token or a withdrawn right is
	// still honoured.
	maxCacheTTL      = 30 * time.Second
	defaultCacheSize = 4096
)

// cacheKey names what was asked about a token, without keeping the token.
func cacheKey(token, question string) [sha256.Size]byte {
	hash := sha256.New()
	sum := sha256.Sum256([]byte(token))
	hash.Write(sum[:])
	hash.Write([]byte(question))
	return [sha256.Size]byte(hash.Sum(nil))
}

type cacheEntry struct {
	value   any
	expires time.Time
}

// cache remembers a bounded number of successes for a short time.
type cache struct {
	ttl   time.Duration
	size  int
	clock clock.PassiveClock

	mu      sync.Mutex
	entries map[[sha256.Size]byte]cacheEntry
}

func newCache(ttl time.Duration, size int, clock clock.PassiveClock) *cache {
	return &cache{ttl: ttl, size: size, clock: clock, entries: map[[sha256.Size]byte]cacheEntry{}}
}

func (c *cache) get(key [sha256.Size]byte) (any, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, ok := c.entries[key]
	if !ok || !c.clock.Now().Before(entry.expires) {
		return nil, false
	}
	return entry.value, true
}

func (c *cache) put(key [sha256.Size]byte, value any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	if len(c.entries) >= c.size {
		c.makeRoom(now)
	}
	c.entries[key] = cacheEntry{value: value, expires: now.Add(c.ttl)}
}

// makeRoom drops what has expired, and if that was nothing, any one entry:
// losing one costs two API calls.
func (c *cache) makeRoom(now time.Time) {
	for key, entry := range c.entries {
		if !now.Before(entry.expires) {
			delete(c.entries, key)
		}
	}
	for key := range c.entries {
		if len(c.entries) < c.size {
			return
		}
		delete(c.entries, key)
	}
}
