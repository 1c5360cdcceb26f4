package sidecar_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// answers is the answer to every call.
func answers(text string) func(*daemonv1.CallToolRequest) *daemonv1.CallToolResponse {
	return func(*daemonv1.CallToolRequest) *daemonv1.CallToolResponse {
		return &daemonv1.CallToolResponse{Text: text, Data: []byte(`{"known":true}`)}
	}
}

// supervisor is a task with a supervisor's tools, prepared and not started.
func supervisor(t *testing.T, answer func(*daemonv1.CallToolRequest) *daemonv1.CallToolResponse, change ...func(*daemontest.World)) *daemontest.World {
	t.Helper()
	w := daemontest.NewWorld(t, nil)
	w.Tools = slices.Concat(v1alpha1.DefaultTools(), v1alpha1.SupervisorTools())
	for _, c := range change {
		c(w)
	}
	w.Server.AnswerCalls(answer)
	w.Prepare(1, nil)
	return w
}

// steer is supervisor, with its agent at work.
func steer(t *testing.T, answer func(*daemonv1.CallToolRequest) *daemonv1.CallToolResponse, change ...func(*daemontest.World)) (*daemontest.World, *daemontest.Shim) {
	t.Helper()
	w := supervisor(t, answer, change...)
	d := w.Start(1)
	t.Cleanup(d.End)
	return w, w.Dial("s")
}

// stop calls task_stop about the task a.
func stop(t *testing.T, w *daemontest.World, want string) {
	t.Helper()
	text, failed := w.CallTool("task_stop", args{"task": "a"})
	expectAnswer(t, text, failed, want)
}

// shows has the agent show the result of a tool.
func shows(a *daemontest.Shim, id, result string) {
	line, _ := json.Marshal(map[string]string{"type": "tool_result", "id": id, "output": result})
	a.Say(fmt.Sprintf(`{"type":"tool_call","id":%q,"name":"task_stop","input":{"task":"a"}}`, id), string(line))
	a.Recorded()
}

// expectCalls compares the calls that the server has carried out.
func expectCalls(t *testing.T, w *daemontest.World, want ...string) {
	t.Helper()
	var got []string
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, c := range k.Calls {
			got = append(got, c.Tool+" "+c.Arguments)
		}
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls that were carried out (-want +got):\n%s", diff)
	}
}

// expectTimeline waits until the timeline has as many calls of tools, and compares them.
func expectTimeline(t *testing.T, w *daemontest.World, want ...string) {
	t.Helper()
	w.Server.Until(t, "the calls are in the timeline", w.UID, func(k *daemontest.Task) bool { return len(events(k, "ToolCalled")) >= len(want) })
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		if diff := cmp.Diff(want, events(k, "ToolCalled")); diff != "" {
			t.Errorf("timeline (-want +got):\n%s", diff)
		}
	})
}

const (
	stopsA       = `task_stop {"task":"a"}`
	stoppedA     = "the agent called task_stop (a): Task a is being stopped."
	notDelivered = " (the agent has not got this answer)"
)

// The event stands right behind the result in which the agent shows the answer.
func TestACallThatTheAgentHasTheAnswerOfIsAnotherOneWhenRepeated(t *testing.T) {
	w, a := steer(t, answers("Task a is being stopped."))
	stop(t, w, "Task a is being stopped.\n[call id-1]")
	shows(a, "1", "Task a is being stopped.\n[call id-1]")
	expectTimeline(t, w, stoppedA)
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		i := slices.IndexFunc(k.Records, func(r *daemonv1.Record) bool { return r.GetMessage().GetToolResult() != nil })
		want := map[string]string{"tool": "task_stop", "task": "a", "outcome": "Done", "call": "id-1", "delivered": "id-1"}
		if diff := cmp.Diff(want, k.Records[i+1].GetEvent().GetDetails()); diff != "" {
			t.Errorf("details of the event behind the result (-want +got):\n%s", diff)
		}
	})
	stop(t, w, "[call id-2]")
	expectCalls(t, w, stopsA, stopsA)
}

// The server is told with the next call, if it does not have the record yet.
func TestTheNextCallSaysWhatWasDelivered(t *testing.T) {
	w, a := steer(t, answers("Task a is being stopped."))
	stop(t, w, "[call id-1]")
	w.Server.Refuse(connect.NewError(connect.CodeUnavailable, errors.New("busy")))
	defer w.Server.Refuse(nil)
	shows(a, "1", "Task a is being stopped.\n[call id-1]")
	stop(t, w, "[call id-2]")
	expectCalls(t, w, stopsA, stopsA)
}

