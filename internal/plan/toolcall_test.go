package plan

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/toolcall"
)

// call is a call of an agent's whose supervisor is lead, with the children a and b, which its agent has
// made, and c, which somebody has applied.
type call struct {
	*testing.T
	ObservedCall
}

// newCall returns a call with arguments as the daemon sends them.
func newCall(t *testing.T, tool v1alpha1.AgentTool, arguments string) *call {
	t.Helper()
	canonical, err := toolcall.Canonical([]byte(arguments))
	if err != nil {
		t.Fatal(err)
	}
	c := &call{T: t, ObservedCall: ObservedCall{
		Call:  history.ToolCall{ID: "one", Tool: string(tool), Arguments: canonical},
		Task:  leading("lead", v1alpha1.PhasePlan, func(t *v1alpha1.Task) { t.Spec.Publish = &v1alpha1.Publish{Branch: "work"} }),
		Taken: map[string]*v1alpha1.Task{}, Latest: map[string]int64{"self": 4, "a": 3, "b": 0, "c": 1}, Children: 3, Members: 4, Stamped: true,
	}}
	c.Named = map[string]*v1alpha1.Task{"a": c.child("a", "task:lead"), "b": c.child("b", "task:lead"), "c": c.child("c", "argocd")}
	if c.Wish, err = ReadWish(c.Call); err != nil {
		t.Fatal(err)
	}
	return c
}

// child returns a child of lead that a field manager has made, and that works.
func (c *call) child(name, by string) *v1alpha1.Task {
	task := builders.Task("lead-"+name, builders.WithUID("uid-"+name), childOf("lead"))
	task.Status.Parent = &v1alpha1.ParentStatus{Name: "lead", UID: string(c.Task.UID), Depth: 1}
	task.Status.ObservedGeneration = task.Generation
	owns(task, by, `{"f:spec":{"f:parentRef":{"f:name":{}},"f:operatingMode":{}}}`)
	return inState(task, metav1.ConditionUnknown, v1alpha1.ReasonRunning)
}

// owns makes a field manager the owner of fields, and the one that wrote last.
func owns(object metav1.Object, manager, fields string) {
	at := metav1.Unix(int64(len(object.GetManagedFields())), 0)
	object.SetManagedFields(append(object.GetManagedFields(), metav1.ManagedFieldsEntry{Manager: manager, Time: &at, FieldsV1: metav1.NewFieldsV1(fields)}))
}

// wantAnswer decides, and fails unless the answer has these words.
func (c *call) wantAnswer(words ...string) toolcall.Answer {
	c.Helper()
	return c.want(false, words...)
}

// In an older copy of the history, a call may wait that was answered, or taken back, since.
func TestACallOfAnOlderCopyOfTheHistoryWaits(t *testing.T) {
	c := newCall(t, v1alpha1.ToolTaskCreate, `{"name":"w","prompt":"Write."}`)
	c.Behind = true
	if p := DecideCall(c.ObservedCall); p.Answer != nil || writes(p) {
		t.Errorf("the plan is %s, want none", show(p))
	}
	c.Behind = false
	if p := DecideCall(c.ObservedCall); p.CreateTask == nil {
		t.Errorf("the plan is %s, want a new task", show(p))
	}
}

