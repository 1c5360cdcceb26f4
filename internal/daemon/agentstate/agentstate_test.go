package agentstate_test

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

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
	} {
		got := agentstate.Decode(s.Encode())
		if got.Produced != s.Produced || !proto.Equal(got.Session, s.Session) || !reflect.DeepEqual(got.Outcome, s.Outcome) || !reflect.DeepEqual(got.Begun, s.Begun) {
			t.Errorf("%+v reads back as %+v", s, got)
		}
	}
	if s := agentstate.Decode("\x02{"); s.Produced || s.Session != nil {
		t.Errorf("what cannot be read says %+v", s)
	}
}

// What the first releases wrote.
func TestOldStatesAreRead(t *testing.T) {
	session, _ := proto.Marshal(&daemonv1.AgentSession{Id: "s-1"})
	for text, want := range map[string]bool{"\x01": true, "\x00" + string(session): false, "\x01" + string(session): true} {
		s := agentstate.Decode(text)
		if s.Produced != want || (len(text) > 1) != (s.Session.GetId() == "s-1") {
			t.Errorf("%q: %+v", text, s)
		}
	}
}

func TestBegunCallsAreForgottenWhenTheOutputTellsOfThem(t *testing.T) {
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
		{"a text: the agent went on", said, 1},
		{"a result", &daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, ToolResult: &daemonv1.ToolResult{CallId: "c-9"}}, 2},
	} {
		s := agentstate.State{Begun: begun}
		s.Recorded(tt.m)
		if len(s.Begun) != tt.left || !s.Produced || len(begun) != 2 {
			t.Errorf("%s: %+v", tt.name, s)
		}
	}
}
