package plan

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/toolcall"
)

const (
	// maxTaskName and maxForkName are the lengths of names that the schemas allow.
	maxTaskName, maxForkName = 46, 63
	// maxDependencies is how many tasks one can wait for.
	maxDependencies = 32
)

// create makes a child.
func (d *calling) create(in *toolcall.CreateInput) CallPlan {
	if p := d.nameProblem(in.Name, maxTaskName); p != nil {
		return *p
	}
	name := toolcall.ObjectName(d.lead.Name, in.Name)
	if taken := d.o.Taken[name]; taken != nil {
		return d.takenBy(taken, in)
	}
	if p := d.ambiguous(in.Name); p != nil {
		return *p
	}
	if p := d.noRoom(1); p != nil {
		return *p
	}
	spec, p := d.childSpec(in, name)
	if p != nil {
		return *p
	}
	return CallPlan{CreateTask: &v1alpha1.Task{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.lead.Namespace, Name: name,
			Labels: map[string]string{v1alpha1.LabelParent: d.lead.Name},
		},
		Spec: *spec,
	}}
}

// takenBy answers a call whose name a task has already.
func (d *calling) takenBy(task *v1alpha1.Task, in *toolcall.CreateInput) CallPlan {
	data := d.about(task)
	if c := task.Spec.Contract; c != nil {
		data.Contract, data.Phase = c.Name, c.Phase
	}
	switch {
	case task.DeletionTimestamp != nil:
		return refuse("the Task %s, which had this name, is being deleted: choose another name", task.Name)
	case !d.madeBySame(task, in):
		return refuse("there is a Task %s already, which asks for something else or was applied by somebody: choose another name", task.Name)
	case len(in.DependsOn) > 0:
		return answer(data, "the task %s was made (Task %s), and starts when %s", in.Name, task.Name, haveCompleted(in.DependsOn))
	}
	return answer(data, "the task %s was made (Task %s), and starts when it is its turn", in.Name, task.Name)
}

// ambiguous returns why a new child cannot have a short name: the agent means another one by it; nil if it
// can.
func (d *calling) ambiguous(name string) *CallPlan {
	if !d.hasChild(name) {
		return nil
	}
	p := refuse("the name %s means another child of the task %s already: choose another one", name, d.lead.Name)
	return &p
}

// parentName is the path of the field by which a child is known to have been made by its supervisor's
// agent: it is there from the beginning, and never changes.
func parentName() []any { return []any{"spec", "parentRef", "name"} }

// haveCompleted says what a task waits for.
func haveCompleted(names []string) string {
	if len(names) == 1 {
		return names[0] + " has completed"
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1] + " have completed"
}

// childSpec returns the spec of a child: that of the supervisor, as children.template changes it.
func (d *calling) childSpec(in *toolcall.CreateInput, name string) (*v1alpha1.TaskSpec, *CallPlan) {
	lead := d.lead.Spec.DeepCopy()
	spec := &v1alpha1.TaskSpec{
		Repository: lead.Repository, Prompt: &in.Prompt, Agent: lead.Agent, Tools: workersTools(lead.Tools), Template: lead.Template,
		Workspace: lead.Workspace, OperatingMode: v1alpha1.OperatingModeRunning, CheckpointPolicy: lead.CheckpointPolicy, Conversation: lead.Conversation,
		BackoffLimit: lead.BackoffLimit, RetryOn: lead.RetryOn, FailOn: lead.FailOn, DeadlineSeconds: lead.DeadlineSeconds, Priority: lead.Priority,
		OnFinish: lead.OnFinish, NodeLoss: lead.NodeLoss, Role: v1alpha1.RoleWorker, ParentRef: &v1alpha1.NameReference{Name: d.lead.Name},
	}
	if c := lead.Children; c != nil && c.Template != nil {
		applyChildTemplate(spec, c.Template)
	}
	if spec.OnFinish != nil {
		spec.OnFinish.Action = v1alpha1.FinishRelease // the supervisor still names it
	}
	if c := d.lead.Status.Contract; c != nil {
		spec.Contract = &v1alpha1.Contract{Name: c.Name, Phase: c.Phase}
	}
	if d.o.Stamped {
		by := d.owner()
		spec.RequestedBy = &v1alpha1.TaskRequesters{Created: by, OperatingMode: by}
		if spec.Contract != nil && spec.Contract.Phase != "" {
			spec.RequestedBy.Contract = by
		}
	}
	var p *CallPlan
	if spec.DependsOn, p = d.dependencies(in); p != nil {
		return nil, p
	}
	spec.StartFrom, p = d.startFrom(in, name)
	return spec, p
}

