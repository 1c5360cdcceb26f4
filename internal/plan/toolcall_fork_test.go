package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

const twoWays = `{"task":"a","name":"ways","variants":[{"name":"x","prompt":"One way."},{"name":"y"}]}`

// What a person owns of a child who has given it a Secret, raised its budget, or resumed it.
const (
	withSecret = `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"agent\"}":{"f:envFrom":{}}}}}}}`
	withBudget = `{"f:spec":{"f:budget":{".":{},"f:costMicroUSD":{}}}}`
	withResume = `{"f:metadata":{"f:labels":{"f:team":{}}},"f:spec":{"f:operatingMode":{},"f:resume":{".":{},"f:id":{}}}}`
)

// newFork decides, and returns the Fork to create.
func (c *call) newFork() *v1alpha1.Fork {
	c.Helper()
	p := DecideCall(c.ObservedCall)
	if p.CreateFork == nil || p.Answer != nil {
		c.Fatalf("the plan is %s, want a new Fork", show(p))
	}
	return p.CreateFork
}

func TestAForkOfAChildMakesChildren(t *testing.T) {
	c := newCall(t, v1alpha1.ToolTaskFork, twoWays)
	f := c.newFork()
	want := v1alpha1.ForkSpec{
		SourceRef: v1alpha1.NameReference{Name: "lead-a"}, TaskUID: "uid-a", At: &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](3)},
		Conversation: v1alpha1.ConversationInclude, RequestedBy: "task:lead",
		Variants: []v1alpha1.ForkVariant{{Name: "lead-x", Prompt: ptr.To("One way.")}, {Name: "lead-y"}},
	}
	if diff := cmp.Diff(want, f.Spec); diff != "" || f.Name != "lead-ways" || f.Namespace != "default" {
		t.Errorf("the Fork %s (-want +got):\n%s", f.Name, diff)
	}
	resumed := newCall(t, v1alpha1.ToolTaskFork, twoWays)
	owns(resumed.Named["a"], "kubectl-clew", withResume)
	resumed.newFork()
	earlier := newCall(t, v1alpha1.ToolTaskFork, strings.Replace(twoWays, `"name":"ways"`, `"name":"ways","checkpoint":1`, 1))
	if at := earlier.newFork().Spec.At; *at.CheckpointNumber != 1 {
		t.Errorf("it is forked from %d", *at.CheckpointNumber)
	}
}

func TestAForkThatIsNotMade(t *testing.T) {
	variants := func(names string) string {
		return `{"task":"a","name":"ways","variants":[` + names + `]}`
	}
	for name, test := range map[string]struct {
		arguments string
		become    func(c *call)
		words     string
	}{
		"of the supervisor itself": {strings.Replace(twoWays, `"task":"a"`, `"task":"self"`, 1), nil, "this tool is about its children"},
		"of one that somebody applied": {strings.Replace(twoWays, `"task":"a"`, `"task":"c"`, 1), nil,
			"the task c was applied by argocd, and a supervisor forks only the tasks that its own tools have made: make a task with task_create, and name c in start_from"},
		"of one that somebody has given a Secret": {twoWays, func(c *call) { owns(c.Named["a"], "kubectl-edit", withSecret) },
			"spec.template of the task a was changed by kubectl-edit, and its forks would have that as well: make a task with task_create, and name a in start_from"},
		"of one whose budget somebody has raised": {twoWays, func(c *call) { owns(c.Named["a"], "kubectl-edit", withBudget) }, "spec.budget of the task a was changed by kubectl-edit"},
		"of one whose owners nobody can read":     {twoWays, func(c *call) { owns(c.Named["a"], "kubectl-edit", "{") }, "of the task a was changed by kubectl-edit"},
		"of a supervisor":                         {twoWays, func(c *call) { c.Named["a"].Spec.Role = v1alpha1.RoleSupervisor }, "the task a is a supervisor, and a supervisor makes workers only"},
		"of nobody":                               {strings.Replace(twoWays, `"task":"a"`, `"task":"x"`, 1), nil, "has no child x"},
		"of one without checkpoints":              {strings.Replace(twoWays, `"task":"a"`, `"task":"b"`, 1), nil, "the task b has no checkpoint yet"},
		"from one that is to come":                {strings.Replace(twoWays, `"name":"ways"`, `"name":"ways","checkpoint":9`, 1), nil, "the newest checkpoint of the task a is 3, and it cannot be forked from checkpoint 9"},
		"into nothing":                            {variants(""), nil, "the fork has no variants: name from 1 to 16"},
		"into two of a name":                      {variants(`{"name":"x"},{"name":"x"}`), nil, "two variants have the name x"},
		"into a bad name":                         {variants(`{"name":"X"}`), nil, "use lower-case letters"},
		"under a long name":                       {strings.Replace(twoWays, "ways", strings.Repeat("w", 59), 1), nil, "use 58 characters at most"},
		"into one that exists":                    {twoWays, func(c *call) { c.Taken["lead-y"] = c.Named["a"] }, "there is a Task lead-y already"},
		"into an ambiguous name":                  {twoWays, func(c *call) { c.Taken["y"] = c.child("y", "argocd"); c.Taken["y"].Name = "y" }, "the name y means another child"},
		"into more than may be":                   {twoWays, func(c *call) { c.Children = 19 }, "has 19 children, and children.maximum allows 20"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(t, v1alpha1.ToolTaskFork, test.arguments)
			if test.become != nil {
				test.become(c)
			}
			c.wantRefusal(test.words)
		})
	}
}

