package task

import (
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/plan"
)

// Nobody tells the manager when a store that it could not ask a moment ago can be asked again.
func TestATaskIsDecidedOnAgainWhenItIsNotKnownWhatThatDependsOn(t *testing.T) {
	answered := plan.Observed{History: plan.History{Known: true}}
	nothingKnown := known{}
	for name, c := range map[string]struct {
		plan     plan.Plan
		observed plan.Observed
		want     time.Duration
	}{
		"everything is known":                   {plan.Plan{}, answered, 0},
		"something is due":                      {plan.Plan{RequeueAfter: time.Hour}, answered, time.Hour},
		"the history could not be asked":        {plan.Plan{RequeueAfter: time.Hour}, plan.Observed{}, requeue.AfterOutage},
		"nor what it knows of a checkpoint":     {plan.Plan{Inspect: 3}, answered, requeue.AfterOutage},
		"nor the API server of a storage class": {plan.Plan{InspectClass: "fast", RequeueAfter: time.Hour}, answered, requeue.AfterOutage},
		"but something is due before":           {plan.Plan{Inspect: 3, RequeueAfter: time.Second}, answered, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if got := next(c.plan, c.observed, &nothingKnown); got != c.want {
				t.Errorf("it is decided on again after %s, want %s", got, c.want)
			}
		})
	}
}
