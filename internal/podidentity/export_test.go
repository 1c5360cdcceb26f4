package podidentity

// CacheLen returns how many answers the verifier remembers.
func (v *Verifier) CacheLen() int { return len(v.answers.accepted.Keys()) }
