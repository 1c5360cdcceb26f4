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
	// doneGrace is how long an agent may be silent after its final answer before
	// it is ended: what it left running in the background may hold it for ever.
	doneGrace = 30 * time.Second
	// watchEvery is how often it is looked whether the agent is silent.
	watchEvery = time.Second
	// troubleAfter is how long an agent may try to get over an error of the
	// model's API before that is told of.
	troubleAfter = 5 * time.Second
	// maxFailureText is how much is told of why an agent failed, in bytes.
	maxFailureText = 900
)

// codeOf is the exit code that counts. What ends the processes of an agent after
// its answer does not make it fail; and one that gave up has failed, although
// it may not say so, as has one that was ended before its answer.
func (d *daemon) codeOf(st socket.Status) int {
	if st.Exit == nil {
		return -1
	}
	outcome, code := d.recorder.State().Outcome, st.Exit.Code
	switch {
	case !st.Terminating && !outcome.Done && code == 0 && d.silence.Load() != nil:
		return 128 + 15 // it obeyed, and was not done
	case st.Terminating || !outcome.Done:
		return code
	case code == 0 && outcome.Failure != nil:
		return 1
	case outcome.Failure == nil && (code == 128+9 || code == 128+15):
		return 0
	}
	return code
}

// exitCode is that of the attempt whose last checkpoint was taken; -1 if there is
// none of its own.
func (d *daemon) exitCode() int {
	state := d.volume.Journal.State()
	if !d.finished(state) {
		return -1
	}
	return state.Final.ExitCode
}

// failureOf is why an agent failed: by its own events, by what the shim says, or
// by the last lines it printed, where their words are known.
func (d *daemon) failureOf(st socket.Status) agent.Failure {
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

// escapes are the colours that programs print to a terminal that is none.
var escapes = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)

// lastLines is the end of a text, in whole lines where it has any.
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

// agentEnd is what is told of an agent that did not end well; nil for one that
// did, or was told to end.
func (d *daemon) agentEnd(st socket.Status) *daemonv1.AgentEnd {
	code := d.codeOf(st)
	if code == 0 || st.Terminating || !st.Seen {
		return nil
	}
	f := d.failureOf(st)
	return &daemonv1.AgentEnd{
		ExitCode: int32(code), Cause: string(f.Cause), RetryAfterSeconds: int64(f.RetryAfter.Seconds() + 0.999),
		Message: clip.Bytes(d.cfg.Mask.Text(agent.Text([]byte(f.Message))), maxFailureText),
	}
}

// watchAgent ends an agent that has given its final answer and does not end, or
// that is silent for longer than the task allows. It tells of one that the model's
// API holds up.
func (d *daemon) watchAgent(ctx context.Context) error {
	limit := time.Duration(d.cfg.Pod.IdleSeconds) * time.Second
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	since := time.Now() // the output may have been held back until now
	var trouble trouble
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
		if !st.Connected || st.Exit != nil || st.Terminating || d.problems.own() {
			since = time.Now()
			continue
		}
		heard, _ := d.recorder.LastOutput()
		if heard.After(since) {
			since = heard
		}
		silent := time.Since(since)
		switch {
		case outcome.Done && silent > d.doneGrace:
			d.log.Info("the agent has given its final answer, and something it left behind holds it: ending it", "silentFor", silent.String())
		case limit > 0 && silent > limit:
			message := fmt.Sprintf("the agent printed nothing for %s and was ended, as spec.agent.idleSeconds says", limit)
			d.silence.Store(&message)
			d.log.Info(message)
		default:
			continue
		}
		d.socket.Finish()
		since = time.Now()
	}
}

// trouble is an error of the model's API that the agent has not got over yet.
type trouble struct {
	is    *agent.Failure
	since time.Time
}

// lasting is the error, the first of its kind, if it has lasted for long enough to
// be told of; else nil.
func (t *trouble) lasting(o agent.Outcome, now time.Time) *agent.Failure {
	switch {
	case o.Done || o.Failure == nil || o.Failure.Cause == agent.CauseUnknown:
		t.is = nil
	case t.is == nil:
		t.is, t.since = o.Failure, now
	case t.is.Cause != o.Failure.Cause:
		t.is = o.Failure
	}
	if t.is == nil || now.Sub(t.since) < troubleAfter {
		return nil
	}
	return t.is
}
