package sidecar

import (
	"time"

	"golang.org/x/time/rate"
)

const (
	// checkpointBurst is how many automatic checkpoints are taken at any pace.
	checkpointBurst = 20
	// defaultLeastInterval is how soon after another one is taken beyond that.
	defaultLeastInterval = 10 * time.Second
	// lookPause is how soon it is looked again whether something has changed, if
	// nothing had.
	lookPause = time.Second
	// Checkpoints that come one after the other may use an eighth of one processor, and
	// half of that while the node's are short, with looking for changes and packing the
	// repository: so many times what they use is waited before the next one. Dear ones
	// may use more than that, since nothing waits longer than longestRest or longestHold.
	// freeProcessorTime is what they may use before anything waits. What else the daemon
	// does, pushes above all, counts only as far as it happens meanwhile: the system
	// counts for a process as a whole.
	processorParts      = 8
	shortProcessorParts = 16
	freeProcessorTime   = 3 * time.Second
	// longestRest bounds how long a checkpoint waits for processor time that earlier
	// ones have taken.
	longestRest = time.Minute
	// longestHold is how long that holds back at most a call: a third of the time for
	// which an agent is ever stopped, see package shim. See longestHaltedStretch, too.
	longestHold = 20 * time.Second
	// longestHaste is how long nothing waits for processor time after the pod was told to
	// end: as long as most have for that. An agent can tell its own pod so, and go on.
	longestHaste = 2 * time.Minute
)

// pace bounds the checkpoints that an agent can cause: each becomes an object
// of the Kubernetes API, refs in the gitstore and a row in the history, and each
// takes processor time that the node's other pods could use. It leaves honest
// bursts alone.
type pace struct {
	limiter  *rate.Limiter
	interval time.Duration
	looked   time.Time // when it was last found that nothing had changed
	// free is how much processor time was free to take at the time counted; less
	// than none is owed.
	free    time.Duration
	counted time.Time
	took    time.Time // when a checkpoint was last taken
	// short reports whether the node's processors are.
	short func() bool
}

func newPace(leastIntervalSeconds int32, short func() bool) *pace {
	interval := time.Duration(leastIntervalSeconds) * time.Second
	if interval <= 0 {
		interval = defaultLeastInterval
	}
	return &pace{interval: interval, limiter: rate.NewLimiter(rate.Every(interval), checkpointBurst), free: freeProcessorTime, short: short}
}

// wait is how long it is until an automatic checkpoint may be taken, by their number;
// 0 for none.
func (p *pace) wait() time.Duration {
	missing := 1 - p.limiter.Tokens()
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing*float64(p.interval)) + time.Millisecond
}

// spend counts an automatic checkpoint.
func (p *pace) spend() { p.limiter.Allow() }

// unchanged notes that there was nothing to take a checkpoint of.
func (p *pace) unchanged() { p.looked = time.Now() }

// parts is of how much of a processor's time checkpoints may use one.
func (p *pace) parts() int64 {
	if p.short() {
		return shortProcessorParts
	}
	return processorParts
}

// worked counts the processor time of a checkpoint, or of a look for changes.
func (p *pace) worked(used time.Duration, now time.Time) {
	p.free, p.counted = max(p.freeAt(now)-max(used, 0), -longestRest/time.Duration(p.parts())), now
}

func (p *pace) freeAt(now time.Time) time.Duration {
	if p.counted.IsZero() {
		return p.free
	}
	parts := time.Duration(p.parts())
	return min(max(p.free, -longestRest/parts)+now.Sub(p.counted)/parts, freeProcessorTime)
}

// rest is how long no checkpoint is taken because it is due.
func (p *pace) rest(now time.Time) time.Duration {
	return max(-p.freeAt(now)*time.Duration(p.parts()), 0)
}

// holdRest is the part of the rest in which none is taken for a call that is held back.
func (p *pace) holdRest(now time.Time) time.Duration { return p.restSinceTaken(now, longestHold) }

// askedRest is the part of the rest in which none is taken for whoever asks for one.
func (p *pace) askedRest(now time.Time) time.Duration { return p.restSinceTaken(now, longestRest) }

// restSinceTaken is over when so much time has passed since one was taken, whatever has
// been worked since.
func (p *pace) restSinceTaken(now time.Time, most time.Duration) time.Duration {
	return max(min(p.rest(now), p.took.Add(most).Sub(now)), 0)
}

// untilLook is how long it is until it is worth looking for changes.
func (p *pace) untilLook() time.Duration {
	return max(p.wait(), time.Until(p.looked.Add(lookPause)), p.rest(time.Now()))
}
