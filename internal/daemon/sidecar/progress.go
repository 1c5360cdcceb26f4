package sidecar

// progress is what was done since the last checkpoint: calls answered, records made.
func (r *recorder) progress() (answers, records int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answers, r.records
}

// looked begins counting calls anew: there was nothing to take a checkpoint of.
func (r *recorder) looked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = 0
}

// checkpointed begins counting anew.
func (r *recorder) checkpointed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers, r.records = 0, 0
}

// answered is the call whose result was recorded last, and how many calls of
// this process and the spool it began with were answered.
func (r *recorder) answered() (call string, results int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.results
}
