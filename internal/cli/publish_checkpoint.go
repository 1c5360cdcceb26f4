package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

// runCheckpoint publishes one checkpoint, as a branch of its object.
func (o *publish) runCheckpoint(ctx context.Context, s *session, task *v1alpha1.Task) error {
	if o.when != "" {
		return errors.New("a checkpoint is published at once: leave --when out, or --checkpoint")
	}
	if o.branch == "" {
		return errors.New("name the branch for the checkpoint with --branch: on that of the task's spec.publish it would replace what the task has published")
	}
	list, err := s.checkpoints(ctx, task.Name)
	if err != nil {
		return err
	}
	c, err := s.objectToChange(ctx, list, task, o.checkpoint)
	if err != nil {
		return err
	}
	if err := cmp.Or(o.free(list, c), o.agree(task, c)); err != nil {
		return err
	}
	old, name := c.DeepCopy(), c.Name
	if err := o.addBranch(c); err != nil {
		return err
	}
	if err := s.change(ctx, &o.dryRun, old, c); err != nil {
		return err
	}
	if o.wait.wait && o.dryRun.changes() {
		if c, err = await(ctx, s, o.wait, "checkpoint", &v1alpha1.CheckpointList{}, c, o.judgeBranch); err != nil {
			return err
		}
	}
	if done, err := o.printed(o.print, c); done {
		return err
	}
	fmt.Fprintf(o.Out, "checkpoint.clew.dev/%s %s%s\n", name, o.branchOutcome(c), o.dryRun.suffix())
	return nil
}

// agree asks before an older checkpoint replaces a newer one that the task has published.
func (o *publish) agree(task *v1alpha1.Task, c *v1alpha1.Checkpoint) error {
	published := ptr.Deref(task.Status.Publish, v1alpha1.PublishStatus{})
	replaces := strings.HasPrefix(published.Ref, "refs/heads/") && published.Ref == resources.PublishRef(o.branch)
	if !replaces || published.PublishedCheckpoint <= c.Status.Number || o.yes {
		return nil
	}
	effect := fmt.Sprintf("The task has published checkpoint %d as %s, and checkpoint %d would replace it there.", published.PublishedCheckpoint, published.Ref, c.Status.Number)
	if !o.dryRun.changes() {
		fmt.Fprintln(o.ErrOut, effect)
		return nil
	}
	return o.confirm(effect + " Publish it?")
}

// free fails if another checkpoint of the task has the branch.
func (o *publish) free(list *v1alpha1.CheckpointList, c *v1alpha1.Checkpoint) error {
	for i := range list.Items {
		other := &list.Items[i]
		if other.UID != c.UID && other.Status.TaskUID == c.Status.TaskUID && hasBranch(other, o.branch) {
			return fmt.Errorf("checkpoint %d of the task has the branch %s: choose another one, or remove it there first with `kubectl clew checkpoint branch %s %[1]d --name %[2]s --remove -n %[4]s`",
				other.Status.Number, o.branch, c.Spec.TaskRef.Name, c.Namespace)
		}
	}
	return nil
}

// addBranch makes the Checkpoint's spec ask for the branch, once more if it did before.
func (o *publish) addBranch(c *v1alpha1.Checkpoint) error {
	i := slices.IndexFunc(c.Spec.Branches, func(b v1alpha1.CheckpointBranch) bool { return b.Name == o.branch })
	if i < 0 {
		i = len(c.Spec.Branches)
		c.Spec.Branches = append(c.Spec.Branches, v1alpha1.CheckpointBranch{Name: o.branch})
	}
	id, err := o.newID()
	if err != nil {
		return err
	}
	b := &c.Spec.Branches[i]
	if b.Checkout == v1alpha1.CheckoutNextStart && !awaitsCheckout(c, b.Name) {
		b.Checkout = v1alpha1.CheckoutNever // it is over, and the new id would ask for it again
	}
	b.Push, b.ID = v1alpha1.PushOrigin, id
	if o.onDiverged != "" {
		if b.OnDiverged, err = o.divergence(); err != nil {
			return err
		}
	}
	held := ""
	if s := o.originOf(c); s != nil {
		o.former, held = s.Request, s.HeldCommit
	}
	if o.approve != "" {
		b.ApprovedCommit, err = approved(o.approve, held, c.Status.Number)
	}
	return err
}

// originOf returns what the status says of the branch at the repository; nil for nothing.
func (o *publish) originOf(c *v1alpha1.Checkpoint) *v1alpha1.OriginBranchStatus {
	if s := o.statusOf(c); s != nil {
		return s.Origin
	}
	return nil
}

func (o *publish) statusOf(c *v1alpha1.Checkpoint) *v1alpha1.CheckpointBranchStatus {
	return (&checkpointBranch{name: o.branch}).branchOf(c)
}

// judgeBranch is done once the repository has the branch.
func (o *publish) judgeBranch(c *v1alpha1.Checkpoint) verdict {
	b := o.statusOf(c)
	switch {
	case b != nil && b.State == v1alpha1.BranchRefused && b.ObservedGeneration == c.Generation:
		return verdict{err: fmt.Errorf("the branch was not made: %s", oneLine(b.Message))}
	case b == nil || b.Origin == nil || b.Origin.Request == "" || b.Origin.Request == o.former:
		return verdict{state: "the branch was requested"}
	case b.Origin.Reason == v1alpha1.ReasonPublished:
		return verdict{done: true}
	case b.Origin.PodName == "" && b.Origin.RetryTime == nil && b.Origin.Reason != v1alpha1.ReasonPublishPending:
		return verdict{err: fmt.Errorf("the checkpoint was not published: %s (%s)", oneLine(b.Origin.Message), b.Origin.Reason)}
	}
	return verdict{state: cmp.Or(b.Origin.Message, "the branch is being pushed")}
}

// branchOutcome says what is known of the branch.
func (o *publish) branchOutcome(c *v1alpha1.Checkpoint) string {
	if s := o.originOf(c); s != nil && s.Reason == v1alpha1.ReasonPublished && o.dryRun.changes() && o.wait.wait {
		return "published: " + oneLine(s.Message)
	}
	return fmt.Sprintf("publishing of checkpoint %d as branch %s requested", c.Status.Number, o.branch)
}
