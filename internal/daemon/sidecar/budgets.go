package sidecar

import (
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/daemon/meter"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/volume"
)

const (
	// callFollows is how long after a message of the model the call of a tool may follow that belongs to
	// it.
	callFollows = 500 * time.Millisecond
	// spentPatience is how long an agent that is never quiet may go on, once a budget is spent, before it
	// is ended between two of its lines.
	spentPatience = 5 * time.Second
)

// spending ends the agent once a budget is spent: when no call of a tool is open, so that none is cut
// short that was made before.
type spending struct {
	meter *meter.Meter

	mu sync.Mutex
	// since is when it was found that a budget is spent, and made how many calls there were by then, those
	// of the same message included.
	since time.Time
	made  int
	// why says which budget the agent was ended for; "" if it was not.
	why string
}

// openMeter returns the meter of the attempt.
func openMeter(cfg Config, v *volume.Volume) (*meter.Meter, error) {
	return meter.Open(meter.Config{
		Path: filepath.Join(cfg.Paths.State, "budgets.json"), Spool: v.Spool, Log: cfg.Log,
		Told: meter.Told{Attempt: cfg.Pod.Attempt, Through: cfg.Pod.RecordSequence, Budgets: cfg.Pod.Budgets},
	})
}

// keepToBudgets ends the agent if a budget is spent and this is a moment for that. It is called whenever
// lines were recorded, and regularly while the shim is connected.
func (d *daemon) keepToBudgets() {
	over := d.spending.meter.Exceeded()
	s := &d.spending
	s.mu.Lock()
	defer s.mu.Unlock()
	if over == nil {
		s.since = time.Time{}
		return
	}
	made, open, settled := d.recorder.Calls()
	if s.since.IsZero() {
		s.since = time.Now()
	}
	if time.Since(s.since) < callFollows {
		s.made = made
	}
	last, _ := d.recorder.LastOutput()
	between := open == 0 && (settled || time.Since(last) >= callFollows || time.Since(s.since) >= spentPatience)
	st, _ := d.socket.Status()
	if s.why != "" || st.Exiting || d.recorder.State().Outcome.Done || made <= s.made && !between {
		return
	}
	s.why = over.String()
	d.log.Info("a budget is spent; ending the agent", "budget", s.why)
	d.socket.Finish()
}

// endedForBudget says which budget the agent was ended for; "" if it was not. A daemon that was killed after
// it had ended the agent finds a budget spent and an agent that was asked to end.
func (d *daemon) endedForBudget(st socket.Status) string {
	d.spending.mu.Lock()
	why := d.spending.why
	d.spending.mu.Unlock()
	if why != "" || st.Exit == nil || st.Terminating || !slices.Contains([]int{128 + int(unix.SIGTERM), 128 + int(unix.SIGKILL)}, st.Exit.Code) {
		return why
	}
	if over := d.spending.meter.Exceeded(); over != nil {
		return over.String()
	}
	return ""
}
