package podidentity

// CacheLen returns how many answers the verifier remembers.
func (v *Verifier) CacheLen() int {
	v.cache.mu.Lock()
	defer v.cache.mu.Unlock()
	return len(v.cache.entries)
}
