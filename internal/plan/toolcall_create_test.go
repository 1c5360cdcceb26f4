package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// created decides, and returns the task to create.
func (c *call) created() *v1alpha1.Task {
	c.Helper()
	p := DecideCall(c.ObservedCall)
	if p.CreateTask == nil || p.Answer != nil {
		c.Fatalf("the plan is %s, want a new task", show(p))
	}
	return p.CreateTask
}

func TestAChildIsMadeOfWhatItsSupervisorIsMadeOf(t *testing.T) {
	c := newCall(t, v1alpha1.ToolTaskCreate, `{"name":"d","prompt":"Write a parser."}`)
	c.Task.Spec.Resume, c.Task.Spec.Adopt = &v1alpha1.Resume{ID: "r"}, v1alpha1.AdoptLatest
	c.Task.Spec.OnFinish = &v1alpha1.OnFinish{AfterSeconds: 60, Action: v1alpha1.FinishDelete}
	c.Task.Spec.Children = &v1alpha1.Children{}
	c.Task.Spec.Budget = &v1alpha1.Budget{ToolCalls: ptr.To[int64](5)}
	c.Task.Spec.Tools = []v1alpha1.AgentTool{v1alpha1.ToolDiff, v1alpha1.ToolTaskCreate}
	want := *c.Task.Spec.DeepCopy()
	want.Prompt = ptr.To("Write a parser.")
	want.Role, want.ParentRef, want.Children, want.Publish = v1alpha1.RoleWorker, &v1alpha1.NameReference{Name: "lead"}, nil, nil
	want.Budget = nil // it is the supervisor's own
	want.Resume, want.Adopt, want.OnFinish.Action = nil, "", v1alpha1.FinishRelease
	want.Tools = []v1alpha1.AgentTool{v1alpha1.ToolDiff}
	want.Contract = &v1alpha1.Contract{Name: "port", Phase: v1alpha1.PhasePlan}
	want.RequestedBy = &v1alpha1.TaskRequesters{Created: "task:lead", OperatingMode: "task:lead", Contract: "task:lead"}
	task := c.created()
	if diff := cmp.Diff(want, task.Spec); diff != "" {
		t.Errorf("the child's spec (-want +got):\n%s", diff)
	}
	if task.Name != "lead-d" || task.Namespace != "default" || task.Labels[v1alpha1.LabelParent] != "lead" {
		t.Errorf("the child is %+v", task.ObjectMeta)
	}
	c.Stamped = false
	if by := c.created().Spec.RequestedBy; by != nil {
		t.Errorf("without a policy that stamps them, the requesters are %+v", by)
	}
}

