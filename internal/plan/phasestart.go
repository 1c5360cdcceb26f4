package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

// A contract enters a phase with a checkpoint of its supervisor, so that RestartPhase goes back to exactly
// there. While the agent works, the checkpoint is requested from its daemon by a Checkpoint object, and
// the contract enters the phase when the gitstore has it. While no agent works, the newest checkpoint is
// the state.

// maxPhaseStart is how long the checkpoint with which a phase is to begin may take.
const maxPhaseStart = 3 * time.Minute

// maxHandledCalls is how many calls the status remembers.
const maxHandledCalls = 32

// phaseWish is the phase that a supervisor's contract is to go to.
type phaseWish struct {
	phase string
	// call is the id of the agent's call; empty if the spec asks for it.
	call string
}

// wishedPhase returns the phase that the contract is to go to; nil if it stays where it is. What the spec
// says comes first. A call that names no phase of the contract is refused by whoever answers it.
func wishedPhase(task *v1alpha1.Task, s *v1alpha1.TaskStatus, call *PhaseCall) *phaseWish {
	c := s.Contract
	if task.Spec.Role != v1alpha1.RoleSupervisor || c == nil {
		return nil
	}
	if spec := task.Spec.Contract; spec != nil && spec.Phase != "" && spec.Phase != c.SpecPhase && spec.Phase != c.Phase {
		return &phaseWish{phase: spec.Phase}
	}
	if call != nil && !takenBack(s, call.Attempt) && call.Phase != c.Phase && !slices.Contains(c.HandledCalls, call.ID) && slices.Contains(task.Spec.PhasesOf(), call.Phase) {
		return &phaseWish{phase: call.Phase, call: call.ID}
	}
	return nil
}

// checkpoint returns the name of the Checkpoint with which the phase is to begin. It is the same for
// as long as the wish is, and another one whenever the contract goes there again. It follows from a random
// id: who may create Checkpoints could otherwise take the name before.
func (w *phaseWish) checkpoint(task *v1alpha1.Task, c *v1alpha1.ContractStatus) string {
	wish := "call " + w.call
	if w.call == "" {
		wish = "spec " + c.Wished.ID
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s", task.UID, wish))
	return resources.PhaseStartName(task.Name, hex.EncodeToString(sum[:5]))
}

// PhaseStartName returns the name of the Checkpoint with which the phase begins that a contract is to go to;
// "" if it stays where it is, or if the status does not say yet that it is to go there.
func PhaseStartName(task *v1alpha1.Task, call *PhaseCall) string {
	c, wish := task.Status.Contract, wishedPhase(task, &task.Status, call)
	if wish == nil || wish.call == "" && !isWished(c, wish.phase) {
		return ""
	}
	return wish.checkpoint(task, c)
}

// isWished reports whether the status says that a contract is to go to a phase. A former version's status
// lacks the id: it is said once more.
func isWished(c *v1alpha1.ContractStatus, phase string) bool {
	return c.Wished != nil && c.Wished.Phase == phase && c.Wished.ID != ""
}

// PhaseCallHandled reports whether a supervisor's contract has followed a call, or never will.
func PhaseCallHandled(task *v1alpha1.Task, id string) bool {
	return task.Status.Contract != nil && slices.Contains(task.Status.Contract.HandledCalls, id)
}

// PhaseCallRefused returns why a contract has not followed a call that it has handled; "" if it has.
func PhaseCallRefused(task *v1alpha1.Task, id string) string {
	if c := task.Status.Contract; c != nil {
		for _, refused := range c.RefusedCalls {
			if refused.ID == id {
				return refused.Message
			}
		}
	}
	return ""
}

// followPhase moves the contract that a supervisor leads to the phase in its spec, when that has changed,
// and to the one that its agent has asked for, each once.
func (d *decision) followPhase() {
	d.notePhase()
	c := d.s.Contract
	wish := wishedPhase(d.task, d.s, d.o.PhaseCall)
	if wish == nil || d.goesBack() {
		return // what does not take a call back leaves it for later, and what the spec asks for begins afterwards
	}
	checkpoint, problem := d.phaseStart(wish)
	if checkpoint < 0 {
		return
	}
	if problem != "" && wish.call != "" {
		d.refuseCall(wish.call, problem)
		return
	}
	how, actor := "goes from phase "+c.Phase+" to", d.phaseRequester()
	if wish.call != "" {
		actor = TaskActor(d.task.Name)
	}
	d.enterPhase(c.Name, wish.phase, how, actor, checkpoint)
	if problem != "" { // a person wants it all the same
		d.addEntry(v1alpha1.EventPhaseStartMissing, clew, fmt.Sprintf(
			"to begin the phase %s again means from checkpoint %d, from before it: %s", wish.phase, max(1, checkpoint), problem))
	}
	if wish.call == "" {
		d.s.Contract.SpecPhase = wish.phase
	} else {
		d.handled(wish.call)
	}
}

// notePhase follows what asks for the phase in which the contract is.
func (d *decision) notePhase() {
	c, call := d.s.Contract, d.o.PhaseCall
	if d.task.Spec.Role != v1alpha1.RoleSupervisor || c == nil {
		return
	}
	if d.specPhase() == c.Phase && !d.goesBack() {
		c.SpecPhase = c.Phase
	}
	if call != nil && call.Phase == c.Phase && !slices.Contains(c.HandledCalls, call.ID) {
		d.handled(call.ID)
	}
	switch wish := wishedPhase(d.task, d.s, nil); {
	case wish == nil, d.goesBack(): // afterwards, the phase begins with a checkpoint of then
		c.Wished = nil
	case !isWished(c, wish.phase):
		c.Wished = &v1alpha1.WishedPhase{
			Phase: wish.phase, Since: metav1.NewTime(d.now), ID: d.o.NewID, RequestedBy: d.stamps().Contract, After: d.newestCheckpoint(),
		}
	}
}

// handled remembers a call.
func (d *decision) handled(call string) {
	c := d.s.Contract
	c.HandledCalls = append(slices.Clone(c.HandledCalls), call)
	c.HandledCalls = c.HandledCalls[max(0, len(c.HandledCalls)-maxHandledCalls):]
}

// refuseCall remembers a call that has not moved the contract.
func (d *decision) refuseCall(call, why string) {
	c := d.s.Contract
	c.RefusedCalls = append(slices.Clone(c.RefusedCalls), v1alpha1.RefusedPhaseCall{ID: call, Message: statusText(why)})
	c.RefusedCalls = c.RefusedCalls[max(0, len(c.RefusedCalls)-maxHandledCalls):]
	d.handled(call)
}

// phaseStart returns the number of the checkpoint with which a phase begins, 0 for the task's first one,
// and why it is none that was taken for that; less than 0 while it has yet to be known.
func (d *decision) phaseStart(wish *phaseWish) (number int64, problem string) {
	const unknown = -1
	switch works, over := d.agentWorks(); {
	case over:
		return unknown, "" // its last checkpoint follows
	case !works && !d.o.History.Known: // it may have a newer one, as that to which a rewind has just gone back
		d.requeue(d.o.Limits.RetryBase)
		return unknown, ""
	case !works:
		return d.newestCheckpoint(), ""
	}
	name, c, requester := wish.checkpoint(d.task, d.s.Contract), d.o.PhaseStart, TaskRequester(d.task.Name)
	if wish.call == "" {
		requester = d.s.Contract.Wished.RequestedBy
	}
	if c == nil || c.Name != name {
		if name == PhaseStartName(d.task, d.o.PhaseCall) { // else the status has to say first that it is wished
			d.plan.RequestStart = resources.NewPhaseStart(d.task, name, wish.phase, requester)
		}
		return unknown, ""
	}
	if !d.isStart(c, wish, requester) {
		if d.wishAnew(wish) {
			return unknown, ""
		}
		return d.newestCheckpoint(), fmt.Sprintf("the Checkpoint %s, which was to be requested, is somebody else's: delete it", name)
	}
	durable := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.CheckpointDurable)
	switch {
	case durable == nil || c.Status.Number == 0:
	case durable.Status == metav1.ConditionTrue:
		return c.Status.Number, ""
	case durable.Reason == v1alpha1.ReasonGitStoreRefused, durable.Reason == v1alpha1.ReasonCheckpointLost:
		return d.newestCheckpoint(), fmt.Sprintf("the checkpoint %d, with which it was to begin, is not kept: %s", c.Status.Number, durable.Message)
	}
	since := c.CreationTimestamp
	if wish.call == "" {
		since = d.s.Contract.Wished.Since
	}
	if deadline := since.Add(maxPhaseStart); d.now.Before(deadline) {
		d.requeueAt(deadline)
		return unknown, ""
	}
	return d.newestCheckpoint(), fmt.Sprintf("the checkpoint with which it was to begin was not taken and kept within %d minutes%s", int(maxPhaseStart.Minutes()), whyNotKept(c))
}

