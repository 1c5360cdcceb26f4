// Package pace bounds how many checkpoints a task's daemon takes, and how much of the
// node's processor time they use: the agent causes them, and the node's other pods must
// not suffer for it.
//
// It promises:
//
//   - A burst of checkpoints is taken without delay; beyond that, one per interval.
//   - Checkpoints use an eighth of one processor, and half of that while the node is short
//     of processor time. A requested checkpoint is delayed for that by at most a minute,
//     and one that a stopped agent waits for by at most 20 seconds.
//   - An automatic one that has waited for that for a minute is checked for, whatever is owed.
//   - When the pod is about to end, nothing waits for processor time.
//
// What the agent has Clew compare has a share of its own, of the same size.
package pace

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// Burst is how many automatic checkpoints are taken without delay.
	Burst = 20
	// defaultLeastInterval is the interval between automatic checkpoints beyond the burst.
	defaultLeastInterval = 10 * time.Second
	// CheckPause is the time between a check that has found no changes and the next one.
	CheckPause = time.Second
	// processorParts and shortProcessorParts are the inverse of the share of one processor
	// that checkpoints may use, with checks for changes and packing the repository: an
	// eighth, and a sixteenth while the node is short of processor time. After a
	// checkpoint, that many times the processor time it used has to pass before the next.
	// Expensive checkpoints may use a larger share, since nothing waits longer than
	// longestRest or longestHold. Other work of the daemon, mainly pushes, counts only if
	// it runs at the same time, since the system counts per process.
	processorParts      = 8
	shortProcessorParts = 16
	// freeProcessorTime is the processor time that may be used before anything waits.
	freeProcessorTime = 3 * time.Second
	// longestRest bounds how long a checkpoint waits for processor time that earlier
	// ones have used.
	longestRest = time.Minute
	// longestHold bounds how long that delays a call that is held back. It is a third of
	// the time for which an agent is ever stopped, see package shim and
	// longestStoppedStretch.
	longestHold = 20 * time.Second
)

// Agent reports the state of the task's agent.
type Agent interface {
	// Stopped reports whether the agent is stopped for calls that wait for a checkpoint.
	Stopped() bool
	// Ending reports whether the pod is about to end.
	Ending() bool
}

// Config configures a Pace.
type Config struct {
	// LeastIntervalSeconds is the interval between automatic checkpoints once the burst is
	// used up; 0 means 10 s.
	LeastIntervalSeconds int32
	// ProcessorTime returns the processor time that the daemon has used so far.
	ProcessorTime func() time.Duration
	// ProcessorsShort reports whether the node is short of processor time.
	ProcessorsShort func() bool
	// Agent is the task's agent.
	Agent Agent
}

// Pace bounds the checkpoints that an agent can cause: each becomes an object of the
// Kubernetes API, refs in the gitstore and a row in the history, and each uses processor
// time that the node's other pods could use. It does not delay ordinary bursts. Work may be counted by
// several goroutines; all else must be used by one, the one that takes the checkpoints.
type Pace struct {
	cfg       Config
	limiter   *rate.Limiter
	interval  time.Duration
	unchanged time.Time // when a check last found no changes
	taken     time.Time // when a checkpoint was last taken
	// checked is when that was last found out, or else when the Pace was made.
	checked time.Time

	mu sync.Mutex
	// free is the processor time that was free to use at the time counted; a negative
	// value is owed.
	free    time.Duration
	counted time.Time
}

// New returns a Pace with its whole burst and freeProcessorTime to use.
func New(cfg Config) *Pace {
	interval := time.Duration(cfg.LeastIntervalSeconds) * time.Second
	if interval <= 0 {
		interval = defaultLeastInterval
	}
	return &Pace{cfg: cfg, interval: interval, limiter: rate.NewLimiter(rate.Every(interval), Burst), checked: time.Now(), free: freeProcessorTime}
}

// UntilTurn returns how long it is until the number of automatic checkpoints allows another
// one; 0 if it does now.
func (p *Pace) UntilTurn() time.Duration {
	missing := 1 - p.limiter.Tokens()
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing*float64(p.interval)) + time.Millisecond
}

// Spend counts an automatic checkpoint.
func (p *Pace) Spend() { p.limiter.Allow() }

// Unchanged notes that a check has found no changes.
func (p *Pace) Unchanged() {
	p.unchanged = time.Now()
	p.checked = p.unchanged
}

// Taken notes that a checkpoint was taken, for any reason, or failed.
func (p *Pace) Taken() {
	p.taken = time.Now()
	p.checked = p.taken
}

// CountWork counts the processor time used from now until done is called.
func (p *Pace) CountWork() (done func()) {
	before := p.cfg.ProcessorTime()
	return func() { p.worked(p.cfg.ProcessorTime()-before, time.Now()) }
}

// UntilRisky returns how long it is until a checkpoint for risky calls may be taken.
func (p *Pace) UntilRisky() time.Duration { return max(p.UntilTurn(), p.RiskyRest()) }

// RiskyRest returns the part of UntilRisky that is due to processor time that earlier
// checkpoints have used.
func (p *Pace) RiskyRest() time.Duration {
	if p.cfg.Agent.Ending() {
		return 0 // the rest of the pod's grace period is for the agent's own end
	}
	return p.holdRest(time.Now())
}

// AskedRest returns how long a requested checkpoint waits for processor time. The agent
// runs meanwhile.
func (p *Pace) AskedRest() time.Duration {
	if p.cfg.Agent.Ending() {
		return 0
	}
	return p.restSince(p.taken, time.Now(), longestRest)
}

// UntilCheck returns how long it is until the next check for changes is worthwhile. It does not wait
// for ever for what other work owes.
func (p *Pace) UntilCheck() time.Duration {
	return max(p.UntilTurn(), time.Until(p.unchanged.Add(CheckPause)), p.restSince(p.checked, time.Now(), longestRest))
}

// Rest returns how long it is until the processor time that was used is paid off; a minute at most.
func (p *Pace) Rest() time.Duration { return p.rest(time.Now()) }

// parts returns the inverse of the share of one processor that checkpoints may use.
func (p *Pace) parts() int64 {
	if p.cfg.ProcessorsShort() {
		return shortProcessorParts
	}
	return processorParts
}

// worked counts the processor time of a checkpoint or of a check for changes.
func (p *Pace) worked(used time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free, p.counted = max(p.freeNow(now)-max(used, 0), -longestRest/time.Duration(p.parts())), now
}

// freeAt returns the processor time that is free to use at a time; a negative value is
// owed.
func (p *Pace) freeAt(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.freeNow(now)
}

// freeNow is freeAt for a caller that holds the lock.
func (p *Pace) freeNow(now time.Time) time.Duration {
	if p.counted.IsZero() {
		return p.free
	}
	parts := time.Duration(p.parts())
	return min(max(p.free, -longestRest/parts)+now.Sub(p.counted)/parts, freeProcessorTime)
}

// rest returns how long it takes until the processor time owed is paid off.
func (p *Pace) rest(now time.Time) time.Duration {
	return max(-p.freeAt(now)*time.Duration(p.parts()), 0)
}

// holdRest returns the part of rest for which a checkpoint for held calls is delayed.
func (p *Pace) holdRest(now time.Time) time.Duration { return p.restSince(p.taken, now, longestHold) }

// restSince returns the part of rest that ends when most has passed since a time, however much
// processor time was used since.
func (p *Pace) restSince(since, now time.Time, most time.Duration) time.Duration {
	return max(min(p.rest(now), since.Add(most).Sub(now)), 0)
}
