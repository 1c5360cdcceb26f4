package tools_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/tools"
)

// Some models write null for what they leave out.
func TestAnArgumentThatIsNullIsLeftOut(t *testing.T) {
	a := text("done")
	session := connect(t, newServer(a, append(v1alpha1.DefaultTools(), v1alpha1.SupervisorTools()...)...))
	for _, c := range [][2]string{
		{"diff", `{"from":null,"to":3,"path":null}`},
		{"diff", `null`},
		{"checkpoints", `{"limit":null,"before":null}`},
		{"checkpoint", `{"message":"null and void"}`},
	} {
		if result := callTool(t, session, c[0], json.RawMessage(c[1])); result.IsError {
			t.Errorf("%s with %s answered %q", c[0], c[1], textOf(result))
		}
	}
	callTool(t, session, "task_create", json.RawMessage(`{"name":"a","prompt":"Do it.","depends_on":null,"start_from":null,"call_id":null}`))
	callTool(t, session, "task_create", json.RawMessage(`{"name":"a","prompt":"Do it."}`))
	if len(a.called) != 2 || string(a.called[0].Arguments) != string(a.called[1].Arguments) {
		t.Errorf("an argument that is null makes another call: %s", calledWith(a.called))
	}
	if result := callTool(t, session, "checkpoint", json.RawMessage(`{"message":null}`)); !result.IsError || !strings.Contains(textOf(result), "message") {
		t.Errorf("without what it needs, checkpoint answered %q", textOf(result))
	}
}

func calledWith(calls []tools.Call) (all []string) {
	for _, c := range calls {
		all = append(all, string(c.Arguments))
	}
	return all
}