func TestACallIsRefusedThatWasTakenBack(t *testing.T) {
	done := func(state v1alpha1.OperationState, attempt int64) *v1alpha1.OperationStatus {
		return &v1alpha1.OperationStatus{ID: "back", State: state, Attempt: attempt, Scope: v1alpha1.RewindBoth, ToCheckpoint: 1}
	}
	for name, become := range map[string]struct {
		status v1alpha1.TaskStatus
		over   bool
	}{
		"by a later rewind":              {v1alpha1.TaskStatus{Rewind: done(v1alpha1.OperationCompleted, 3)}, true},
		"by a later resume":              {v1alpha1.TaskStatus{Resume: done(v1alpha1.OperationCompleted, 3)}, true},
		"not by one that failed":         {v1alpha1.TaskStatus{Rewind: done(v1alpha1.OperationFailed, 3)}, false},
		"not by one of its own attempt":  {v1alpha1.TaskStatus{Rewind: done(v1alpha1.OperationCompleted, 2)}, false},
		"not by one of the files":        {v1alpha1.TaskStatus{Rewind: &v1alpha1.OperationStatus{State: v1alpha1.OperationCompleted, Attempt: 3, Scope: v1alpha1.RewindCode}}, false},
		"not by one that only continues": {v1alpha1.TaskStatus{Resume: &v1alpha1.OperationStatus{State: v1alpha1.OperationCompleted, Attempt: 3}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(t, v1alpha1.ToolTaskCreate, `{"name":"w","prompt":"Write."}`)
			c.Call.Attempt = 2
			c.Task.Status.Rewind, c.Task.Status.Resume = become.status.Rewind, become.status.Resume
			if become.over {
				c.wantRefusal("is taken back")
			} else if p := DecideCall(c.ObservedCall); p.CreateTask == nil {
				t.Errorf("the plan is %s, want a new task", show(p))
			}
		})
	}
}

// What is about to be taken back makes nothing any more.
func TestACallWaitsThatIsBeingTakenBack(t *testing.T) {
	op := func(state v1alpha1.OperationState, scope v1alpha1.RewindScope, to, attempt, movedIn int64) *v1alpha1.OperationStatus {
		return &v1alpha1.OperationStatus{ID: "back", State: state, Attempt: attempt, MovedIn: movedIn, Scope: scope, ToCheckpoint: to}
	}
	const begun = v1alpha1.OperationInProgress
	for name, become := range map[string]struct {
		status v1alpha1.TaskStatus
		waits  bool
	}{
		"by a resume while its agent is stopped":        {v1alpha1.TaskStatus{Resume: op(begun, "", 2, 0, 0)}, true},
		"by a resume that the next attempt carries out": {v1alpha1.TaskStatus{Resume: op(begun, "", 2, 3, 0)}, true},
		"by a rewind while its agent is stopped":        {v1alpha1.TaskStatus{Rewind: op(begun, v1alpha1.RewindBoth, 2, 0, 0)}, true},
		"not by one of its own attempt":                 {v1alpha1.TaskStatus{Rewind: op(begun, v1alpha1.RewindBoth, 2, 2, 0)}, false},
		"not by one that a later attempt reports":       {v1alpha1.TaskStatus{Rewind: op(begun, v1alpha1.RewindBoth, 2, 3, 2)}, false},
		"not by one that waits itself":                  {v1alpha1.TaskStatus{Rewind: op(v1alpha1.OperationPending, v1alpha1.RewindBoth, 2, 0, 0)}, false},
		"not by one of the files":                       {v1alpha1.TaskStatus{Rewind: op(begun, v1alpha1.RewindCode, 2, 0, 0)}, false},
		"not by a resume that only continues":           {v1alpha1.TaskStatus{Resume: op(begun, "", 0, 0, 0)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(t, v1alpha1.ToolTaskCreate, `{"name":"w","prompt":"Write."}`)
			c.Call.Attempt = 2
			c.Task.Status.Rewind, c.Task.Status.Resume = become.status.Rewind, become.status.Resume
			p := DecideCall(c.ObservedCall)
			if p.Answer != nil || writes(p) == become.waits {
				t.Errorf("the plan is %s, want it to wait: %v", show(p), become.waits)
			}
		})
	}
}

// wantRefusal decides, and fails unless it refuses with these words.
func (c *call) wantRefusal(words ...string) {
	c.Helper()
	c.want(true, words...)
}

func (c *call) want(refused bool, words ...string) toolcall.Answer {
	c.Helper()
	p := DecideCall(c.ObservedCall)
	if p.Answer == nil || p.Answer.Refused != refused || writes(p) {
		c.Fatalf("the plan is %s, want an answer, refused: %v", show(p), refused)
	}
	for _, w := range words {
		if !strings.Contains(p.Answer.Text, w) {
			c.Errorf("the answer is %q, want %q in it", p.Answer.Text, w)
		}
	}
	return *p.Answer
}

