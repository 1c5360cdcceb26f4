package sidecar

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/agentstate"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/tools"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/toolcall"
)

const (
	// callWait is how long a call of a supervisor's tool waits for its answer. It is longer than the
	// server ever keeps a request, and shorter than the daemon may take for a call.
	callWait = 47 * time.Second
	// unreachableWait is how long the server may be unreachable meanwhile.
	unreachableWait = 15 * time.Second
	// recordWait is how long an answer waits until it is recorded that there is one.
	recordWait = 2 * time.Second
	// maxSummary bounds, in bytes, what the timeline says of an answer.
	maxSummary = 300
)

// How calls of a supervisor's tools ended, in the timeline.
const (
	callDone       = "Done"
	callRefused    = "Refused"
	callUnanswered = "Unanswered"
)

// Call implements tools.Answerer. The server carries the call out once, however often it is sent.
func (a *toolAnswers) Call(ctx context.Context, c tools.Call) (tools.Answer, error) {
	d := a.d
	arguments := d.cfg.Mask.Text(string(c.Arguments))
	if !json.Valid([]byte(arguments)) {
		return tools.Answer{}, tools.Refuse("Nothing was done: the arguments contain the value of a Secret, which must not leave this pod. Leave it out.")
	}
	waiting, cancel := context.WithTimeout(ctx, cmp.Or(d.cfg.CallWait, callWait))
	defer cancel()
	response, err := d.callUntilAnswered(waiting, &daemonv1.CallToolRequest{
		Tool: string(c.Tool), Arguments: []byte(arguments), CallId: c.ID, WishId: d.wishOf(c, arguments),
	})
	switch {
	case err != nil:
		err = d.callRefusal(c.Tool, err)
		d.recordCall(c, callUnanswered, err.Error())
		return tools.Answer{}, err
	case response.GetPending():
		// It is in the timeline once it is answered.
		return tools.Answer{Text: pendingText(c.Tool), Data: toolcall.Unanswered{Pending: true}}, nil
	}
	if response.GetId() != "" {
		d.noteWish(c, arguments, response.GetId())
	}
	return d.answerOf(ctx, c, response)
}

// callUntilAnswered sends a call until it is answered, or ctx ends: the response is then that it is
// pending.
func (d *daemon) callUntilAnswered(ctx context.Context, call *daemonv1.CallToolRequest) (*daemonv1.CallToolResponse, error) {
	wait := backoff.Backoff{Max: 5 * time.Second}
	var unreachable error // nil if the server has answered last
	for reached := time.Now(); ; {
		call.Delivered = d.recorder.Untold()
		response, err := d.cfg.Server.CallTool(ctx, call)
		switch {
		case err == nil:
			d.recorder.Told(call.GetDelivered())
			if !response.GetPending() {
				return response, nil
			}
			unreachable, reached = nil, time.Now()
			wait.Reset()
		case ctx.Err() != nil: // the server has it, unless it was unreachable before
		case gatewayclient.Answered(err), time.Since(reached) > unreachableWait:
			return nil, err
		default:
			unreachable = err
		}
		if wait.Wait(ctx) != nil { // ctx has ended
			return &daemonv1.CallToolResponse{Pending: true}, unreachable
		}
	}
}

// answerOf records that a call was answered, and returns the answer.
func (d *daemon) answerOf(ctx context.Context, c tools.Call, response *daemonv1.CallToolResponse) (tools.Answer, error) {
	outcome, id := callDone, response.GetId()
	if response.GetRefused() {
		outcome = callRefused
	}
	if id == "" { // it could not change anything
		d.recordCall(c, outcome, response.GetText())
	} else {
		message, details := d.callEvent(c, outcome, response.GetText())
		details[history.ToolCallAbout] = id
		answered := agentstate.Answered{ID: id, Message: message, Details: details}
		d.recordAnswered(ctx, answered, response.GetRefused())
		if outcome == callDone {
			// Masked before it is cut, so that the marker is not.
			text := clip.Bytes(d.cfg.Mask.Text(response.GetText()), tools.MaxText-len(answered.Marker())-1)
			return tools.Answer{Text: text + "\n" + answered.Marker(), Data: dataOf(response), Call: id}, nil
		}
	}
	if outcome == callRefused {
		return tools.Answer{}, tools.Refuse("%s", response.GetText())
	}
	return tools.Answer{Text: response.GetText(), Data: dataOf(response)}, nil
}

