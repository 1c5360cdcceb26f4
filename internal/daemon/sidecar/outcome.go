package sidecar

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/socket"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// doneGrace is how long an agent may be silent after its final answer before it is
	// ended: a process that it left in the background may keep it running forever.
	doneGrace = 30 * time.Second
	// watchEvery is how often the daemon checks whether the agent is silent.
	watchEvery = time.Second
	// modelErrorAfter is how long an agent may retry after an error of the model's API
	// before that is reported.
	modelErrorAfter = 5 * time.Second
	// maxFailureText bounds, in bytes, the recorded text about why an agent failed.
	maxFailureText = 900
)

// effectiveCode returns the exit code that counts, -1 if there is none. An agent whose
// processes were killed after its final answer has not failed. An agent that gave up, or
// was ended before its final answer, has failed even if it exited with 0.
func (d *daemon) effectiveCode(st socket.Status) int {
	if st.Exit == nil {
		return -1
	}
	outcome, code := d.recorder.State().Outcome, st.Exit.Code
	switch {
	case d.stoppedForCall(): // whatever it made of that
		return cmp.Or(code, 128+9)
	case !st.Terminating && !outcome.Done && code == 0 && (d.silence.Load() != nil || d.endedForBudget(st) != ""):
		return 128 + 15 // it ended on request, before its final answer
	case st.Terminating || !outcome.Done:
		return code
	case code == 0 && outcome.Failure != nil:
		return 1
	case outcome.Failure == nil && (code == 128+9 || code == 128+15):
		return 0
	}
	return code
}

// exitCode returns the exit code recorded with the attempt's last checkpoint, -1 if there
// is none.
func (d *daemon) exitCode() int {
	state := d.volume.Journal.State()
	if !d.finished(state) {
		return -1
	}
	return state.Final.ExitCode
}

// failureOf returns why an agent failed: because a budget is spent, by its own events, by the shim's report, or by
// the last lines it printed, if the adapter recognises them.
func (d *daemon) failureOf(st socket.Status) agent.Failure {
	if why := d.endedForBudget(st); why != "" {
		return agent.Failure{Cause: agent.CauseBudgetSpent, Message: why}
	}
	known := d.recorder.State()
	f := agent.Failure{}
	if known.Outcome.Failure != nil {
		f = *known.Outcome.Failure
	}
	if st.Exit != nil && st.Exit.Message != "" {
		f = agent.Failure{Cause: agent.Cause(st.Exit.Cause), Message: st.Exit.Message}
	}
	if cause := d.silence.Load(); cause != nil && f.Message == "" {
		return agent.Failure{Cause: agent.CauseIdle, Message: *cause}
	}
	if f.Message != "" && f.Cause != agent.CauseUnknown {
		return f
	}
	var lines string
	if st.Exit != nil {
		lines = st.Exit.LastErrors
	}
	_, tail := d.recorder.LastOutput()
	lines = strings.TrimSpace(escapes.ReplaceAllString(cmp.Or(strings.TrimSpace(lines), tail), ""))
	if lines == "" {
		return f
	}
	last := agent.FailureOf(d.adapter, agent.LastWords{
		Lines: lines, Began: known.Produced || known.Session != nil, Worked: known.Produced,
	})
	if last.Cause == agent.CauseUnknown {
		last.Message = lastLines(lines, maxFailureText)
	}
	last.Message = cmp.Or(f.Message, last.Message)
	return *last
}

// escapes matches the terminal escape sequences that programs print even to a pipe.
var escapes = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)

// lastLines returns the last n bytes of a text, without a first line that is cut off,
// unless that is the only one.
func lastLines(text string, n int) string {
	if len(text) <= n {
		return text
	}
	text = text[len(text)-n:]
	if i := strings.IndexByte(text, '\n'); i >= 0 && i < len(text)-1 {
		return text[i+1:]
	}
	return text
}

// agentEnd returns the record about an agent that failed; nil if it succeeded or was asked
// to end.
func (d *daemon) agentEnd(st socket.Status) *daemonv1.AgentEnd {
	code := d.effectiveCode(st)
	if code == 0 || st.Terminating || !st.Seen || d.stoppedForCall() {
		return nil
	}
	f := d.failureOf(st)
	return &daemonv1.AgentEnd{
		ExitCode: int32(code), Cause: string(f.Cause), RetryAfterSeconds: int64(f.RetryAfter.Seconds() + 0.999),
		Message: clip.Bytes(d.cfg.Mask.Text(agent.Text([]byte(f.Message))), maxFailureText),
	}
}

// watchAgent ends an agent that does not exit after its final answer, or that is silent
// for longer than the task allows. It reports errors of the model's API that last.
func (d *daemon) watchAgent(ctx context.Context) error {
	limit := time.Duration(d.cfg.Pod.IdleSeconds) * time.Second
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	since := time.Now() // the output may have been held back until now
	var trouble modelTrouble
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		st, _ := d.socket.Status()
		outcome := d.recorder.State().Outcome
		if st.Exit != nil {
			outcome = agent.Outcome{}
		}
		d.problems.modelErrors(trouble.lasting(outcome, time.Now()))
		if !st.Connected || st.Exit != nil || st.Terminating || d.socket.Stopped() || d.problems.ours() || d.asks.waiting() {
			since = time.Now()
			continue
		}
		if last, _ := d.recorder.LastOutput(); last.After(since) {
			since = last
		}
		silent := time.Since(since)
		switch {
		case outcome.Done && silent > d.doneGrace:
			d.log.Info("the agent does not exit after its final answer; ending it", "silentFor", silent.String())
		case d.endedForBudget(st) != "": // again, for a shim that has not received it
		case limit > 0 && silent > limit:
			message := fmt.Sprintf("the agent printed nothing for %s and was terminated, as spec.agent.idleSeconds requires", limit)
			d.silence.Store(&message)
			d.log.Info("the agent is silent for longer than the task allows; ending it", "silentFor", silent.String(), "limit", limit.String())
		default:
			continue
		}
		d.socket.Finish()
		since = time.Now()
	}
}

// modelTrouble tracks an error of the model's API that the agent is retrying after.
type modelTrouble struct {
	is    *agent.Failure
	since time.Time
}

// lasting updates the error from the agent's outcome, and returns it if it has lasted for
// modelErrorAfter; otherwise nil. Of several errors with one cause it returns the first.
func (t *modelTrouble) lasting(o agent.Outcome, now time.Time) *agent.Failure {
	switch {
	case o.Done || o.Failure == nil || o.Failure.Cause == agent.CauseUnknown:
		t.is = nil
	case t.is == nil:
		t.is, t.since = o.Failure, now
	case t.is.Cause != o.Failure.Cause:
		t.is = o.Failure
	}
	if t.is == nil || now.Sub(t.since) < modelErrorAfter {
		return nil
	}
	return t.is
}
