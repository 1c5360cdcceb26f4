package agentstate_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/agentstate"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

func TestStatesReadBack(t *testing.T) {
	session := &daemonv1.AgentSession{Agent: "Codex", Id: "t-1"}
	for _, s := range []agentstate.State{
		{}, {Produced: true}, {Session: session}, {Produced: true, Session: session},
		{Session: session, Outcome: agent.Outcome{Done: true, Failure: &agent.Failure{Cause: agent.CauseRateLimited, Message: "ü", RetryAfter: 5}}},
		{Produced: true, Begun: []agentstate.Call{{Key: "k", ID: "c", Name: "bash", Input: "{}"}}},
		{Answered: []agentstate.Answered{{ID: "7", Message: "the agent called task_stop", Details: map[string]string{"tool": "task_stop"}}}},
	} {
		if d := cmp.Diff(s, agentstate.Decode(s.Encode()), protocmp.Transform()); d != "" {
			t.Errorf("state (-want +got):\n%s", d)
		}
	}
	if s := agentstate.Decode("\x02{"); s.Produced || s.Session != nil {
		t.Errorf("an unreadable state decodes as %+v", s)
	}
}

// The first releases wrote these states.
func TestOldStatesAreRead(t *testing.T) {
	session, _ := proto.Marshal(&daemonv1.AgentSession{Id: "s-1"})
	for text, want := range map[string]bool{"\x01": true, "\x00" + string(session): false, "\x01" + string(session): true} {
		s := agentstate.Decode(text)
		if s.Produced != want || (len(text) > 1) != (s.Session.GetId() == "s-1") {
			t.Errorf("%q: %+v", text, s)
		}
	}
}

func TestBegunCallsAreForgottenWhenTheOutputReportsThem(t *testing.T) {
	call := func(id, name string) *daemonv1.Message {
		return &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, ToolCall: &daemonv1.ToolCall{Id: id, Name: name}}
	}
	said := &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, Text: "Next."}
	begun := []agentstate.Call{{ID: "c-1", Name: "bash"}, {ID: "made-up", Unnamed: true, Name: "command_execution"}}
	for _, tt := range []struct {
		name string
		m    *daemonv1.Message
		left int
	}{
		{"the same id", call("c-1", "bash"), 1},
		{"another id of a call that has one", call("c-2", "bash"), 2},
		{"the name of a call without an id", call("t/1/item_0", "command_execution"), 1},
		{"a text: the agent continued", said, 1},
		{"a result", &daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, ToolResult: &daemonv1.ToolResult{CallId: "c-9"}}, 2},
	} {
		s := agentstate.State{Begun: begun}
		s.Recorded(tt.m)
		if len(s.Begun) != tt.left {
			t.Errorf("%s: %d calls are left of %+v, want %d", tt.name, len(s.Begun), begun, tt.left)
		}
		if !s.Produced {
			t.Errorf("%s: the agent has said nothing", tt.name)
		}
		if len(begun) != 2 {
			t.Fatalf("%s: the state that was copied has changed: %+v", tt.name, begun)
		}
	}
}
