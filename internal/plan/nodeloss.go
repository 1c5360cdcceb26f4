package plan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

// A node that cannot be reached may run the pod that it has for as long as it likes, and keeps the
// volume. After the time that spec.nodeLoss gives it, two things follow, each by itself. The attempt
// ends, so that stores and server take nothing of its pod any more. And when the task is to start, it
// leaves the volume behind and gets another one, unless Kubernetes itself says that nothing runs on the
// node and the volume can be attached elsewhere. The status says first which claim is the task's. The
// former one is deleted when its pod is gone.

// maxFormerClaims is how many claims the status lists that were left behind.
const maxFormerClaims = 16

// noneElsewhere is why a task does not go on elsewhere.
const noneElsewhere = "no other node of the cluster can be reached either, so the task waits for the first that can"

// nodeEnding returns the ending of an attempt whose pod is on a node that counts as lost; nil while it
// does not, and while the history store does not say how far the task has come.
func (d *decision) nodeEnding(a *v1alpha1.Attempt, v *podView) *ending {
	away := d.podAbsence(v)
	switch {
	case away == nil:
		return nil
	case d.completionRecorded(a) && d.o.History.State.Latest.Durable:
		return ptr.To(completed()) // all that it did is stored elsewhere
	case !d.lost(away) || !d.o.History.Known:
		if !d.waitsForNode() && !d.given(away) {
			d.requeueAt(d.lostAt(away))
		}
		d.noteAway(away, d.awayMessage(a, v))
		return nil
	case isLimit(a.Reason) && a.AgentStartTime != nil:
		return &ending{outcome: v1alpha1.AttemptLimitReached, reason: a.Reason, message: limitMessage(a.Reason, d.used()) + "; its pod was lost: " + away.String()}
	}
	return &ending{outcome: v1alpha1.AttemptNodeLost, reason: v1alpha1.ReasonNodeLost, message: away.String()}
}

// lost reports whether a pod counts as lost with its node. There is nothing to wait for if the task can
// go on with the same volume.
func (d *decision) lost(away *absence) bool {
	if away.outOfService && d.movable(away) {
		return true
	}
	return d.replaceable(away)
}

// withNode returns the ending of an attempt whose pod was deleted: with its node, if that cannot be
// reached. Kubernetes lets such a pod fail before it deletes it by force.
func (d *decision) withNode(a *v1alpha1.Attempt, e ending) ending {
	n, known := d.o.Nodes[a.NodeName]
	if away := d.absence(a.NodeName, n); known && away != nil && e.outcome == v1alpha1.AttemptPodLost {
		e.outcome, e.reason, e.message = v1alpha1.AttemptNodeLost, v1alpha1.ReasonNodeLost, away.String()
	}
	return e
}

// awayMessage says what becomes of the active attempt, whose node cannot be reached.
func (d *decision) awayMessage(a *v1alpha1.Attempt, v *podView) string {
	away := d.podAbsence(v)
	message := fmt.Sprintf("%s, and has pod %s: ", away, v.pod.Name)
	switch {
	case d.waitsForNode():
		return message + "the task waits for it, as spec.nodeLoss.policy says; set it to Replace to go on without the node"
	case d.given(away) && !d.o.Elsewhere:
		return message + noneElsewhere
	case d.given(away):
		return message + "the pod counts as lost when the history store can be reached"
	case a.Reason != "":
		return message + fmt.Sprintf("if it is not back by %s, the pod counts as lost, with what the agent did after its last durable checkpoint", stamp(d.lostAt(away)))
	}
	return message + fmt.Sprintf("if it is not back by %s, the task goes on elsewhere from its last durable checkpoint", stamp(d.lostAt(away)))
}

