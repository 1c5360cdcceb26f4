package plan

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/quote"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/toolcall"
)

// publish has the newest checkpoint of the supervisor, or of a child, pushed to the branch in the
// supervisor's spec.publish: as a branch of the Checkpoint, which another Checkpoint of the task gives up
// first.
func (d *calling) publish(in *toolcall.PublishInput) CallPlan {
	how, name := d.lead.Spec.Publish, orSelf(in.Task) // without how, the supervisor would not have the tool
	task := d.lead
	if name != toolcall.Self {
		var p *CallPlan
		if task, p = d.child(name); p != nil {
			return *p
		}
	}
	if !equality.Semantic.DeepEqual(whereTo(task), whereTo(d.lead)) {
		return refuse("the task %s works on another repository than its supervisor, or with other credentials, and is published there by whoever applied it", name)
	}
	for i := range d.o.Checkpoints {
		c := &d.o.Checkpoints[i]
		if b := entryOf(c, how.Branch); b != nil && b.ID == d.operation() {
			return d.pushedBranch(task, c, b)
		}
	}
	target := d.toPublish(name)
	switch {
	case target == nil && d.o.Call.Noted != "":
		return refuse("the checkpoint that was to be published is gone: call the tool again for the newest one")
	case d.o.Latest[name] == 0:
		return refuse("the task %s has no checkpoint yet: there is nothing to publish", name)
	case target == nil:
		return CallPlan{} // its object has yet to be made
	case d.changedSince(target): // two calls that publish the same would take the branch from each other for ever
		return refuse("checkpoint %d was to be published, and somebody, or another call, has changed its branches since: look at what is published, and call the tool again", target.Status.Number)
	case target.Labels[v1alpha1.LabelManagedBy] != v1alpha1.ManagedBy:
		return refuse("the newest checkpoint of the task %s is the Checkpoint %s, which somebody applied: take another one with the tool checkpoint, or wait until the task has one", name, target.Name)
	}
	if p := d.freeBranch(target, how.Branch); p != nil {
		return *p
	}
	return d.addBranch(target, how)
}

// whereTo returns the repository to which a task's work goes, and the credentials with which it does.
func whereTo(task *v1alpha1.Task) v1alpha1.Repository {
	if r := task.Spec.Repository; r != nil {
		return v1alpha1.Repository{URL: r.URL, CredentialsSecretRef: r.CredentialsSecretRef}
	}
	return v1alpha1.Repository{}
}

// toPublish returns the Checkpoint to publish: the one that was noted, or else the task's newest; nil if there
// is no such object.
func (d *calling) toPublish(name string) *v1alpha1.Checkpoint {
	i := slices.IndexFunc(d.o.Checkpoints, func(c v1alpha1.Checkpoint) bool {
		if d.o.Call.Noted != "" {
			return strings.HasPrefix(d.o.Call.Noted, string(c.UID)+" ")
		}
		return c.Status.Number == d.o.Latest[name]
	})
	if i < 0 {
		return nil
	}
	return &d.o.Checkpoints[i]
}

// freeBranch returns what is to be done before a Checkpoint can have the branch, or why it cannot; nil if
// no other one of the task has it.
func (d *calling) freeBranch(target *v1alpha1.Checkpoint, branch string) *CallPlan {
	var p CallPlan
	for i := range d.o.Checkpoints {
		c := &d.o.Checkpoints[i]
		has := entryOf(c, branch) != nil
		switch {
		case has && branchOwner(c, branch) != d.owner():
			p = refuse("checkpoint %d has the branch %s already, as %s has asked: have them take it out first", c.Status.Number, branch, orSomebody(branchOwner(c, branch)))
			return &p
		case c.UID == target.UID:
		case has:
			changed := c.DeepCopy()
			changed.Spec.Branches = slices.DeleteFunc(changed.Spec.Branches, func(b v1alpha1.CheckpointBranch) bool { return b.Name == branch })
			d.stampBranches(changed)
			p.ChangeCheckpoint = &Change[v1alpha1.Checkpoint]{From: c, To: changed}
			return &p
		case slices.ContainsFunc(c.Status.Branches, func(s v1alpha1.CheckpointBranchStatus) bool {
			return s.Name == branch && s.State == v1alpha1.BranchMade
		}):
			return &p // the gitstore has yet to remove it
		}
	}
	return nil
}

// branchOwner returns the field manager of a branch of a Checkpoint; "" if it is not known.
func branchOwner(c *v1alpha1.Checkpoint, branch string) string {
	return FieldManager(c, "spec", "branches", fieldpath.KeyByFields("name", branch), "name")
}