// wantWait decides, and fails unless the call has neither a write nor an answer.
func (c *call) wantWait() {
	c.Helper()
	if p := DecideCall(c.ObservedCall); p.Answer != nil || writes(p) || p.Phase != nil {
		c.Errorf("the plan is %s, want none", show(p))
	}
}

// writes reports whether a plan has a write.
func writes(p CallPlan) bool {
	return p.Note != "" || p.CreateTask != nil || p.CreateFork != nil || p.ChangeTask != nil || p.ChangeCheckpoint != nil
}

func show(p CallPlan) string {
	text, _ := json.Marshal(p)
	return string(text)
}

// decide decides, and once more if something is to be noted first.
func (c *call) decide() CallPlan {
	c.Helper()
	p := DecideCall(c.ObservedCall)
	if p.Note == "" {
		return p
	}
	if writes(CallPlan{CreateTask: p.CreateTask, CreateFork: p.CreateFork, ChangeTask: p.ChangeTask, ChangeCheckpoint: p.ChangeCheckpoint}) {
		c.Fatalf("the plan is %s, with two writes", show(p))
	}
	c.Call.Noted = p.Note
	return DecideCall(c.ObservedCall)
}

// changed decides, and returns how a task is to be changed.
func (c *call) changed() *v1alpha1.Task {
	c.Helper()
	p := c.decide()
	if p.ChangeTask == nil || p.Answer != nil {
		c.Fatalf("the plan is %s, want a change of a task", show(p))
	}
	return p.ChangeTask.To
}

func TestWhoMayCall(t *testing.T) {
	for name, test := range map[string]struct {
		become func(c *call)
		words  string
	}{
		"one that is gone":          {func(c *call) { c.Task = nil }, "is gone"},
		"one that is being deleted": {func(c *call) { c.Task.DeletionTimestamp = ptr.To(metav1.Now()) }, "being deleted"},
		"a worker":                  {func(c *call) { c.Task.Spec.Role = v1alpha1.RoleWorker }, "only a supervisor has this tool"},
		"one without the tool":      {func(c *call) { c.Task.Spec.Tools = []v1alpha1.AgentTool{"diff"} }, "the task lead does not have this tool, as its spec.tools says"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(t, v1alpha1.ToolTaskStop, `{"task":"a"}`)
			test.become(c)
			c.wantRefusal(test.words)
		})
	}
}

func TestAWishThatIsNone(t *testing.T) {
	for name, c := range map[string]struct{ tool, arguments, words string }{
		"another tool":         {"task_paint", `{}`, "does not know the tool"},
		"an unknown field":     {"task_stop", `{"task":"a","template":{}}`, "the arguments are not those of task_stop"},
		"a number as a name":   {"task_stop", `{"task":1}`, "correct them, and call it again"},
		"two at once":          {"task_stop", `{"task":"a"}{}`, "something follows them"},
		"33 tasks to wait for": {"task_create", `{"depends_on":["` + strings.Repeat(`a","`, 32) + `a"]}`, "the call names 33 tasks in depends_on, and 32 are possible"},
		"17 ways":              {"task_fork", `{"variants":[` + strings.Repeat(`{},`, 16) + `{}]}`, "the fork has 17 variants, and 16 are possible"},
		"nothing":              {"task_stop", ``, "the arguments are not those of task_stop"},
	} {
		_, err := ReadWish(history.ToolCall{Tool: c.tool, Arguments: []byte(c.arguments)})
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want %q in it", name, err, c.words)
		}
	}
}

