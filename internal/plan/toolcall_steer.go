package plan

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/quote"
	"github.com/clew-dev/clew/internal/toolcall"
)

// maxResumePrompt is the length of a resume's prompt that the schema allows, in bytes.
const maxResumePrompt = 32768

// operations are the fields of a spec by which people have a task do something, and which forks of it do not
// have: whoever sets one has no part in what the task is made of.
func operations() []string {
	return []string{"operatingMode", "resume", "rewind", "publish", "decisions", "acknowledge", "adopt", "dependsOn", "requestedBy"}
}

// limits are the fields that say how much a task may use, and for how long: people raise them while the
// supervisor goes on to steer it.
func limits() []string {
	return []string{"budget", "deadlineSeconds", "backoffLimit", "retryOn", "failOn", "priority", "onFinish", "nodeLoss", "workspace", "conversation"}
}

// steered returns the child of a name that the supervisor's agent may steer, or why there is none. Nobody
// else's spec is written: who applied it applies it again. Nor does the agent say what is done with what
// somebody else has put into the task, such as a Secret.
func (d *calling) steered(name string) (*v1alpha1.Task, *CallPlan) {
	task, p := d.child(name)
	if p != nil {
		return nil, p
	}
	if by := FieldManager(task, parentName()...); by != d.owner() {
		return nil, ptr.To(refuse("the task %s was applied by %s, and a supervisor steers only the tasks that its own tools have made: ask whoever applied it", name, orSomebody(by)))
	}
	if by, field := otherOwner(task, d.owner(), slices.Concat(operations(), limits())); field != "" {
		return nil, ptr.To(refuse("the spec.%s of the task %s was changed by %s, and a supervisor steers only what its own tools have made: ask them", field, name, orSomebody(by)))
	}
	return task, nil
}

// goOn resumes a child that has stopped.
func (d *calling) goOn(in *toolcall.ResumeInput) CallPlan {
	child, p := d.steered(in.Task)
	if p != nil {
		return *p
	}
	resume := v1alpha1.Resume{ID: d.operation(), Mode: v1alpha1.ResumeContinue, Prompt: in.Prompt}
	if requested(child, resume.ID) {
		return d.followed(child, child.Status.Resume, daemonapi.OperationResume, "goes on")
	}
	state, stopped := stateOf(child)
	switch {
	case settles(child):
		return CallPlan{}
	case !stopped && child.Spec.OperatingMode == v1alpha1.OperatingModeSuspended:
		return CallPlan{} // it is resumed when it has stopped
	case !stopped:
		return refuse("the task %s has not stopped (%s): wait for it with task_wait, or stop it with task_stop first", in.Task, state)
	case state == v1alpha1.ReasonCompleted && in.Prompt == "":
		return refuse("the task %s has completed, and goes on only with a prompt: say in it what is to be done next", in.Task)
	}
	return d.resume(child, resume)
}

// takeBack takes a child back to a checkpoint, from where it goes on. An agent that runs and gets no other
// prompt is rewound as it runs. Everything else is a resume from the checkpoint, for which a child that
// runs is suspended first.
func (d *calling) takeBack(in *toolcall.RewindInput) CallPlan {
	child, p := d.steered(in.Task)
	if p != nil {
		return *p
	}
	id, went := d.operation(), fmt.Sprintf("goes back to checkpoint %d, and on from there", in.Checkpoint)
	switch {
	case requested(child, id):
		return d.followed(child, child.Status.Resume, daemonapi.OperationResume, went)
	case child.Spec.Rewind != nil && child.Spec.Rewind.ID == id || handled(&child.Status, daemonapi.OperationRewind, id):
		return d.followed(child, child.Status.Rewind, daemonapi.OperationRewind, went)
	case in.Checkpoint < 1 || in.Checkpoint > d.o.Latest[in.Task]:
		return refuse("%s, and there is no checkpoint %d: name one that it has", checkpointsOf(in.Task, d.o.Latest[in.Task]), in.Checkpoint)
	case child.Status.Rewind != nil && child.Status.Rewind.State == v1alpha1.OperationInProgress:
		return refuse("the task %s is being rewound already: wait for it with task_wait", in.Task)
	}
	_, stopped := stateOf(child)
	switch suspends := child.Spec.OperatingMode == v1alpha1.OperatingModeSuspended; {
	case settles(child):
		return CallPlan{}
	case stopped:
		return d.resume(child, v1alpha1.Resume{ID: id, Mode: v1alpha1.ResumeFromCheckpoint, CheckpointNumber: &in.Checkpoint, Prompt: in.Prompt})
	case suspends:
		return CallPlan{} // it is taken back when it has stopped
	case in.Prompt != "":
		return d.suspend(child, in.Task)
	}
	changed := child.DeepCopy()
	changed.Spec.Rewind = &v1alpha1.Rewind{ID: id, To: v1alpha1.RewindTarget{CheckpointNumber: &in.Checkpoint}}
	d.stamp(changed, func(r *v1alpha1.TaskRequesters, by string) { r.Rewind = by })
	return CallPlan{ChangeTask: &Change[v1alpha1.Task]{From: child, To: changed}}
}

