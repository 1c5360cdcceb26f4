// Package pace bounds how many checkpoints a task's daemon takes, and how much of the
// node's processor time they use: an agent causes them, and the node's other pods must
// not pay for that.
//
// It promises:
//
//   - A burst of checkpoints is taken at once; beyond that, one each interval.
//   - Checkpoints use an eighth of one processor, half of that while the node's are
//     short. Whoever waits for one waits for that no longer than a minute, and an
//     agent that is stopped for one no longer than 20 seconds.
//   - When the pod is about to end, nothing waits for processor time.
package pace

import (
	"time"

	"golang.org/x/time/rate"
)

const (
	// Burst is how many automatic checkpoints are taken at any pace.
	Burst = 20
	// defaultLeastInterval is how soon after another one is taken beyond that.
	defaultLeastInterval = 10 * time.Second
	// LookPause is how soon it is looked again whether something has changed, if
	// nothing had.
	LookPause = time.Second
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
	// which an agent is ever stopped, see package shim. See longestStoppedStretch, too.
	longestHold = 20 * time.Second
)

// Agent is what is known of the task's agent.
type Agent interface {
	// Stopped reports whether the agent is stopped for calls that wait for a checkpoint.
	Stopped() bool
	// Ending reports whether the pod is about to end.
	Ending() bool
}

// Config says what is paced.
type Config struct {
	// LeastIntervalSeconds is how soon an automatic checkpoint follows another one
	// once the burst is used up; 0 for 10 s.
	LeastIntervalSeconds int32
	// ProcessorTime is how long processors have worked for the daemon so far.
	ProcessorTime func() time.Duration
	// ProcessorsShort reports whether the node's processors are.
	ProcessorsShort func() bool
	Agent           Agent
}

// Pace bounds the checkpoints that an agent can cause: each becomes an object
// of the Kubernetes API, refs in the gitstore and a row in the history, and each
// takes processor time that the node's other pods could use. It leaves honest
// bursts alone. It is for one goroutine, that takes the checkpoints.
type Pace struct {
	cfg      Config
	limiter  *rate.Limiter
	interval time.Duration
	looked   time.Time // when it was last found that nothing had changed
	// free is how much processor time was free to take at the time counted; less
	// than none is owed.
	free    time.Duration
	counted time.Time
	taken   time.Time // when a checkpoint was last taken
}

// New begins with a whole burst, and with processor time that is free to use.
func New(cfg Config) *Pace {
	interval := time.Duration(cfg.LeastIntervalSeconds) * time.Second
	if interval <= 0 {
		interval = defaultLeastInterval
	}
	return &Pace{cfg: cfg, interval: interval, limiter: rate.NewLimiter(rate.Every(interval), Burst), free: freeProcessorTime}
}

// UntilTurn is how long it is until an automatic checkpoint may be taken, by their
// number; 0 for none.
func (p *Pace) UntilTurn() time.Duration {
	missing := 1 - p.limiter.Tokens()
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing*float64(p.interval)) + time.Millisecond
}

// Spend counts an automatic checkpoint.
func (p *Pace) Spend() { p.limiter.Allow() }

// Unchanged notes that there was nothing to take a checkpoint of.
func (p *Pace) Unchanged() { p.looked = time.Now() }

// Taken notes that a checkpoint was taken, of whatever cause, or that it failed.
func (p *Pace) Taken() { p.taken = time.Now() }

// CountWork counts the processor time from now until done is called.
func (p *Pace) CountWork() (done func()) {
	before := p.cfg.ProcessorTime()
	return func() { p.worked(p.cfg.ProcessorTime()-before, time.Now()) }
}

// UntilRisky is how long calls are held back before a checkpoint is taken for them.
func (p *Pace) UntilRisky() time.Duration { return max(p.UntilTurn(), p.RiskyRest()) }

// RiskyRest is the part of that for processor time that others have taken.
func (p *Pace) RiskyRest() time.Duration {
	if p.cfg.Agent.Ending() {
		return 0 // what is left of the pod's time is for the agent's own end
	}
	return p.holdRest(time.Now())
}

// AskedRest is how long whoever asks for a checkpoint waits for processor time.
// Nothing stands still meanwhile.
func (p *Pace) AskedRest() time.Duration {
	if p.cfg.Agent.Ending() {
		return 0
	}
	return p.restSinceTaken(time.Now(), longestRest)
}

// UntilLook is how long it is until it is worth looking for changes.
func (p *Pace) UntilLook() time.Duration {
	return max(p.UntilTurn(), time.Until(p.looked.Add(LookPause)), p.rest(time.Now()))
}

// parts is of how much of a processor's time checkpoints may use one.
func (p *Pace) parts() int64 {
	if p.cfg.ProcessorsShort() {
		return shortProcessorParts
	}
	return processorParts
}

// worked counts the processor time of a checkpoint, or of a look for changes.
func (p *Pace) worked(used time.Duration, now time.Time) {
	p.free, p.counted = max(p.freeAt(now)-max(used, 0), -longestRest/time.Duration(p.parts())), now
}

func (p *Pace) freeAt(now time.Time) time.Duration {
	if p.counted.IsZero() {
		return p.free
	}
	parts := time.Duration(p.parts())
	return min(max(p.free, -longestRest/parts)+now.Sub(p.counted)/parts, freeProcessorTime)
}

// rest is how long no checkpoint is taken because it is due.
func (p *Pace) rest(now time.Time) time.Duration {
	return max(-p.freeAt(now)*time.Duration(p.parts()), 0)
}

// holdRest is the part of the rest in which none is taken for a call that is held back.
func (p *Pace) holdRest(now time.Time) time.Duration { return p.restSinceTaken(now, longestHold) }

// restSinceTaken is over when so much time has passed since one was taken, whatever has
// been worked since.
func (p *Pace) restSinceTaken(now time.Time, most time.Duration) time.Duration {
	return max(min(p.rest(now), p.taken.Add(most).Sub(now)), 0)
}