// orSomebody returns the name of a field manager, or that it is not known.
func orSomebody(manager string) string {
	if manager == "" {
		return "somebody"
	}
	return named(manager)
}

// addBranch asks for the branch, once more if the Checkpoint has it, and once for the call.
func (d *calling) addBranch(c *v1alpha1.Checkpoint, how *v1alpha1.Publish) CallPlan {
	changed := c.DeepCopy()
	b := entryOf(changed, how.Branch)
	if b == nil {
		changed.Spec.Branches = append(changed.Spec.Branches, v1alpha1.CheckpointBranch{Name: how.Branch})
		b = &changed.Spec.Branches[len(changed.Spec.Branches)-1]
	}
	b.Push, b.OnDiverged, b.ApprovedCommit, b.ID = v1alpha1.PushOrigin, how.OnDiverged, how.ApprovedCommit, d.operation()
	if d.o.Stamped {
		b.RequestedBy = d.owner()
	}
	d.stampBranches(changed)
	return d.once(c, CallPlan{ChangeCheckpoint: &Change[v1alpha1.Checkpoint]{From: c, To: changed}})
}

// stampBranches passes on that the supervisor's agent has changed the branches.
func (d *calling) stampBranches(c *v1alpha1.Checkpoint) {
	if d.o.Stamped {
		c.Spec.BranchesChangedBy = d.owner()
	}
}

// pushedBranch answers a call whose branch was asked for, once it is known what has come of it.
func (d *calling) pushedBranch(task *v1alpha1.Task, c *v1alpha1.Checkpoint, b *v1alpha1.CheckpointBranch) CallPlan {
	i := slices.IndexFunc(c.Status.Branches, func(s v1alpha1.CheckpointBranchStatus) bool { return s.Name == b.Name })
	if i < 0 {
		return CallPlan{}
	}
	s, data := &c.Status.Branches[i], d.about(task)
	data.Checkpoint = c.Status.Number
	o := s.Origin
	switch {
	case s.State == v1alpha1.BranchRefused && s.ObservedGeneration == c.Generation:
		return refuse("checkpoint %d was not published: %s", c.Status.Number, quote.Line(s.Message))
	case o == nil || o.Request != branchRequest(b) || o.PodName != "" || o.Reason == v1alpha1.ReasonPublishPending:
		return CallPlan{}
	case o.Reason == v1alpha1.ReasonPublished:
		data.Ref, data.Commit = o.Ref, o.Commit
		return answer(data, "%s", quote.Line(o.Message)+remoteAnswer(o.Answer))
	case o.RetryTime != nil && o.Reason != v1alpha1.ReasonPushAnnounced:
		return answer(data, "checkpoint %d is not at %s yet (%s): %s", c.Status.Number, resources.PublishRef(b.Name), o.Reason, quote.Line(o.Message))
	case o.RetryTime != nil:
		return CallPlan{} // the next pod pushes what this one has announced
	case o.Reason == v1alpha1.ReasonDiverged:
		return refuse("checkpoint %d was not published (%s): %s. %s", c.Status.Number, o.Reason, quote.Line(o.Message), d.instead(task))
	}
	return refuse("checkpoint %d was not published (%s): %s", c.Status.Number, o.Reason, quote.Line(o.Message))
}

// instead says what a supervisor's agent does when the branch has what is no part of a task's work: it can
// choose no other branch, and its tools merge nothing. Whoever has pushed there can push again what comes
// after that.
func (d *calling) instead(task *v1alpha1.Task) string {
	for _, h := range d.o.Holders {
		if h.Task.UID == task.UID || !equality.Semantic.DeepEqual(whereTo(h.Task), whereTo(d.lead)) {
			continue
		}
		if h.Task.UID == d.lead.UID {
			return fmt.Sprintf("None of these is yours to do. You have published your own work there, checkpoint %d, and a branch has the work of one task: "+
				"make the changes of %s in your own files, as task_diff shows them, take a checkpoint, and publish your own work again", h.Checkpoint, task.Name)
		}
		changes := "the changes of " + task.Name + " in its prompt, as task_diff shows them"
		if task.UID == d.lead.UID {
			changes = "your own changes in its prompt, as diff shows them"
		}
		return fmt.Sprintf("None of these is yours to do. The work of the task %s was published there, checkpoint %d, and a branch has the work of one task: "+
			"have that one go on with task_resume and %s, and publish it again", h.Task.Name, h.Checkpoint, changes)
	}
	return "None of these is yours to do: say in your last message that the branch has others' work, and what was to be published"
}

// remoteAnswer quotes what a repository has answered to a push; "" for nothing.
func remoteAnswer(text string) string {
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	return "\nThe repository has answered. " + quote.Notice + "\n" + quote.Lines(text)
}
