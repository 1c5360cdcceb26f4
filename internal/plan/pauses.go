package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// notBefore returns the earliest time at which the next attempt may start.
func (d *decision) notBefore(want want) time.Time {
	last := d.last()
	if last == nil || last.EndTime == nil {
		return time.Time{}
	}
	if (want >= wantRewind && d.s.Rewind.Attempt == 0) || (d.resuming() && d.s.Resume.Attempt == 0) {
		return time.Time{}
	}
	limits := d.o.Limits
	pause := time.Duration(0)
	switch last.Outcome {
	case v1alpha1.AttemptAgentFailed:
		pause = d.failurePause(last)
	case v1alpha1.AttemptPrepareFailed:
		pause = backoff(limits.RetryBase, limits.PrepareRetryCap, d.inARow(v1alpha1.AttemptPrepareFailed))
	case v1alpha1.AttemptPodLost:
		pause = backoff(limits.LostPodBase, limits.LostPodCap, d.inARow(v1alpha1.AttemptPodLost)-1)
	}
	return last.EndTime.Add(pause)
}

// backoff returns the pause after this many consecutive failures.
func backoff(base, limit time.Duration, failures int) time.Duration {
	steps, pause := wait.Backoff{Duration: min(base, limit), Factor: 2, Steps: failures, Cap: limit}, time.Duration(0)
	for range min(failures, 64) { // the limit is reached before that
		pause = steps.Step()
	}
	return pause
}

// quickLoss is how soon after its start an attempt must be lost for the next one to
// wait. After one that ran longer, the next starts at once.
const quickLoss = 10 * time.Second

// inARow returns how many of the latest attempts ended with this outcome, without
// another between them. A lost pod counts only if it was lost quickly.
func (d *decision) inARow(outcome v1alpha1.AttemptOutcome) int {
	n := 0
	for i := len(d.s.Attempts) - 1; i >= 0 && d.s.Attempts[i].Outcome == outcome; i-- {
		a := d.s.Attempts[i]
		if outcome == v1alpha1.AttemptPodLost && a.StartTime != nil && a.EndTime.Sub(a.StartTime.Time) > quickLoss {
			break
		}
		n++
	}
	return n
}