// settleVolume sees to it that the task, which is to start, has a volume that can be used, and reports
// whether it has to wait: for the node with the volume, or for the volume that takes its place.
func (d *decision) settleVolume() (waits bool) {
	if d.o.History.Deleted || d.o.History.ContinuedBy != "" {
		return false // it cannot start
	}
	away := d.volumeAbsence()
	if away == nil {
		return false
	}
	if hold := d.volumeHold(away); hold != "" {
		d.dropFinishedPods() // they would keep a claim that somebody deletes
		d.noteAway(away, hold)
		d.wait(v1alpha1.ReasonNodeUnreachable, hold)
		return true
	}
	d.replaceVolume(away)
	return true
}

// volumeAbsence returns the node without which the task's volume cannot be used, since it cannot be
// reached; nil if there is none. One that has a pod of the task may still write to the volume.
func (d *decision) volumeAbsence() *absence {
	for i := range d.o.Pods {
		v := inspect(&d.o.Pods[i])
		if away := d.podAbsence(v); away != nil && !d.leftBehind(v.pod) && !d.movable(away) {
			return away
		}
	}
	claim := d.volume()
	if claim == nil || claim.DeletionTimestamp != nil {
		return nil
	}
	return d.strandedAt(claim)
}

// volumeHold returns why the task waits for the node with its volume; "" if it leaves the volume behind.
func (d *decision) volumeHold(away *absence) string {
	message := fmt.Sprintf("%s, and has the task's volume: ", away)
	switch latest := d.o.History.State.Latest; {
	case d.waitsForNode():
		return message + "the task waits for it, as spec.nodeLoss.policy says; set it to Replace to go on from the last durable checkpoint with a new volume"
	case !d.given(away):
		d.requeueAt(d.lostAt(away))
		return message + fmt.Sprintf("if it is not back by %s, the task goes on from its last durable checkpoint with a new volume", stamp(d.lostAt(away)))
	case !d.o.Elsewhere:
		return message + noneElsewhere
	case !d.o.History.Known:
		return message + "the task goes on with a new one when the history store can be reached"
	case d.rests() && (d.behind() || latest != nil && !latest.Durable):
		return message + fmt.Sprintf("only that volume may have what the task did last, so the task waits for the node; to give that up and go on from the last durable checkpoint, delete the PersistentVolumeClaim %s", d.claimName())
	}
	return ""
}

// rests reports whether the task has ended or was suspended in good order, so that its volume may have
// what is nowhere else, and the task can wait for it.
func (d *decision) rests() bool {
	for _, a := range slices.Backward(d.s.Attempts) {
		if a.AgentStartTime == nil && a.Outcome != v1alpha1.AttemptRewound {
			continue // its agent has not run
		}
		switch a.Outcome {
		case v1alpha1.AttemptPodLost, v1alpha1.AttemptNodeLost, v1alpha1.AttemptStopped, v1alpha1.AttemptPrepareFailed, "":
			return false
		case v1alpha1.AttemptAgentFailed:
			return !retried(a)
		}
		return true
	}
	return false
}

// missesVolume reports whether no node takes a pod, since the task's volume is on one that is lost.
func (d *decision) missesVolume(v *podView) bool {
	claim := d.volume()
	if v.pod.Spec.NodeName != "" || v.deleting || v.problem == nil || claim == nil || d.leftBehind(v.pod) {
		return false
	}
	away := d.strandedAt(claim)
	if away == nil {
		return false
	}
	if hold := d.volumeHold(away); hold != "" {
		d.noteAway(away, hold)
		d.wait(v1alpha1.ReasonNodeUnreachable, hold)
		return false
	}
	return true
}