func TestACallThatAKilledAgentRepeatsTakesEffectOnce(t *testing.T) {
	w := supervisor(t, answers("Task a is being stopped."))
	d := w.Start(1)
	a := w.Dial("s")
	stop(t, w, "[call id-1]")
	stop(t, w, "[call id-1]")
	a.Send(wire.TypeExit, wire.Exit{Code: 137})
	a.Next(wire.TypeRelease)
	d.End()
	expectTimeline(t, w, stoppedA+notDelivered)

	w.Prepare(2, nil)
	d = w.Start(2)
	defer d.End()
	a = w.Dial("t")
	stop(t, w, "[call id-1]")
	expectCalls(t, w, stopsA)
	shows(a, "1", "Task a is being stopped.\n[call id-1]")
	expectTimeline(t, w, stoppedA+notDelivered, stoppedA)
}

// wished returns what the newest call that the server has wishes.
func wished(w *daemontest.World) (id string) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { id = k.Calls[len(k.Calls)-1].Wish })
	return id
}

// The server makes the id of a call from that of the wish. So a call that it has lost has the same one
// when it is repeated, and is not carried out twice.
func TestACallThatTheServerHasLostIsTheSameWhenRepeated(t *testing.T) {
	w := supervisor(t, answers("Task a is being stopped."))
	d := w.Start(1)
	a := w.Dial("s")
	stop(t, w, "[call id-1]")
	first := wished(w)
	if first == "" {
		t.Fatal("the call has no id of a wish")
	}
	w.CallTool("task_stop", args{"task": "b"})
	if wished(w) == first {
		t.Error("another call has the same one")
	}
	w.Server.LoseCalls(w.UID)
	stop(t, w, "[call id-1]")
	if again := wished(w); again != first {
		t.Errorf("the repeated call wishes %s, want %s", again, first)
	}
	a.Send(wire.TypeExit, wire.Exit{Code: 137})
	a.Next(wire.TypeRelease)
	d.End()

	w.Prepare(2, nil)
	w.Server.LoseCalls(w.UID)
	d = w.Start(2)
	defer d.End()
	a = w.Dial("t")
	stop(t, w, "[call id-1]")
	if again := wished(w); again != first {
		t.Errorf("in the next attempt the repeated call wishes %s, want %s", again, first)
	}
	shows(a, "1", "Task a is being stopped.\n[call id-1]")
	stop(t, w, "[call id-2]")
	if wished(w) == first {
		t.Error("a call that is made again after its answer has reached the agent is the same one")
	}
}

// An id that the agent gives says what it wishes itself, and a call that only reads is asked again.
func TestWhichCallsHaveNoIdOfAWish(t *testing.T) {
	w := supervisor(t, answers("done"))
	defer w.Start(1).End()
	w.Dial("s")
	w.CallTool("task_stop", args{"task": "a", "call_id": "mine"})
	if id := wished(w); id != "" {
		t.Errorf("a call with an id of the agent's wishes %s", id)
	}
}

// A pod that was killed leaves its calls to the next one's prepare.
func TestACallOfAKilledPodIsInTheTimeline(t *testing.T) {
	w := supervisor(t, answers("Task a is being stopped."))
	d := w.Start(1)
	w.Dial("s")
	stop(t, w, "[call id-1]")
	killed := w.CopyVolume()
	killed.Prepare(2, nil)
	expectTimeline(t, killed, stoppedA+notDelivered)
	d.End()
}

func TestAnAgentThatHasCompletedItsTurnHasAllAnswers(t *testing.T) {
	w := supervisor(t, answers("Task a is being stopped."))
	d := w.Start(1)
	a := w.Dial("s")
	stop(t, w, "[call id-1]")
	a.Send(wire.TypeExit, wire.Exit{Code: 0})
	a.Next(wire.TypeRelease)
	d.End()
	expectTimeline(t, w, stoppedA)
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		if !k.Calls[0].Delivered {
			t.Error("the answer is still taken for one that the agent may lack")
		}
	})
}

func TestACallThatTakesLongIsAnsweredWhenItIsRepeated(t *testing.T) {
	var ready atomic.Bool
	w, a := steer(t, func(*daemonv1.CallToolRequest) *daemonv1.CallToolResponse {
		return &daemonv1.CallToolResponse{Pending: !ready.Load(), Text: "Task a is being stopped."}
	}, func(w *daemontest.World) { w.CallWait = time.Second })
	stop(t, w, "goes on meanwhile. Call task_stop again with the same arguments")
	ready.Store(true)
	stop(t, w, "[call id-1]")
	expectCalls(t, w, stopsA)
	expectTimeline(t, w)
	a.Send(wire.TypeExit, wire.Exit{Code: 0})
	a.Next(wire.TypeRelease)
	expectTimeline(t, w, stoppedA)
}

