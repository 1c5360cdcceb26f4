package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/toolcall"
)

const (
	// callCost is what a call costs the task's rate, in bytes of records, as a search does.
	callCost = searchCost
	// answerWait is how long a request waits for the manager's answer. The daemon then repeats it.
	answerWait = 25 * time.Second
	// maxDelivered bounds the ids of delivered answers in a request.
	maxDelivered = 100
)

// Family answers the calls of tools by which the agent of a supervisor looks at its tasks.
type Family interface {
	// Answer answers a call of a tool that changes nothing. A refusal is an answer. When ctx ends while
	// it waits for tasks, it answers with how they stand. Errors are those of package history.
	Answer(ctx context.Context, supervisor history.Task, tool v1alpha1.AgentTool, arguments []byte) (toolcall.Answer, error)
}

// refusal is why a call is not carried out, in words for a model.
type refusal struct{ text string }

// Error implements error.
func (r *refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// errCrowded refuses a call that would have to wait while too many do.
func errCrowded() error {
	return refuse("Too many calls of Clew's tools are waiting for something at the moment: try again in a minute.")
}

// CallTool implements the RPC. What an agent should know is answered in words for it, and only what
// concerns its daemon is an error.
func (g *Gateway) CallTool(ctx context.Context, req *connect.Request[daemonv1.CallToolRequest]) (*connect.Response[daemonv1.CallToolResponse], error) {
	response, err := g.callTool(ctx, req.Msg)
	var refused *refusal
	if errors.As(err, &refused) {
		response, err = &daemonv1.CallToolResponse{Refused: true, Text: refused.text}, nil
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(response), nil
}

func (g *Gateway) callTool(ctx context.Context, m *daemonv1.CallToolRequest) (*daemonv1.CallToolResponse, error) {
	id, tool := identityOf(ctx), v1alpha1.AgentTool(m.GetTool())
	call, err := newToolCallOf(m)
	if err != nil {
		return nil, err
	}
	g.shares.spend(id, callCost, 0)
	if err := g.mayCall(ctx, id, tool); err != nil {
		return nil, err
	}
	arrived, err := arrivalOf(ctx)
	if err != nil {
		return nil, err
	}
	working, err := arrived.work(ctx)
	if err != nil {
		return nil, err
	}
	if !toolcall.Changes(tool) {
		return g.readFamily(ctx, working, arrived, call)
	}
	return g.carryOut(ctx, working, arrived, call)
}

// newToolCallOf checks a request, whatever tool it calls.
func newToolCallOf(m *daemonv1.CallToolRequest) (call history.NewToolCall, err error) {
	if len(m.GetDelivered()) > maxDelivered {
		return call, invalid("the request names %d delivered calls, and may name %d", len(m.GetDelivered()), maxDelivered)
	}
	if !slices.Contains(v1alpha1.SupervisorTools(), v1alpha1.AgentTool(m.GetTool())) {
		return call, refuse("Clew's server, which may be of an older version than this task's pod, has no tool %q.", clip.Bytes(m.GetTool(), maxNameBytes))
	}
	if len(m.GetArguments()) > toolcall.MaxArguments {
		return call, refuse("The call has %d bytes of arguments, and may have %d: shorten the prompts.", len(m.GetArguments()), toolcall.MaxArguments)
	}
	if err := toolcall.CheckID(m.GetCallId()); err != nil {
		return call, refuse("%s.", err)
	}
	if toolcall.CheckID(m.GetWishId()) != nil {
		return call, invalid("wish_id must have the form of a call_id")
	}
	arguments, err := toolcall.Canonical(m.GetArguments())
	if err == nil && arguments[0] != '{' {
		err = errors.New("the arguments are no JSON object")
	}
	if err != nil {
		return call, refuse("The call cannot be read: %s.", clip.Bytes(err.Error(), maxNameBytes))
	}
	// Escaping may make them longer.
	if len(arguments) > toolcall.MaxArguments {
		return call, refuse("The arguments of the call are too long: shorten the prompts to less than %d bytes in all.", toolcall.MaxArguments)
	}
	return history.NewToolCall{Tool: m.GetTool(), Arguments: arguments, Key: m.GetCallId(), WishID: m.GetWishId(), Delivered: m.GetDelivered()}, nil
}

// mayCall refuses the call of a tool that the caller's Task does not give its agent. The Task counts as
// it is now: the daemon knows what its spec said when the attempt began.
func (g *Gateway) mayCall(ctx context.Context, id podidentity.Identity, tool v1alpha1.AgentTool) error {
	if g.tasks == nil {
		return refuse("This installation of Clew has no tools for supervisors.")
	}
	timed, cancel := context.WithTimeout(ctx, authenticationTimeout)
	defer cancel()
	given, supervisor, err := g.tasks.SupervisorTools(timed, id)
	switch {
	case err != nil:
		return g.failure(ctx, err)
	case !supervisor:
		return refuse("Only the agent of a supervisor can call %s, and this task is a worker (spec.role): do the work yourself, without it.", tool)
	case slices.Contains(given, tool):
		return nil
	case tool == v1alpha1.ToolPublish:
		return refuse("This task cannot publish: its spec does not give its agent the tool publish (spec.tools), or does not say where to (spec.publish). Go on without it.")
	}
	return refuse("The spec of this task does not give its agent the tool %s (spec.tools): go on without it.", tool)
}

// readFamily answers a call that changes nothing. One that takes long holds no slot for work.
func (g *Gateway) readFamily(ctx, working context.Context, arrived *arrival, call history.NewToolCall) (*daemonv1.CallToolResponse, error) {
	id, tool := identityOf(ctx), v1alpha1.AgentTool(call.Tool)
	newest, err := g.store.Attempt(working, id.TaskUID)
	if err == nil && newest > id.Attempt {
		err = fenced(id, newest)
	}
	if err != nil {
		return nil, g.failure(working, err)
	}
	if g.family == nil {
		return nil, refuse("This installation of Clew cannot tell how your tasks stand.")
	}
	if tool == v1alpha1.ToolTaskWait || tool == v1alpha1.ToolTaskDiff {
		end, err := arrived.setAside(g.shares.aside(tool))
		if err != nil {
			return nil, errCrowded()
		}
		defer end()
		var cancel context.CancelFunc
		working, cancel = g.untilClosing(ctx)
		defer cancel()
	}
	if searches(call) {
		var done func()
		if working, done, err = arrived.search(ctx); err != nil {
			return nil, errCrowded()
		}
		defer done()
	}
	answer, err := g.family.Answer(working, taskOf(id), tool, call.Arguments)
	if errors.Is(err, history.ErrSlow) && searches(call) {
		return nil, refuse("The search takes too long: search for rarer words, or leave query out for the newest messages.")
	}
	if err != nil {
		return nil, g.failure(working, err)
	}
	return answerMessage("", answer), nil
}

// searches reports whether a call searches a conversation.
func searches(call history.NewToolCall) bool {
	var in toolcall.HistoryInput
	return v1alpha1.AgentTool(call.Tool) == v1alpha1.ToolTaskHistory && json.Unmarshal(call.Arguments, &in) == nil && strings.TrimSpace(in.Query) != ""
}

// untilClosing returns a context that ends after answerWait, and when the server shuts down.
func (g *Gateway) untilClosing(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	go func() {
		select {
		case <-g.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// carryOut stores a call, which the manager carries out, and waits a while for the answer.
func (g *Gateway) carryOut(ctx, working context.Context, arrived *arrival, call history.NewToolCall) (*daemonv1.CallToolResponse, error) {
	id := identityOf(ctx)
	stored, err := g.store.CallTool(working, taskOf(id), id.Attempt, call)
	switch {
	case errors.Is(err, history.ErrExists):
		return nil, refuse("The call_id %q is that of an earlier call of another kind, or with other arguments. Leave call_id out, or choose another one.", call.Key)
	case errors.Is(err, history.ErrLimitReached):
		return nil, refuse("The call is not carried out: the history of this task, or of its namespace, has reached its limit, so that the call cannot be noted. Go on without it; a person has to raise the limit, or to delete histories.")
	case errors.Is(err, history.ErrUnanswered):
		return nil, refuse("Too many calls of this task are still being carried out. Repeat one of them to have its answer, then try this one again.")
	case err != nil:
		return nil, g.failure(working, err)
	}
	if stored.Answer == nil {
		if stored, err = g.awaitAnswer(ctx, working, arrived, stored); err != nil {
			return nil, err
		}
	}
	if stored.Answer == nil {
		return &daemonv1.CallToolResponse{Id: stored.ID, Pending: true}, nil
	}
	return answerMessage(stored.ID, *stored.Answer), nil
}

// awaitAnswer waits until a call is answered, and holds no slot for work meanwhile. It returns the call
// without an answer if there is none in time.
func (g *Gateway) awaitAnswer(ctx, working context.Context, arrived *arrival, call history.ToolCall) (history.ToolCall, error) {
	answered, leave := g.answers.await(call.ID)
	defer leave()
	var waiting context.Context
	for {
		// It may have been answered before it was awaited.
		found, err := g.store.ToolCall(working, identityOf(ctx).TaskUID, call.ID)
		if err != nil {
			return call, g.failure(working, err)
		}
		if found.Answer != nil {
			return found, nil
		}
		if waiting == nil {
			end, err := arrived.setAside(g.shares.aside(v1alpha1.AgentTool(call.Tool)))
			if err != nil {
				return call, nil // the daemon asks again
			}
			defer end()
			timed, cancel := g.untilClosing(ctx)
			defer cancel()
			waiting = timed
		}
		arrived.releaseSlot()
		select {
		case <-answered:
		case <-waiting.Done():
			return call, nil
		}
		if working, err = arrived.work(ctx); err != nil {
			return call, err
		}
	}
}

func answerMessage(id string, a toolcall.Answer) *daemonv1.CallToolResponse {
	return &daemonv1.CallToolResponse{Id: id, Refused: a.Refused, Text: clip.Bytes(a.Text, toolcall.MaxText), Data: a.Data}
}

// HandleToolCall processes what the history store says of calls: it wakes the requests that wait for
// their answers.
func (g *Gateway) HandleToolCall(n history.ToolCallNotification) {
	if n.Answered || n.ID == "" {
		g.answers.announce(n.ID)
	}
}