func TestWhatHasToBeKnownOfAWish(t *testing.T) {
	for arguments, c := range map[string]struct {
		tool                    v1alpha1.AgentTool
		names, sources, objects []string
	}{
		`{"name":"d","prompt":"p","depends_on":["b","a","b"],"start_from":"self"}`: {"task_create", []string{"b", "a"}, []string{"self"}, []string{"d", "lead-d"}},
		`{"name":"d","prompt":"p","start_from":"a"}`:                               {"task_create", []string{"a"}, []string{"a"}, []string{"d", "lead-d"}},
		`{"name":"d","prompt":"p"}`:                                                {"task_create", nil, nil, []string{"d", "lead-d"}},
		`{"task":"a","name":"ways","variants":[{"name":"x"},{"name":"y"}]}`:        {"task_fork", []string{"a"}, []string{"a"}, []string{"x", "lead-x", "y", "lead-y"}},
		`{"name":"../d","prompt":"p","depends_on":["","self"]}`:                    {"task_create", nil, nil, nil},
		`{"task":"a","checkpoint":2}`:                                              {"task_rewind", []string{"a"}, []string{"a"}, nil},
		`{"task":"a"}`:                                                             {"task_resume", []string{"a"}, nil, nil},
		`{}`:                                                                       {"publish", nil, []string{"self"}, nil},
		`{"phase":"Plan"}`:                                                         {"phase_set", nil, nil, nil},
	} {
		got := newCall(t, c.tool, arguments)
		if fmt.Sprint(got.Wish.Names(), got.Wish.Sources(), got.NewNames()) != fmt.Sprint(c.names, c.sources, c.objects) {
			t.Errorf("%s %s: %v, %v, %v; want %v, %v, %v", c.tool, arguments, got.Wish.Names(), got.Wish.Sources(), got.NewNames(), c.names, c.sources, c.objects)
		}
	}
}

func TestWhatTheTimelineSaysOfACall(t *testing.T) {
	made := history.ToolCall{Tool: "task_create"}
	if got := CallMessage(made, toolcall.Answer{Text: "the task a was made"}); got != "task_create: the task a was made" {
		t.Error(got)
	}
	if got := CallMessage(made, toolcall.Answer{Refused: true, Text: strings.Repeat("x", 5000)}); !strings.HasPrefix(got, "task_create was refused: x") || len([]rune(got)) > 1024 {
		t.Error(got)
	}
}

func TestAnAnswerIsSaidInSentences(t *testing.T) {
	for text, want := range map[string]string{
		"the task a was made": "The task a was made.", "it has stopped: wait.": "It has stopped: wait.", "über alles": "Über alles.",
	} {
		if got := Spoken(toolcall.Answer{Refused: true, Text: text}); got.Text != want || !got.Refused {
			t.Errorf("%q is said as %q, want %q", text, got.Text, want)
		}
	}
}

func TestMovingTheContract(t *testing.T) {
	c := newCall(t, v1alpha1.ToolPhaseSet, `{"phase":"Execute"}`)
	if p := DecideCall(c.ObservedCall); p.Phase == nil || *p.Phase != (PhaseCall{ID: "one", Phase: "Execute"}) || p.Answer != nil {
		t.Fatalf("the plan is %s", show(p))
	}
	c.Task.Status.Contract.HandledCalls = []string{"one"}
	c.Task.Status.Contract.Phase = "Review" // by a person, since
	c.wantAnswer("the contract port is in phase Review")

	c.Task.Status.Contract.RefusedCalls = []v1alpha1.RefusedPhaseCall{{ID: "one", Message: "the gitstore has no room"}}
	c.wantRefusal("the contract port stays in phase", "the gitstore has no room", "call phase_set again later")

	newCall(t, v1alpha1.ToolPhaseSet, `{"phase":"Plan"}`).wantAnswer("the contract port is in phase Plan")
	newCall(t, v1alpha1.ToolPhaseSet, `{"phase":"Deploy"}`).wantRefusal(`no phase "Deploy"`, "Research, Specify, Plan, Execute, Review")
	c = newCall(t, v1alpha1.ToolPhaseSet, `{"phase":"Execute"}`)
	c.Task.Status.Contract = nil
	c.wantWait()
}