// halt suspends a child.
func (d *calling) halt(in *toolcall.StopInput) CallPlan {
	child, p := d.steered(in.Task)
	if p != nil {
		return *p
	}
	state, stopped := stateOf(child)
	suspends := child.Spec.OperatingMode == v1alpha1.OperatingModeSuspended
	switch {
	case stopped:
		return answer(d.about(child), "the task %s has stopped (%s), and its work is kept: task_resume goes on with it", in.Task, state)
	case suspends && child.Status.ObservedGeneration < child.Generation:
		return CallPlan{} // what comes of it is not known yet
	case suspends:
		return answer(d.about(child), "the task %s is being stopped with a checkpoint: task_wait returns when it has stopped, and task_resume goes on with it", in.Task)
	}
	return d.suspend(child, in.Task)
}

// suspend suspends a child that the agent knows by a name, once for the call.
func (d *calling) suspend(child *v1alpha1.Task, name string) CallPlan {
	if d.changedSince(child) {
		return refuse("the task %s was to be stopped, and somebody has changed it since, so that it works: look at it, and call the tool again", name)
	}
	changed := child.DeepCopy()
	changed.Spec.OperatingMode = v1alpha1.OperatingModeSuspended
	d.stamp(changed, func(r *v1alpha1.TaskRequesters, by string) { r.OperatingMode = by })
	return d.once(child, CallPlan{ChangeTask: &Change[v1alpha1.Task]{From: child, To: changed}})
}

// resume resumes a child that has stopped, unless a person has stopped it, or has to look at it first.
func (d *calling) resume(child *v1alpha1.Task, r v1alpha1.Resume) CallPlan {
	name, suspended := d.short(child.Name), child.Spec.OperatingMode == v1alpha1.OperatingModeSuspended
	if state, _ := stateOf(child); state == v1alpha1.ReasonDriftDetected {
		return refuse("files of the task %s were changed while it was not running, and a person has to decide on them: go on without it, or make another task", name)
	}
	if over := ownBudgetExceeded(child); over != nil {
		return refuse("the task %s cannot go on: %s, and only a person can raise that; go on without it, or make another task", name, over)
	}
	if by := FieldManager(child, "spec", "operatingMode"); suspended && by != d.owner() {
		return refuse("the task %s was suspended by %s, and not by its supervisor: ask them, or make another task", name, orSomebody(by))
	}
	if len(r.Prompt) > maxResumePrompt {
		return refuse("the prompt has %d bytes, and %d are possible: put long material into a file, and name that", len(r.Prompt), maxResumePrompt)
	}
	changed := child.DeepCopy()
	changed.Spec.Resume, changed.Spec.OperatingMode = &r, v1alpha1.OperatingModeRunning
	d.stamp(changed, func(stamps *v1alpha1.TaskRequesters, by string) {
		stamps.Resume = by
		if suspended {
			stamps.OperatingMode = by
		}
	})
	return CallPlan{ChangeTask: &Change[v1alpha1.Task]{From: child, To: changed}}
}

// stamp passes on that the supervisor's agent has asked.
func (d *calling) stamp(task *v1alpha1.Task, set func(stamps *v1alpha1.TaskRequesters, by string)) {
	if !d.o.Stamped {
		return
	}
	if task.Spec.RequestedBy == nil {
		task.Spec.RequestedBy = &v1alpha1.TaskRequesters{}
	}
	set(task.Spec.RequestedBy, d.owner())
}

// settles reports whether a child's controller has yet to see its spec, or to decide on an operation in
// it, which another one must not take the place of.
func settles(child *v1alpha1.Task) bool {
	return child.Status.ObservedGeneration < child.Generation || NewResume(child) != nil || NewRewind(child) != nil
}

// requested reports whether a child has a resume with that id, or had one.
func requested(child *v1alpha1.Task, id string) bool {
	r := child.Spec.Resume
	return r != nil && r.ID == id || handled(&child.Status, daemonapi.OperationResume, id)
}

// followed answers a call once the child's controller has accepted or refused the operation that it has
// requested.
func (d *calling) followed(child *v1alpha1.Task, op *v1alpha1.OperationStatus, kind, does string) CallPlan {
	id, name := d.operation(), d.short(child.Name)
	known := op != nil && op.ID == id
	switch {
	case known && op.State == v1alpha1.OperationPending, !known && !handled(&child.Status, kind, id):
		return CallPlan{}
	case !known:
		return answer(d.about(child), "the task %s was told so, and has been told something else since", name)
	case op.State == v1alpha1.OperationInProgress || op.State == v1alpha1.OperationCompleted:
		data := d.about(child)
		data.Checkpoint = op.ToCheckpoint
		return answer(data, "the task %s %s: task_wait returns when it has stopped", name, does)
	}
	return refuse("the task %s stays as it is (%s): %s", name, op.Reason, quote.Line(op.Message))
}
