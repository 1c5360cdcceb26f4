package run

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
	// longTake is a checkpoint so dear that the processors are for others for a
	// while afterwards, restTimes as long as it took.
	longTake  = 5 * time.Second
	restTimes = 3
)

// pace bounds the checkpoints that an agent can cause: each becomes an object
// of the Kubernetes API, refs in the gitstore and a row in the history. It
// leaves honest bursts alone.
type pace struct {
	limiter  *rate.Limiter
	interval time.Duration
	looked   time.Time // when it was last found that nothing had changed
	rested   time.Time // when the rest after a long checkpoint is over
}

func newPace(leastIntervalSeconds int32) *pace {
	interval := time.Duration(leastIntervalSeconds) * time.Second
	if interval <= 0 {
		interval = defaultLeastInterval
	}
	return &pace{interval: interval, limiter: rate.NewLimiter(rate.Every(interval), checkpointBurst)}
}

// wait is how long it is until an automatic checkpoint may be taken; 0 for none.
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

// took notes how long a checkpoint has taken. An agent that changes very much has
// no more than a quarter of the time spent on that, however often it is due or asked
// for. Calls that are held back do not wait for it.
func (p *pace) took(d time.Duration, now time.Time) {
	if d >= longTake {
		p.rested = now.Add(restTimes * d)
	}
}

// rest is how long no checkpoint is taken that can wait.
func (p *pace) rest(now time.Time) time.Duration { return max(p.rested.Sub(now), 0) }

// untilLook is how long it is until it is worth looking for changes.
func (p *pace) untilLook() time.Duration {
	return max(p.wait(), time.Until(p.looked.Add(lookPause)), p.rest(time.Now()))
}