func TestWhatComesOfAFork(t *testing.T) {
	c := newCall(t, v1alpha1.ToolTaskFork, twoWays)
	c.Fork = c.newFork()
	c.Fork.UID = "uid-ways"
	owns(c.Fork, "task:lead", `{"f:spec":{"f:sourceRef":{"f:name":{}}}}`)
	c.Taken["lead-x"], c.Children = c.Named["a"], 20 // it has made one of them
	state := func(status metav1.ConditionStatus, reason, message string) {
		c.Fork.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ForkComplete, Status: status, Reason: reason, Message: message}}
	}
	c.wantWait()
	state(metav1.ConditionFalse, v1alpha1.ReasonCheckpointNotReady, "it is being pushed")
	c.wantWait()
	state(metav1.ConditionFalse, v1alpha1.ReasonTaskExists, "a Task lead-y exists already")
	c.wantAnswer("the Fork lead-ways waits (TaskExists): a Task lead-y exists already")
	state(metav1.ConditionTrue, v1alpha1.ReasonForked, "")
	c.Fork.Status.Source = &v1alpha1.SourceStatus{Checkpoint: 3}
	c.Fork.Status.Tasks = []v1alpha1.ForkedTask{{Name: "lead-x", UID: "uid-x"}, {Name: "lead-y", UID: "uid-y"}}
	got := c.wantAnswer("from checkpoint 3 of the task a go on: x, y")
	if string(got.Data) != `{"task":"a","object":"lead-ways","uid":"uid-ways","tasks":["x","y"],"made":[{"object":"lead-x","uid":"uid-x"},{"object":"lead-y","uid":"uid-y"}],"checkpoint":3}` {
		t.Errorf("the answer for programs is %s", got.Data)
	}

	c.Latest, c.Task.Spec.Children = map[string]int64{"a": 9}, &v1alpha1.Children{Maximum: ptr.To[int32](0)}
	c.wantAnswer("from checkpoint 3 of the task a go on: x, y")
	c.Named["a"] = nil // deleted since
	c.wantAnswer("from checkpoint 3 of the task a go on: x, y")
}

func TestAForkOfAnotherWish(t *testing.T) {
	for name, become := range map[string]func(c *call, f *v1alpha1.Fork){
		"by somebody else":      func(_ *call, f *v1alpha1.Fork) { owns(f, "kubectl", `{"f:spec":{"f:sourceRef":{"f:name":{}}}}`) },
		"of another task":       func(_ *call, f *v1alpha1.Fork) { f.Spec.SourceRef.Name = "lead-b" },
		"of a former task":      func(_ *call, f *v1alpha1.Fork) { f.Spec.TaskUID = "former" },
		"from another moment":   func(_ *call, f *v1alpha1.Fork) { *f.Spec.At.CheckpointNumber = 2 },
		"from no such moment":   func(_ *call, f *v1alpha1.Fork) { f.Spec.At = nil },
		"with other variants":   func(_ *call, f *v1alpha1.Fork) { f.Spec.Variants[1].Name = "lead-z" },
		"with another prompt":   func(_ *call, f *v1alpha1.Fork) { f.Spec.Variants[0].Prompt = nil },
		"with one variant more": func(_ *call, f *v1alpha1.Fork) { f.Spec.Variants = f.Spec.Variants[:1] },
		"that is being deleted": func(_ *call, f *v1alpha1.Fork) { f.DeletionTimestamp = ptr.To(metav1.Now()) },
		"of a former supervisor": func(c *call, f *v1alpha1.Fork) {
			c.Named["a"], c.Task.CreationTimestamp = nil, metav1.Unix(2, 0)
			f.CreationTimestamp = metav1.Unix(1, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(t, v1alpha1.ToolTaskFork, strings.Replace(twoWays, `"name":"ways"`, `"name":"ways","checkpoint":3`, 1))
			c.Fork = c.newFork()
			owns(c.Fork, "task:lead", `{"f:spec":{"f:sourceRef":{"f:name":{}}}}`)
			become(c, c.Fork)
			c.wantRefusal("asks for something else or was applied by somebody")
		})
	}
}