// wishAnew gives the wish of the spec another id, so that another Checkpoint is requested, where somebody else has made
// one of that name: whoever reads the status can be faster. Not for ever, and not for a call, whose id is its own.
func (d *decision) wishAnew(wish *phaseWish) bool {
	w := d.s.Contract.Wished
	if wish.call != "" || !d.now.Before(w.Since.Add(maxPhaseStart)) {
		return false
	}
	next := *w
	next.ID = d.o.NewID
	d.s.Contract.Wished = &next
	return true
}

// isStart reports whether a Checkpoint is the one that was requested in somebody's name for a phase to begin
// with: its own name alone says nothing, since who reads the status may make one of that name.
func (d *decision) isStart(c *v1alpha1.Checkpoint, wish *phaseWish, requester string) bool {
	switch {
	case !metav1.IsControlledBy(c, d.task) || c.Spec.Number != nil || c.Spec.TaskRef.Name != d.task.Name:
		return false
	case d.o.Stamped && c.Spec.RequestedBy != requester:
		return false
	}
	return wish.call != "" || c.Status.Number == 0 || c.Status.Number > d.s.Contract.Wished.After
}

// whyNotKept returns the end of a sentence about a checkpoint that takes long; "" if nothing is known.
func whyNotKept(c *v1alpha1.Checkpoint) string {
	for _, kind := range []string{v1alpha1.CheckpointDurable, v1alpha1.CheckpointReady} {
		if condition := meta.FindStatusCondition(c.Status.Conditions, kind); condition != nil && condition.Message != "" {
			return ": " + condition.Message
		}
	}
	return ""
}

// agentWorks reports whether the task's agent works, so that its state is in no checkpoint; over is true
// while it has ended and its last checkpoint may still follow.
func (d *decision) agentWorks() (works, over bool) {
	a := d.active()
	if a == nil {
		return false, false
	}
	v := d.views[a.Number]
	switch {
	case v == nil:
		return false, a.AgentStartTime != nil
	case v.agent != nil || v.finished || v.deleting:
		return false, true
	}
	return v.agentRuns, false
}