// workersTools returns those of a supervisor's tools that a worker can have; nil for a list that is left
// out.
func workersTools(tools []v1alpha1.AgentTool) []v1alpha1.AgentTool {
	if tools == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(tools), func(t v1alpha1.AgentTool) bool { return !slices.Contains(v1alpha1.DefaultTools(), t) })
}

// applyChildTemplate changes a child's spec as the supervisor's children.template says.
func applyChildTemplate(spec *v1alpha1.TaskSpec, t *v1alpha1.ChildTemplate) {
	v := Variation{Agent: (*v1alpha1.VariantAgent)(t.Agent), Workspace: (*v1alpha1.VariantWorkspace)(t.Workspace)}
	if c := t.Container; c != nil {
		v.Command, v.Args = c.Command, c.Args
		v.Container = &v1alpha1.VariantTemplate{Image: c.Image, Env: c.Env, Resources: c.Resources}
	}
	Vary(spec, v)
	if t.CheckpointPolicy != nil {
		spec.CheckpointPolicy = *t.CheckpointPolicy
	}
	if t.Tools != nil {
		spec.Tools = t.Tools
	}
	if t.BackoffLimit != nil {
		spec.BackoffLimit = t.BackoffLimit
	}
	if t.DeadlineSeconds != nil {
		spec.DeadlineSeconds = t.DeadlineSeconds
	}
	spec.Budget = t.Budget // nothing of the supervisor's own
	if t.RetryOn != nil || t.FailOn != nil {
		spec.RetryOn, spec.FailOn = t.RetryOn, t.FailOn
	}
	if t.OnFinish != nil {
		spec.OnFinish = t.OnFinish
	}
	spec.Priority = ptr.Deref(t.Priority, spec.Priority)
}

// dependencies returns the tasks that a child waits for.
func (d *calling) dependencies(in *toolcall.CreateInput) (all []v1alpha1.Dependency, refused *CallPlan) {
	for _, name := range in.DependsOn {
		task, p := d.child(name)
		if p != nil {
			return nil, p
		}
		if !slices.ContainsFunc(all, func(dep v1alpha1.Dependency) bool { return dep.TaskRef.Name == task.Name }) {
			all = append(all, v1alpha1.Dependency{TaskRef: v1alpha1.NameReference{Name: task.Name}, Condition: v1alpha1.DependOnCompleted})
		}
	}
	return all, nil
}

// startFrom returns the files that a child starts with: those of the newest checkpoint that the task has
// now or, if the child waits for it, has then.
func (d *calling) startFrom(in *toolcall.CreateInput, name string) (*v1alpha1.StartFrom, *CallPlan) {
	if in.StartFrom == "" {
		return nil, nil
	}
	source := d.lead
	if in.StartFrom != toolcall.Self {
		var p *CallPlan
		if source, p = d.child(in.StartFrom); p != nil {
			return nil, p
		}
	}
	from := &v1alpha1.StartFrom{
		TaskRef: v1alpha1.NameReference{Name: source.Name}, TaskUID: string(source.UID), // the name may be used again
		Conversation: v1alpha1.ConversationExclude, Branch: daemonapi.ForkBranch(name),
	}
	if originOf(source.Spec.Repository) != originOf(d.lead.Spec.Repository) {
		return nil, ptr.To(refuse("the task %s works on another repository than the task %s, whose children start from its own: leave start_from out", in.StartFrom, d.lead.Name))
	}
	number := d.o.Latest[in.StartFrom]
	switch {
	case slices.Contains(in.DependsOn, in.StartFrom):
	case number > 0:
		from.At = &v1alpha1.StartPoint{CheckpointNumber: &number}
	case in.StartFrom == toolcall.Self:
		return nil, ptr.To(refuse("the task %s has no checkpoint to start from yet: take one with the tool checkpoint first", d.lead.Name))
	default:
		return nil, ptr.To(refuse("the task %s has no checkpoint to start from yet: name it in depends_on as well, or wait until it has one", in.StartFrom))
	}
	return from, nil
}

// checkpointsOf says which checkpoints a task has.
func checkpointsOf(name string, latest int64) string {
	if latest == 0 {
		return "the task " + name + " has no checkpoint yet"
	}
	return fmt.Sprintf("the newest checkpoint of the task %s is %d", name, latest)
}