// recordAnswered records that a call was answered, and waits a while for that. A refusal counts as
// delivered at once: nothing was done, so that a call that is repeated may be carried out.
func (d *daemon) recordAnswered(ctx context.Context, a agentstate.Answered, refused bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWait)
	defer cancel()
	recorded := make(chan error, 1)
	go func() {
		if refused {
			recorded <- d.recorder.CallRefused(ctx, a)
		} else {
			recorded <- d.recorder.CallAnswered(ctx, a)
		}
	}()
	var err error
	select {
	case err = <-recorded:
	case <-ctx.Done(): // the recorder waits for room on the volume
		err = ctx.Err()
	}
	if err != nil {
		d.log.Error(err, "the answer to a call of a tool could not be recorded before it was given", "call", a.ID)
		d.recordToolCall(a.Message, a.Details)
	}
}

// Delivered is called when a program says that it has written out the answers to calls.
func (d *daemon) Delivered(ctx context.Context, calls []string) error {
	return d.recorder.Delivered(ctx, calls)
}

// endCalls records the events that wait for an answer to be shown, when the agent has ended: one that
// has completed its turn has all answers.
func (d *daemon) endCalls(ctx context.Context, st socket.Status) error {
	return d.recorder.EndCalls(ctx, d.effectiveCode(st) == 0 && !st.Terminating)
}

// dataOf returns the data of an answer; nil for none.
func dataOf(response *daemonv1.CallToolResponse) any {
	if !json.Valid(response.GetData()) {
		return nil
	}
	return json.RawMessage(response.GetData())
}

// recordCall records an event about a call.
func (d *daemon) recordCall(c tools.Call, outcome, text string) {
	d.recordToolCall(d.callEvent(c, outcome, text))
}

// callEvent returns what the timeline says about a call.
func (d *daemon) callEvent(c tools.Call, outcome, text string) (message string, details map[string]string) {
	details = map[string]string{"tool": string(c.Tool), "outcome": outcome}
	message = "the agent called " + string(c.Tool)
	if about := d.line(c.About); about != "" {
		key := "task"
		if c.Tool == v1alpha1.ToolPhaseSet {
			key = "phase"
		}
		details[key] = about
		message += " (" + about + ")"
	}
	if outcome == callRefused {
		message += " and was refused"
	}
	first, _, _ := strings.Cut(text, "\n")
	return message + ": " + d.line(first), details
}

// line returns a text as a part of a line of the timeline.
func (d *daemon) line(text string) string {
	return clip.Marked(d.cfg.Mask.Text(agent.Text([]byte(text))), maxSummary)
}

// pendingText tells the agent that there is no answer yet.
func pendingText(tool v1alpha1.AgentTool) string {
	if !toolcall.Changes(tool) {
		return fmt.Sprintf("Clew has not answered in time. Call %s again.", tool)
	}
	return fmt.Sprintf("This takes longer than a call waits, and goes on meanwhile. Call %s again with the same arguments to have the answer: it takes effect once, however often you do.", tool)
}

// callRefusal says why a call has no answer, and whether it may have taken effect.
func (d *daemon) callRefusal(tool v1alpha1.AgentTool, err error) error {
	switch {
	case errors.Is(err, gatewayclient.ErrOlder):
		return tools.Refuse("Nothing was done: Clew's server is of an older version, which does not know the tools of a supervisor. Go on without %s.", tool)
	case errors.Is(err, gatewayclient.ErrFenced):
		return tools.Refuse("This attempt of the task is over.")
	case errors.Is(err, gatewayclient.ErrRefused):
		return tools.Refuse("Nothing was done: Clew's server does not let this task call %s. Go on without it.", tool)
	case errors.Is(err, gatewayclient.ErrNotFound):
		return tools.Refuse("Nothing was done: Clew's server does not know this run of the task yet. Call %s again in a minute.", tool)
	case errors.Is(err, gatewayclient.ErrInvalid):
		return tools.Refuse("Nothing was done: %s.", clip.Bytes(err.Error(), maxDetail))
	}
	d.log.Info("a call of a supervisor's tool has no answer", "tool", tool, "error", err.Error())
	if !toolcall.Changes(tool) {
		return tools.Refuse("Clew's server cannot be reached at the moment. Nothing is lost, and your tasks go on. Go on with your work, and call %s again in a minute.", tool)
	}
	return tools.Refuse("Clew's server cannot be reached at the moment, so that it is not known whether the call has taken effect. Nothing is lost: call %s again with the same arguments in a minute. It takes effect once, however often you do.", tool)
}