// Within the time of a call, it is asked for by the daemon.
func TestAnAnswerIsAwaited(t *testing.T) {
	var asked atomic.Int64
	w, _ := steer(t, func(*daemonv1.CallToolRequest) *daemonv1.CallToolResponse {
		return &daemonv1.CallToolResponse{Pending: asked.Add(1) < 3, Text: "Task a is being stopped."}
	})
	stop(t, w, "[call id-1]")
	expectCalls(t, w, stopsA)
}

func TestAnAgentIsToldWhyItsCallHasNoAnswer(t *testing.T) {
	w, _ := steer(t, answers("done"), func(w *daemontest.World) { w.CallWait = time.Second })
	w.Server.SetOld(true)
	text, failed := w.CallTool("task_stop", args{"task": "a"})
	expectRefusal(t, text, failed, "Nothing was done: Clew's server is of an older version, which does not know the tools of a supervisor.")
	w.Server.SetOld(false)
	w.Server.SetDown(true)
	text, failed = w.CallTool("task_stop", args{"task": "a"})
	expectRefusal(t, text, failed, "it is not known whether the call has taken effect")
	expectRefusal(t, text, failed, "It takes effect once, however often you do.")
	text, failed = w.CallTool("task_list", args{})
	expectRefusal(t, text, failed, "Nothing is lost, and your tasks go on.")
	w.Server.SetDown(false)
	stop(t, w, "[call id-1]")
}

// A refusal has done nothing, so that a call that is repeated may be carried out.
func TestARefusedCallMayBeMadeAgain(t *testing.T) {
	var refused atomic.Bool
	refused.Store(true)
	w, _ := steer(t, func(*daemonv1.CallToolRequest) *daemonv1.CallToolResponse {
		return &daemonv1.CallToolResponse{Refused: refused.Load(), Text: "Task a is of somebody else."}
	})
	text, failed := w.CallTool("task_stop", args{"task": "a"})
	if !failed || text != "Task a is of somebody else." {
		t.Errorf("the refusal is %q (failed: %v)", text, failed)
	}
	refused.Store(false)
	stop(t, w, "[call id-2]")
	expectCalls(t, w, stopsA, stopsA)
	expectTimeline(t, w, "the agent called task_stop (a) and was refused: Task a is of somebody else.")
}

func TestACallWithAnIDTakesEffectOnceForEver(t *testing.T) {
	w, a := steer(t, answers("Task a is being stopped."))
	for range 2 {
		text, failed := w.CallTool("task_stop", args{"task": "a", "call_id": "once"})
		expectAnswer(t, text, failed, "[call id-1]")
		shows(a, "1", text)
	}
	expectCalls(t, w, stopsA)
}

// Calls that change nothing are entries as well, and have no id.
func TestEveryCallOfASupervisorIsAnEntryOfTheTimeline(t *testing.T) {
	w := supervisor(t, answers("Task a runs.\nTask b has completed."))
	d := w.Start(1)
	a := w.Dial("s")
	text, failed := w.CallTool("task_wait", args{"tasks": []string{"a", "b"}})
	if failed || text != "Task a runs.\nTask b has completed." {
		t.Errorf("the answer is %q (failed: %v)", text, failed)
	}
	w.CallTool("task_list", args{})
	call(t, w, nil, "checkpoints", args{})
	a.Send(wire.TypeExit, wire.Exit{Code: 0})
	a.Next(wire.TypeRelease)
	d.End()
	expectTimeline(t, w, "the agent called task_wait (a, b): Task a runs.", "the agent called task_list: Task a runs.", "in this attempt, the agent called checkpoints (1)")
	expectCalls(t, w)
}

func TestNoSecretLeavesThePodWithACall(t *testing.T) {
	const key = "sk-canary-0123456789"
	w, _ := steer(t, answers("Task a starts with "+key+"."), func(w *daemontest.World) { w.Mask = mask.New([]byte(key)) })
	text, failed := w.CallTool("task_create", args{"name": "a", "prompt": "Log in with \"" + key + "\"."})
	expectAnswer(t, text, failed, "Task a starts with [masked].")
	expectCalls(t, w, `task_create {"name":"a","prompt":"Log in with \"[masked]\"."}`)
	if strings.Contains(text, key) {
		t.Errorf("the answer is %q", text)
	}
}
