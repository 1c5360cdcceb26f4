package plan

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/quote"
	"github.com/clew-dev/clew/internal/toolcall"
)

// fork makes children that go on from a checkpoint of another child.
func (d *calling) fork(in *toolcall.ForkInput) CallPlan {
	if p := d.nameProblem(in.Name, maxForkName); p != nil {
		return *p
	}
	if d.o.Fork != nil {
		return d.forked(in)
	}
	if p := d.variantProblem(in); p != nil {
		return *p
	}
	source, p := d.forkable(in.Task)
	if p != nil {
		return *p
	}
	if p := d.noRoom(len(in.Variants)); p != nil {
		return *p
	}
	number, latest := in.Checkpoint, d.o.Latest[in.Task]
	if number == 0 {
		number = latest
	}
	if number < 1 || number > latest {
		return refuse("%s, and it cannot be forked from checkpoint %d: wait until it has one, or name one that it has", checkpointsOf(in.Task, latest), number)
	}
	fork := &v1alpha1.Fork{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.lead.Namespace, Name: toolcall.ObjectName(d.lead.Name, in.Name),
		},
		Spec: v1alpha1.ForkSpec{
			SourceRef: v1alpha1.NameReference{Name: source.Name}, TaskUID: string(source.UID),
			At: &v1alpha1.StartPoint{CheckpointNumber: &number}, Conversation: v1alpha1.ConversationInclude,
		},
	}
	for _, v := range in.Variants {
		variant := v1alpha1.ForkVariant{Name: toolcall.ObjectName(d.lead.Name, v.Name)}
		if v.Prompt != "" {
			variant.Prompt = &v.Prompt
		}
		fork.Spec.Variants = append(fork.Spec.Variants, variant)
	}
	if d.o.Stamped {
		fork.Spec.RequestedBy = d.owner()
	}
	return CallPlan{CreateFork: fork}
}

// forkable returns the child of a name that the supervisor's agent may fork, or why there is none. The new
// tasks have what the child is made of, its Secrets, rules and limits included, and do what the agent says:
// so all of that must be what the agent's own tools give, and none of it somebody else's.
func (d *calling) forkable(name string) (*v1alpha1.Task, *CallPlan) {
	task, p := d.child(name)
	if p != nil {
		return nil, p
	}
	const instead = "make a task with task_create, and name %s in start_from: it begins with the same files"
	by := FieldManager(task, parentName()...)
	switch other, field := otherOwner(task, d.owner(), operations()); {
	case by != d.owner():
		return nil, ptr.To(refuse("the task %s was applied by %s, and a supervisor forks only the tasks that its own tools have made: "+instead, name, orSomebody(by), name))
	case field != "":
		return nil, ptr.To(refuse("the spec.%s of the task %s was changed by %s, and its forks would have that as well: "+instead, field, name, orSomebody(other), name))
	case task.Spec.Role == v1alpha1.RoleSupervisor:
		return nil, ptr.To(refuse("the task %s is a supervisor, and a supervisor makes workers only: "+instead, name, name))
	}
	return task, nil
}

// variantProblem returns why the tasks of a fork cannot be made; nil if they can.
func (d *calling) variantProblem(in *toolcall.ForkInput) *CallPlan {
	var p CallPlan
	if len(in.Variants) == 0 {
		p = refuse("the fork has no variants: name from 1 to %d", toolcall.MaxVariants)
		return &p
	}
	names := map[string]bool{}
	for _, v := range in.Variants {
		if p := d.nameProblem(v.Name, maxTaskName); p != nil {
			return p
		}
		object := toolcall.ObjectName(d.lead.Name, v.Name)
		switch {
		case names[v.Name]:
			p = refuse("two variants have the name %s: give each its own", v.Name)
			return &p
		case d.o.Taken[object] != nil:
			p = refuse("there is a Task %s already: choose another name for this variant", object)
			return &p
		}
		if p := d.ambiguous(v.Name); p != nil {
			return p
		}
		names[v.Name] = true
	}
	return nil
}

// forked answers a call whose Fork there is, once that has made its tasks or says why it has not.
func (d *calling) forked(in *toolcall.ForkInput) CallPlan {
	f := d.o.Fork
	if f.DeletionTimestamp != nil || !d.forkedBySame(f, in) {
		return refuse("there is a Fork %s already, which asks for something else or was applied by somebody: choose another name", f.Name)
	}
	complete := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.ForkComplete)
	data := called{Task: in.Task, Object: f.Name, UID: string(f.UID)}
	for _, t := range f.Status.Tasks {
		data.Tasks = append(data.Tasks, d.short(t.Name))
		data.Made = append(data.Made, toolcall.Made{Object: t.Name, UID: t.UID})
	}
	if f.Status.Source != nil {
		data.Checkpoint = f.Status.Source.Checkpoint
	}
	switch {
	case complete == nil || complete.Status != metav1.ConditionTrue && slices.Contains(soonOver(), complete.Reason):
		return CallPlan{}
	case complete.Status != metav1.ConditionTrue:
		return answer(data, "the Fork %s waits (%s): %s", f.Name, complete.Reason, quote.Line(complete.Message))
	}
	return answer(data, "from checkpoint %d of the task %s go on: %s", data.Checkpoint, in.Task, strings.Join(data.Tasks, ", "))
}

// soonOver are the reasons for which a Fork waits that pass by themselves.
func soonOver() []string {
	return []string{v1alpha1.ReasonPending, v1alpha1.ReasonWaitingForSource, v1alpha1.ReasonCheckpointNotReady, v1alpha1.ReasonHistoryUnavailable}
}
