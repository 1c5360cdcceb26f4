package podidentity

// CacheLen returns how many successful answers the verifier has cached.
func (v *Verifier) CacheLen() int { return len(v.answers.accepted.Keys()) }
