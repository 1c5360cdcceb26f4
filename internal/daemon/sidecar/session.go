package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/agentstate"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemon/socket"
)

// sessionWait is how long the agent's session file may lag behind its output, and
// sessionPoll how often it is read meanwhile.
const (
	sessionWait = 300 * time.Millisecond
	sessionPoll = 20 * time.Millisecond
)

// uncountedUnknown stands for an unknown number of results.
const uncountedUnknown = math.MinInt

// parsers returns a function that makes parsers for this attempt's run of the agent.
func parsers(cfg Config, adapter agent.Adapter, j *journal.Journal) func(agentstate.State) agent.Parser {
	return func(state agentstate.State) agent.Parser {
		known := state.Session
		if known == nil {
			journalled := j.State()
			known = journalled.RunningSession()
		}
		options := agent.ParserOptions{Session: known, Outcome: state.Outcome, Run: strconv.FormatInt(cfg.Pod.Attempt, 10), Model: cfg.Pod.Model, Prices: cfg.Pod.Prices}
		plan, err := launchplan.Read(cfg.RunDir)
		switch {
		case err == nil:
			options.Prompt, options.Model = cfg.Mask.Text(plan.Prompt), plan.Model
		case !errors.Is(err, fs.ErrNotExist):
			cfg.Log.Error(err, "the launch plan is unreadable; the prompt may be recorded twice")
		}
		return adapter.NewParser(options)
	}
}

// noteSession keeps the agent's session in the journal, for checkpoints and for the next
// attempt. A resumed session is noted only once the agent has produced output, since the
// agent may still refuse it.
func (d *daemon) noteSession() error {
	now := d.recorder.State()
	if now.Session == nil {
		return nil
	}
	d.noting.Lock()
	defer d.noting.Unlock()
	if proto.Equal(d.noted, now.Session) {
		return nil
	}
	state := d.volume.Journal.State()
	if !now.Produced && proto.Equal(state.RunningSession(), now.Session) {
		return nil
	}
	if !state.SameSession(now.Session) {
		err := d.volume.Journal.Update(func(s *journal.State) error { return s.SetAgentSession(now.Session) })
		if err != nil {
			return fmt.Errorf("note the agent's session: %w", err)
		}
	}
	d.noted = now.Session
	return nil
}

// noteRefusal notes a session that the agent failed to resume: the agent reported that, or
// ended before it printed any event. An error of the model's API is no refusal, since the
// session can still be resumed.
func (d *daemon) noteRefusal(st socket.Status) error {
	state := d.volume.Journal.State()
	s := state.Start
	if st.Exit == nil || st.Terminating || st.Exit.Code < 1 || st.Exit.Code > 125 || s == nil ||
		s.Attempt != d.cfg.Pod.Attempt || s.Memory != v1alpha1.AgentMemorySession || !d.sessionRefused(st) {
		return nil
	}
	session := state.AgentSession.Message()
	if session == nil {
		return nil
	}
	d.log.Info("the agent did not resume its session; the next attempt puts the conversation into its prompt", "session", session.GetId())
	err := d.volume.Journal.Update(func(s *journal.State) error {
		s.SessionRefused = session.GetId()
		return nil
	})
	if err != nil {
		return err
	}
	return d.taker.Event(v1alpha1.EventAgentSessionRefused,
		fmt.Sprintf("the agent exited with %d without resuming its session %s; the next attempt puts the conversation into its prompt", st.Exit.Code, session.GetId()),
		map[string]string{"session": session.GetId()})
}

// sessionRefused reports whether the agent refused the session it was started with.
func (d *daemon) sessionRefused(st socket.Status) bool {
	known := d.recorder.State()
	if known.Produced {
		return false
	}
	switch d.failureOf(st).Cause {
	case agent.CauseSessionUnknown:
		return true
	case agent.CauseUnknown:
		return known.Outcome == (agent.Outcome{})
	}
	return false
}

// awaitSession waits, for at most sessionWait, until the files of the agent's session hold
// the last result that was recorded, because some agents print a result before they save
// it. So the session in a checkpoint matches its conversation.
func (d *daemon) awaitSession(ctx context.Context) {
	session := d.recorder.State().Session
	call, results := d.recorder.Answered()
	if session == nil || call == "" || !d.awaitingSession.CompareAndSwap(false, true) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sessionWait)
	defer cancel()
	go func() {
		defer cancel()
		defer d.awaitingSession.Store(false) // reading may outlast the wait
		for ctx.Err() == nil {
			found, err := agent.FindSession(d.adapter, d.cfg.Paths.Home, session.GetId())
			if err == nil && d.holds(found, call, results) {
				return
			}
			select {
			case <-time.After(sessionPoll):
			case <-ctx.Done():
			}
		}
	}()
	<-ctx.Done()
}

// holds reports whether a session's files contain the last result or, if they have no ids,
// the expected number of results. It is true if they show neither.
func (d *daemon) holds(s agent.Session, call string, results int) bool {
	if s.Results != nil {
		return s.Results[call]
	}
	return s.ResultCount < 0 || d.uncounted == uncountedUnknown || s.ResultCount >= d.uncounted+results
}

// uncountedBefore returns how many more results the session's files contain, before the
// agent starts, than the recorder has counted. That cannot be known once the agent runs.
func (d *daemon) uncountedBefore(state journal.State) int {
	if state.Session.BelongsTo(d.cfg.Pod.Attempt, d.cfg.Pod.PodUID) {
		return uncountedUnknown
	}
	_, counted := d.recorder.Answered()
	session := state.RunningSession()
	if session == nil {
		return -counted
	}
	found, err := agent.FindSession(d.adapter, d.cfg.Paths.Home, session.GetId())
	if err != nil || found.ResultCount < 0 {
		return uncountedUnknown
	}
	return found.ResultCount - counted
}