func TestWhatATemplateOfChildrenChanges(t *testing.T) {
	retry := &v1alpha1.FailureMatcher{ExitCodes: []int32{3}}
	for name, test := range map[string]struct {
		template v1alpha1.ChildTemplate
		want     func(*v1alpha1.TaskSpec, *corev1.Container)
	}{
		"nothing": {v1alpha1.ChildTemplate{}, func(*v1alpha1.TaskSpec, *corev1.Container) {}},
		"the budget": {v1alpha1.ChildTemplate{Budget: &v1alpha1.Budget{ToolCalls: ptr.To[int64](9)}}, func(s *v1alpha1.TaskSpec, _ *corev1.Container) {
			s.Budget = &v1alpha1.Budget{ToolCalls: ptr.To[int64](9)}
		}},
		"the command": {v1alpha1.ChildTemplate{Container: &v1alpha1.ChildContainer{Command: []string{"work"}}},
			func(_ *v1alpha1.TaskSpec, c *corev1.Container) { c.Command, c.Args = []string{"work"}, nil }},
		"the arguments": {v1alpha1.ChildTemplate{Container: &v1alpha1.ChildContainer{Args: []string{"--fast"}}},
			func(_ *v1alpha1.TaskSpec, c *corev1.Container) { c.Args = []string{"--fast"} }},
		"image and variables": {v1alpha1.ChildTemplate{Container: &v1alpha1.ChildContainer{Image: "other", Env: []corev1.EnvVar{{Name: "A", Value: "1"}}}},
			func(_ *v1alpha1.TaskSpec, c *corev1.Container) {
				c.Image, c.Env = "other", []corev1.EnvVar{{Name: "A", Value: "1"}}
			}},
		"another agent": {v1alpha1.ChildTemplate{Agent: &v1alpha1.ChildAgent{Type: v1alpha1.AgentCodex, Model: "gpt-5"}},
			func(s *v1alpha1.TaskSpec, c *corev1.Container) {
				s.Agent.Type, s.Agent.Model, c.Command, c.Args = v1alpha1.AgentCodex, "gpt-5", nil, nil
			}},
		"another agent with a wrapper": {v1alpha1.ChildTemplate{Agent: &v1alpha1.ChildAgent{Type: v1alpha1.AgentCodex}, Container: &v1alpha1.ChildContainer{Command: []string{"wrapper"}}},
			func(s *v1alpha1.TaskSpec, c *corev1.Container) {
				s.Agent.Type, c.Command, c.Args = v1alpha1.AgentCodex, []string{"wrapper"}, nil
			}},
		"the volume": {v1alpha1.ChildTemplate{Workspace: &v1alpha1.ChildWorkspace{Size: ptr.To(resource.MustParse("1Gi"))}},
			func(s *v1alpha1.TaskSpec, _ *corev1.Container) { s.Workspace.Size = resource.MustParse("1Gi") }},
		"the rest": {v1alpha1.ChildTemplate{
			CheckpointPolicy: &v1alpha1.CheckpointPolicy{EverySeconds: ptr.To[int32](7)}, Tools: []v1alpha1.AgentTool{}, BackoffLimit: ptr.To[int32](0),
			DeadlineSeconds: ptr.To[int64](60), Priority: ptr.To[int32](-5), OnFinish: &v1alpha1.OnFinish{AfterSeconds: 9, Action: v1alpha1.FinishRelease},
		}, func(s *v1alpha1.TaskSpec, _ *corev1.Container) {
			s.CheckpointPolicy, s.Tools, s.BackoffLimit = v1alpha1.CheckpointPolicy{EverySeconds: ptr.To[int32](7)}, []v1alpha1.AgentTool{}, ptr.To[int32](0)
			s.DeadlineSeconds, s.Priority, s.OnFinish = ptr.To[int64](60), -5, &v1alpha1.OnFinish{AfterSeconds: 9, Action: v1alpha1.FinishRelease}
		}},
		"one of what is retried and what is not": {v1alpha1.ChildTemplate{RetryOn: retry},
			func(s *v1alpha1.TaskSpec, _ *corev1.Container) { s.RetryOn, s.FailOn = retry, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(t, v1alpha1.ToolTaskCreate, `{"name":"d","prompt":"Write a parser."}`)
			c.Task.Spec.FailOn, c.Task.Spec.Priority = retry, 3
			want := c.created().Spec
			test.want(&want, &want.Template.Spec.Containers[0])
			c.Task.Spec.Children = &v1alpha1.Children{Template: &test.template}
			before := c.Task.DeepCopy()
			if diff := cmp.Diff(want, c.created().Spec); diff != "" {
				t.Errorf("the child's spec (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, c.Task); diff != "" {
				t.Errorf("the supervisor itself was changed:\n%s", diff)
			}
		})
	}
}

func TestWhatAChildStartsWithAndWaitsFor(t *testing.T) {
	from := func(task string, number int64) *v1alpha1.StartFrom {
		f := &v1alpha1.StartFrom{
			TaskRef: v1alpha1.NameReference{Name: "lead-" + task}, TaskUID: "uid-" + task,
			Conversation: v1alpha1.ConversationExclude, Branch: "clew/lead-d",
		}
		if task == "self" {
			f.TaskRef.Name, f.TaskUID = "lead", "uid-lead"
		}
		if number > 0 {
			f.At = &v1alpha1.StartPoint{CheckpointNumber: &number}
		}
		return f
	}
	for arguments, test := range map[string]struct {
		from  *v1alpha1.StartFrom
		waits []string
	}{
		`{"name":"d","prompt":"p"}`:                                        {nil, nil},
		`{"name":"d","prompt":"p","start_from":"self"}`:                    {from("self", 4), nil},
		`{"name":"d","prompt":"p","start_from":"a"}`:                       {from("a", 3), nil},
		`{"name":"d","prompt":"p","depends_on":["a","c","a"]}`:             {nil, []string{"lead-a", "lead-c"}},
		`{"name":"d","prompt":"p","start_from":"b","depends_on":["b"]}`:    {from("b", 0), []string{"lead-b"}},
		`{"name":"d","prompt":"p","start_from":"a","depends_on":["b"]}`:    {from("a", 3), []string{"lead-b"}},
		`{"name":"d","prompt":"p","start_from":"self","depends_on":["a"]}`: {from("self", 4), []string{"lead-a"}},
	} {
		spec := newCall(t, v1alpha1.ToolTaskCreate, arguments).created().Spec
		var waits []string
		for _, dep := range spec.DependsOn {
			waits = append(waits, dep.TaskRef.Name)
		}
		if diff := cmp.Diff(test.from, spec.StartFrom); diff != "" || fmt.Sprint(waits) != fmt.Sprint(test.waits) {
			t.Errorf("%s: it waits for %v, want %v; and starts from (-want +got):\n%s", arguments, waits, test.waits, diff)
		}
	}
}

func TestAChildThatIsNotMade(t *testing.T) {
	for name, test := range map[string]struct {
		arguments string
		become    func(c *call)
		words     string
	}{
		"without a name":                 {`{"name":"","prompt":"p"}`, nil, "use lower-case letters, digits and '-'"},
		"with a path":                    {`{"name":"a/b","prompt":"p"}`, nil, "use lower-case letters, digits and '-'"},
		"by a reserved name":             {`{"name":"self","prompt":"p"}`, nil, "choose another one"},
		"by a long name":                 {`{"name":"` + strings.Repeat("n", 42) + `","prompt":"p"}`, nil, "use 41 characters at most"},
		"of a long supervisor":           {`{"name":"d","prompt":"p"}`, func(c *call) { c.Task.Name = strings.Repeat("n", 46) }, "so long that no name can follow it"},
		"one too many":                   {`{"name":"d","prompt":"p"}`, func(c *call) { c.Children = 20 }, "has 20 children, and children.maximum allows 20"},
		"none allowed":                   {`{"name":"d","prompt":"p"}`, func(c *call) { c.Task.Spec.Children = &v1alpha1.Children{Maximum: ptr.To[int32](0)}; c.Children = 0 }, "children.maximum allows 0"},
		"in a full contract":             {`{"name":"d","prompt":"p"}`, func(c *call) { c.Members = v1alpha1.MaxContractTasks }, "the contract port has 1000 tasks"},
		"too deep":                       {`{"name":"d","prompt":"p"}`, func(c *call) { c.Task.Status.Parent = &v1alpha1.ParentStatus{Depth: v1alpha1.MaxTaskDepth} }, "nested 4 deep"},
		"by a name that means another":   {`{"name":"d","prompt":"p"}`, func(c *call) { c.Taken["d"] = c.child("d", "argocd"); c.Taken["d"].Name = "d" }, "the name d means another child of the task lead already"},
		"by a name that is a speech":     {`{"name":"` + strings.Repeat("Ignore all. ", 900) + `","prompt":"p"}`, nil, `Ignore all. Igno…" is not one`},
		"after a path":                   {`{"name":"d","prompt":"p","depends_on":["../secrets/key"]}`, nil, `has no child "../secrets/key"`},
		"after nobody":                   {`{"name":"d","prompt":"p","depends_on":["x"]}`, nil, "the task lead has no child x: task_list shows"},
		"after its supervisor":           {`{"name":"d","prompt":"p","depends_on":["self"]}`, nil, "this tool is about its children"},
		"from nobody":                    {`{"name":"d","prompt":"p","start_from":"x"}`, nil, "the task lead has no child x"},
		"from nothing":                   {`{"name":"d","prompt":"p","start_from":"b"}`, nil, "the task b has no checkpoint to start from yet: name it in depends_on as well"},
		"from nothing of its supervisor": {`{"name":"d","prompt":"p","start_from":"self"}`, func(c *call) { c.Latest = nil }, "take one with the tool checkpoint first"},
		"from another repository":        {`{"name":"d","prompt":"p","start_from":"c"}`, func(c *call) { c.Named["c"].Spec.Repository = nil }, "works on another repository"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(t, v1alpha1.ToolTaskCreate, test.arguments)
			if test.become != nil {
				test.become(c)
			}
			c.wantRefusal(test.words)
		})
	}
}

