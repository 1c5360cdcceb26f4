package daemontest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/toolclient"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/toolcall"
)

// ToolCall is a call of a supervisor's tool that the server has stored.
type ToolCall struct {
	Tool, Arguments, Key string
	// Wish is the id of what the call wishes.
	Wish string
	// Delivered is set once the server knows that the answer has reached the agent.
	Delivered bool

	id     string
	answer *daemonv1.CallToolResponse
}

// AnswerCalls makes the server answer the calls of a supervisor's tools; each is answered once. An
// answer that is pending is asked for again.
func (s *Server) AnswerCalls(answer func(*daemonv1.CallToolRequest) *daemonv1.CallToolResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// LoseCalls makes the server forget the calls of a task, as an older copy of its database would.
func (s *Server) LoseCalls(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[uid].Calls = nil
}

// deliver notes that the answer to a call has reached the agent.
func (t *Task) deliver(id string) {
	for _, c := range t.Calls {
		if c.id == id {
			c.Delivered = true
		}
	}
}

// call returns the stored call that a request is about, and stores it if there is none.
func (t *Task) call(r *daemonv1.CallToolRequest) *ToolCall {
	i := slices.IndexFunc(t.Calls, func(c *ToolCall) bool {
		if r.GetCallId() != "" {
			return c.Key == r.GetCallId()
		}
		return !c.Delivered && c.Key == "" && c.Tool == r.GetTool() && c.Arguments == string(r.GetArguments())
	})
	if i >= 0 {
		return t.Calls[i]
	}
	c := &ToolCall{Tool: r.GetTool(), Arguments: string(r.GetArguments()), Key: r.GetCallId(), Wish: r.GetWishId(), id: fmt.Sprintf("id-%d", len(t.Calls)+1)}
	t.Calls = append(t.Calls, c)
	return c
}

// CallTool stores a call and answers it.
func (s *service) CallTool(_ context.Context, r *connect.Request[daemonv1.CallToolRequest]) (*connect.Response[daemonv1.CallToolResponse], error) {
	task, _, err := s.enter(r.Header())
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if s.old || s.answer == nil {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("no such procedure"))
	}
	defer s.changed.Announce()
	for _, id := range r.Msg.GetDelivered() {
		task.deliver(id)
	}
	if !toolcall.Changes(v1alpha1.AgentTool(r.Msg.GetTool())) {
		task.Reads++
		return connect.NewResponse(s.answer(r.Msg)), nil
	}
	call := task.call(r.Msg)
	if call.answer == nil {
		answer := s.answer(r.Msg)
		if answer.Id = call.id; answer.GetPending() {
			return connect.NewResponse(answer), nil
		}
		call.answer = answer
	}
	return connect.NewResponse(call.answer), nil
}

// SetOld makes the server one of a version that knows no tools.
func (s *Server) SetOld(old bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old = old
}

// ToolClient returns a client of the tools that the sidecar serves to the agent.
func (w *World) ToolClient() toolclient.Client {
	return toolclient.Client{Socket: filepath.Join(w.RunDir, socket.Name), Name: "test", Version: "test"}
}

// CallTool calls one of Clew's tools, as an agent does. failed says that the answer is a refusal.
func (w *World) CallTool(name string, arguments any) (text string, failed bool) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	result, err := w.ToolClient().Call(ctx, name, arguments)
	if err != nil {
		w.T.Fatalf("call the tool %s: %v", name, err)
	}
	return toolclient.TextOf(result), result.IsError
}
