package crash_test

import (
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// takesTogether takes a set of checkpoints of a supervisor and its children, and rewinds all to it.
func takesTogether(r *run) {
	r.apply("lead", func(t *v1alpha1.Task) {
		t.Spec.Role, t.Spec.Contract = v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "port"}
	})
	r.works("lead", 1)
	child := func(t *v1alpha1.Task) { t.Spec.ParentRef = &v1alpha1.NameReference{Name: "lead"} }
	r.apply("a", child)
	r.works("a", 1)
	r.apply("b", child)
	r.completes("b")

	set := manual("evening", "lead")
	set.Spec.Scope = v1alpha1.CheckpointOfContract
	r.create(set)
	member := plan.MemberName("a", string(set.UID))
	r.Eventually(func() error {
		_, err := r.checkpoint(member)
		return err
	}).Should(Succeed(), "the checkpoint of the child is requested")
	r.takes("lead", "evening")
	r.takes("a", member)
	r.Eventually(r.checkpoint).WithArguments("evening").Should(HaveField("Status.Set.State", v1alpha1.SetReleasing))
	r.isReleased("lead", string(set.UID), 2)
	r.isReleased("a", string(set.UID), 2)
	r.untilCheckpoint("evening")
	r.untilCheckpoint(member)

	r.works("lead", 3)
	r.works("a", 3)
	r.rewinds("lead", v1alpha1.ReasonRunning, v1alpha1.Rewind{
		ID: "back", To: v1alpha1.RewindTarget{CheckpointRef: &v1alpha1.NameReference{Name: "evening"}}, Children: v1alpha1.ChildrenRewind})
	r.untilDone("a", "parent-back", func(s v1alpha1.TaskStatus) *v1alpha1.OperationStatus { return s.Rewind })
	r.until("a", v1alpha1.ReasonRunning)
	r.until("b", v1alpha1.ReasonCompleted) // it had completed in the set, and has not run since
	r.completes("a")
	r.suspends("lead")
}

// takes lets a daemon take the checkpoint that an object asks for.
func (r *run) takes(task, object string) {
	r.Helper()
	r.Eventually(func() error {
		c, err := r.checkpoint(object)
		if err != nil {
			return err
		}
		if c.Status.Number != 0 {
			return nil
		}
		taken := checkpointed(v1alpha1.TriggerManual)
		taken.Checkpoint.RequestedByName, taken.Checkpoint.RequestedByUID = c.Name, string(c.UID)
		return r.kubelet.works(r.ctx, task, taken)
	}).Should(Succeed(), "%s is taken", object)
}

// isReleased lets a daemon record that its agent was released.
func (r *run) isReleased(task, set string, number int64) {
	r.Helper()
	r.Eventually(func() error {
		return r.kubelet.works(r.ctx, task, history.Record{HoldEnd: &history.HoldEnd{Set: set, Checkpoint: number, Released: true}})
	}).Should(Succeed(), "%s is released", task)
}