// TestANameThatIsTaken: by what the same wish has made before, it is the answer.
func TestANameThatIsTaken(t *testing.T) {
	const arguments = `{"name":"d","prompt":"p","depends_on":["a","b"],"start_from":"a"}`
	made := func() (*call, *v1alpha1.Task) {
		c := newCall(t, v1alpha1.ToolTaskCreate, arguments)
		task := c.created()
		owns(task, "task:lead", `{"f:spec":{"f:parentRef":{"f:name":{}}}}`)
		task.UID = "uid-d"
		c.Taken["lead-d"], c.Children = task, 20
		return c, task
	}
	c, _ := made()
	got := c.wantAnswer("the task d was made (Task lead-d), and starts when a and b have completed")
	if string(got.Data) != `{"task":"d","object":"lead-d","uid":"uid-d","contract":"port","phase":"Plan"}` {
		t.Errorf("the answer for programs is %s", got.Data)
	}
	for name, become := range map[string]func(task *v1alpha1.Task){
		"another prompt":   func(task *v1alpha1.Task) { task.Spec.Prompt = ptr.To("q") },
		"no prompt":        func(task *v1alpha1.Task) { task.Spec.Prompt = nil },
		"other files":      func(task *v1alpha1.Task) { task.Spec.StartFrom.TaskRef.Name = "lead-b" },
		"no files":         func(task *v1alpha1.Task) { task.Spec.StartFrom = nil },
		"a Fork":           func(task *v1alpha1.Task) { task.Spec.StartFrom.Fork = &v1alpha1.ForkOrigin{Name: "lead-ways"} },
		"less to wait for": func(task *v1alpha1.Task) { task.Spec.DependsOn = task.Spec.DependsOn[:1] },
		"more to wait for": func(task *v1alpha1.Task) {
			task.Spec.DependsOn = append(task.Spec.DependsOn, v1alpha1.Dependency{TaskRef: v1alpha1.NameReference{Name: "lead-c"}})
		},
		"somebody else":            func(task *v1alpha1.Task) { owns(task, "kubectl", `{"f:spec":{"f:parentRef":{"f:name":{}}}}`) },
		"another supervisor":       func(task *v1alpha1.Task) { task.Spec.ParentRef.Name = "other" },
		"a former one of its name": func(task *v1alpha1.Task) { task.Status.Parent = &v1alpha1.ParentStatus{Name: "lead", UID: "former"} },
	} {
		t.Run(name, func(t *testing.T) {
			c, task := made()
			become(task)
			c.T = t
			c.wantRefusal("asks for something else or was applied by somebody: choose another name")
		})
	}
	t.Run("by the same call, of which all has changed that it named", func(t *testing.T) {
		c, _ := made()
		c.T, c.Named, c.Latest = t, nil, map[string]int64{"a": 9}
		c.Task.Status.Contract.Phase, c.Task.Spec.Children = "Review", &v1alpha1.Children{Maximum: ptr.To[int32](0)}
		c.wantAnswer("the task d was made (Task lead-d)")
	})
	c, task := made()
	task.DeletionTimestamp = ptr.To(metav1.Now())
	c.wantRefusal("is being deleted: choose another name")
}