// replaceVolume leaves the task's volume behind. The claim that takes its place is made when the status
// names it.
func (d *decision) replaceVolume(away *absence) {
	latest, known := d.lastDurable()
	if !known {
		d.noteAway(away, away.String())
		d.wait(v1alpha1.ReasonNodeUnreachable, away.String()+": the task goes on with a new volume when the history store says which checkpoint is durable")
		d.requeue(d.o.Limits.RetryBase)
		return
	}
	left := d.claimName()
	if claim := d.volume(); claim != nil {
		d.leaveClaim(claim)
	}
	d.s.ClaimName, d.s.ClaimUID, d.s.Released = resources.NextClaimName(d.task.Name, left), "", nil
	d.forgetSize()
	meta.RemoveStatusCondition(&d.s.Conditions, v1alpha1.TaskWorkspaceReady)
	from, checkpoint := "it has no durable checkpoint, and starts anew with another one", int64(0)
	if latest != nil {
		from = fmt.Sprintf("the work is restored from checkpoint %d, of %s, to another one", latest.Number, stamp(latest.Time))
		checkpoint = latest.Number
	}
	d.addCheckpointEntry(v1alpha1.EventVolumeLost, clew, fmt.Sprintf("%s, so the task leaves its volume %s behind: %s, %s%s",
		away, left, from, d.s.ClaimName, d.lostWork(checkpoint)), checkpoint)
	d.wait(v1alpha1.ReasonPreparing, "the task gets a new volume, "+d.s.ClaimName)
	d.requeue(0)
}

// lostWork says what is lost with a volume; "" if nothing is, or nothing is known of it.
func (d *decision) lostWork(checkpoint int64) string {
	last := d.last()
	if d.rests() || last == nil || last.AgentStartTime == nil {
		return ""
	}
	after := "all that it did is lost"
	if checkpoint > 0 {
		after = "what it did after that is lost"
	}
	if heard := d.lastActivity(); heard != nil {
		after += ", and the history last heard of its agent at " + stamp(heard.Time)
	}
	return ": " + after
}

// leaveClaim adds a claim to those that were left behind. If they are too many, the oldest is deleted
// now: Kubernetes keeps it for as long as a pod uses it.
func (d *decision) leaveClaim(claim *corev1.PersistentVolumeClaim) {
	d.s.FormerClaims = append(d.s.FormerClaims, v1alpha1.FormerClaim{Name: claim.Name, UID: string(claim.UID)})
	if len(d.s.FormerClaims) > maxFormerClaims {
		oldest := d.s.FormerClaims[0]
		d.plan.DropClaims = append(d.plan.DropClaims, ObjectRef{Name: oldest.Name, UID: oldest.UID})
		d.s.FormerClaims = d.s.FormerClaims[1:]
	}
}

// dropFormerClaims deletes the claims that were left behind and that no pod uses any more, and forgets
// those that are gone.
func (d *decision) dropFormerClaims() {
	d.s.FormerClaims = slices.DeleteFunc(d.s.FormerClaims, func(f v1alpha1.FormerClaim) bool {
		i := slices.IndexFunc(d.o.FormerClaims, func(c corev1.PersistentVolumeClaim) bool { return string(c.UID) == f.UID })
		if i >= 0 && d.o.FormerClaims[i].DeletionTimestamp == nil && !d.claimUsed(f.Name) {
			d.plan.DropClaims = append(d.plan.DropClaims, ObjectRef{Name: f.Name, UID: f.UID})
		}
		return i < 0
	})
}

// claimUsed reports whether a pod that has not finished uses a claim.
func (d *decision) claimUsed(name string) bool {
	return slices.ContainsFunc(d.o.Pods, func(pod corev1.Pod) bool {
		return resources.MountedClaim(&pod) == name && !inspect(&pod).finished
	})
}

// lastDurable returns the last durable checkpoint; nil if there is none. It asks for it if it is not
// the latest one.
func (d *decision) lastDurable() (checkpoint *history.Checkpoint, known bool) {
	latest := d.o.History.State.Latest
	switch {
	case latest == nil || latest.Durable:
		return latest, d.o.History.Known
	case !d.o.Durable.Known:
		d.plan.InspectDurable = true
		return nil, false
	}
	return d.o.Durable.Checkpoint, true
}
