package sidecar

import (
	"context"
	"fmt"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/record"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// An agent without hooks cannot wait: it is stopped at the call. The task then waits without a pod, and
// the next attempt is told the answer, and lets an approved call pass, once.

// passes reports whether a call was approved in an earlier attempt and is made for the first time since.
func (d *daemon) passes(call record.Call) bool {
	d.asks.mu.Lock()
	defer d.asks.mu.Unlock()
	tool, digest := d.toolName(call.Name), digestOf(d.cfg.Mask.Text(agent.Text([]byte(call.Input))))
	passed := d.requests().Passed
	i := slices.IndexFunc(d.cfg.Pod.Answers, func(a daemonapi.RequestAnswer) bool {
		return a.Approved && a.Tool == tool && a.InputDigest == digest && !slices.Contains(passed, a.ID)
	})
	if i < 0 || call.Cut {
		return false
	}
	err := d.changeRequests(func(all *journal.Requests) { all.Pass(d.cfg.Pod.Answers[i].ID) })
	if err != nil {
		d.log.Error(err, "an approved call could not be noted, and is asked about again", "request", d.cfg.Pod.Answers[i].ID)
	}
	return err == nil
}

// stopFor ends an agent without hooks for a call that it has made. The agent is stopped already. If
// nobody can be asked, it is ended all the same: the call must not run.
func (d *daemon) stopFor(ctx context.Context, call record.Call, rule riskyTool) {
	if st, _ := d.socket.Status(); st.Exit != nil {
		d.recordOutcome(v1alpha1.EventRiskyToolUnguarded, d.riskyTool(call.ID, call.Name, false), nil,
			fmt.Sprintf("the tool %s was called, and the agent ended before it could be stopped", d.toolName(call.Name)))
		return
	}
	if err := d.requestStop(ctx, call, rule); err != nil {
		d.log.Error(err, "nobody can be asked about a tool call; ending the agent", "tool", call.Name)
	}
	d.killAgent(ctx)
}

// requestStop has somebody asked about the first call for which the agent is stopped.
func (d *daemon) requestStop(ctx context.Context, call record.Call, rule riskyTool) error {
	d.asks.mu.Lock()
	defer d.asks.mu.Unlock()
	all := d.requests()
	if stopsAgent(all) {
		return nil // it is asked about the others when it makes them again
	}
	c := askedCall{tool: call.Name, input: call.Input, cut: call.Cut, rule: rule}
	_, err := d.addRequest(ctx, c, all, true)
	return err
}

func stopsAgent(all journal.Requests) bool {
	return slices.ContainsFunc(all.List, func(r journal.Request) bool { return r.StopsAgent })
}

// stoppedForCall reports whether the agent is, or was, ended for a call.
func (d *daemon) stoppedForCall() bool { return stopsAgent(d.requests()) }

// killAgent kills the agent, also one whose shim has yet to connect again.
func (d *daemon) killAgent(ctx context.Context) {
	for {
		st, changed := d.socket.Status()
		if st.Exit != nil {
			return
		}
		d.socket.Kill()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
