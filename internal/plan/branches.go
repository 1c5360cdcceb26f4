package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

// ObservedBranches is everything that a decision about a Checkpoint's branches, at the task's
// repository and in the agent's, depends on.
type ObservedBranches struct {
	// Checkpoint is the stored object.
	Checkpoint *v1alpha1.Checkpoint
	// Task is the one that it names; nil if there is none.
	Task *v1alpha1.Task
	// Checkouts are the checkouts that all Checkpoints of the task request and that have no outcome
	// yet, if this one requests any.
	Checkouts []daemonapi.Checkout
	// Publishers are the pods that push the Checkpoint's branches.
	Publishers []corev1.Pod
	// Busy is true while a branch of another Checkpoint of the task is pushed. Its end is
	// observed, unless the node of its pod is lost: FreeAt is when it then counts as ended; zero
	// while that is not known.
	Busy   bool
	FreeAt time.Time
	// Refused is why the API server refused to create the pod that the status names; "" if it
	// did not.
	Refused string
	// Reserved is the name of the pod that this process has reserved and has certainly not created; ""
	// for none. Another process may have created one that the status names.
	Reserved string
	// Damage is what is recorded of the checkpoint for which a pod would be started, if its objects
	// are damaged; nil otherwise, and while no pod would be.
	Damage *history.Integrity
	// Limits are the pauses to use.
	Limits Limits
}

// BranchesPlan is what to do about the branches, in this order: pods to stop, status, pod to
// start, Events.
type BranchesPlan struct {
	// Branches is the new status.branches, and Pushes the new status.branchPushes.
	Branches []v1alpha1.CheckpointBranchStatus
	Pushes   int64
	// StopPods are the pods to delete.
	StopPods []PodRef
	// Start is the pod to create; nil for none.
	Start *BranchPublisher
	// Events are what happened.
	Events []BranchEvent
	// RequeueAfter is when to decide again if nothing happens before; 0 for never.
	RequeueAfter time.Duration
}

// BranchPublisher describes a pod that pushes a branch of a Checkpoint.
type BranchPublisher struct {
	Publisher
	Branch v1alpha1.CheckpointBranch
}

// BranchEvent is what became of a branch, or was asked for it.
type BranchEvent struct {
	// Branch is the branch's name.
	Branch string
	// Reason is that of the event, such as EventBranchPublished.
	Reason  string
	Message string
	// Key tells the event from others of the branch with the same reason. It is the same when
	// the event is recorded again.
	Key string
}

// branchFailures is how many pods of one branch follow one another that all fail: as many as
// there are in about a day.
const branchFailures = 300

// Changes reports whether the plan changes anything of the Checkpoint that it was made for, or of
// its pods.
func (p *BranchesPlan) Changes(c *v1alpha1.Checkpoint) bool {
	return p.Start != nil || len(p.StopPods)+len(p.Events) > 0 || !equality.Semantic.DeepEqual(p.Branches, c.Status.Branches)
}

// branching is the state of one call of DecideBranches.
type branching struct {
	o    ObservedBranches
	now  time.Time
	plan BranchesPlan
}

// PushesBranches reports whether there is anything to decide about the Checkpoint's branches at
// the repository. It needs only what the manager's cache keeps.
func PushesBranches(c *v1alpha1.Checkpoint) bool {
	for i := range c.Status.Branches {
		s := &c.Status.Branches[i]
		spec, made := pushedBranch(c, s), s.State == v1alpha1.BranchMade
		switch {
		case spec == nil && s.Origin == nil, spec != nil && s.Origin == nil && !made:
		case spec == nil || s.Origin == nil || s.Origin.PodName != "":
			return true
		case made && (s.Origin.RetryTime != nil || s.Origin.Request != branchRequest(spec)):
			return true
		}
	}
	return false
}

// DecideBranches returns what to do next to bring a Checkpoint's branches to the task's
// repository, one at a time, and what is known of those in the agent's. It is pure.
func DecideBranches(o ObservedBranches, now time.Time) BranchesPlan {
	d := &branching{o: o, now: now}
	d.plan.Branches, d.plan.Pushes = o.Checkpoint.DeepCopy().Status.Branches, o.Checkpoint.Status.BranchPushes
	for i := range d.plan.Branches { // an earlier version of Clew has counted them apart
		if s := d.plan.Branches[i].Origin; s != nil {
			d.plan.Pushes = max(d.plan.Pushes, s.Number)
		}
	}
	var active *v1alpha1.CheckpointBranchStatus
	for i := range d.plan.Branches {
		s := &d.plan.Branches[i]
		d.agentBranch(s)
		switch {
		case pushedBranch(o.Checkpoint, s) == nil:
			s.Origin = nil
		case s.Origin == nil && s.State != v1alpha1.BranchMade: // pushed once the gitstore has it
		case s.Origin == nil:
			s.Origin = &v1alpha1.OriginBranchStatus{Reason: v1alpha1.ReasonPublishPending, Message: "the branch will be pushed"}
		case s.Origin.PodName != "":
			active = s
		}
	}
	if active != nil {
		d.follow(active)
	}
	if active == nil || active.Origin.PodName == "" {
		d.startNext()
	}
	d.stopOthers()
	return d.plan
}

// pushedBranch returns the entry of the spec by which a branch is pushed; nil if it is not.
func pushedBranch(c *v1alpha1.Checkpoint, s *v1alpha1.CheckpointBranchStatus) *v1alpha1.CheckpointBranch {
	if spec := entryOf(c, s.Name); spec != nil && spec.Push == v1alpha1.PushOrigin {
		return spec
	}
	return nil
}

// branchRequest identifies what an entry of the spec says about the push.
func branchRequest(b *v1alpha1.CheckpointBranch) string {
	text, _ := json.Marshal([]string{string(b.OnDiverged), b.ApprovedCommit, b.ID})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:32]
}

// stopOthers deletes the pods that the status does not name.
func (d *branching) stopOthers() {
	for i := range d.o.Publishers {
		pod := &d.o.Publishers[i]
		named := slices.ContainsFunc(d.plan.Branches, func(s v1alpha1.CheckpointBranchStatus) bool {
			return s.Origin != nil && s.Origin.PodName == pod.Name && (s.Origin.PodUID == "" || s.Origin.PodUID == string(pod.UID))
		})
		if !named && pod.DeletionTimestamp == nil {
			d.plan.StopPods = append(d.plan.StopPods, PodRef{Name: pod.Name, UID: string(pod.UID)})
		}
	}
}

// follow reports what the pod does that pushes a branch.
func (d *branching) follow(s *v1alpha1.CheckpointBranchStatus) {
	i := slices.IndexFunc(d.o.Publishers, func(pod corev1.Pod) bool { return pod.Name == s.Origin.PodName })
	switch {
	case d.o.Refused != "":
		d.ended(s, daemonapi.PublishResult{Reason: v1alpha1.ReasonPodRefused, Message: d.o.Refused, Retryable: true, NotPushed: true})
	case i < 0 && s.Origin.PodUID == "" && s.Origin.PodName == d.o.Reserved: // it has yet to be created
		d.create(s, pushedBranch(d.o.Checkpoint, s))
	case i < 0 && s.Origin.PodUID == "": // it may have pushed, and is gone: its number is not given again
		s.Origin.PodName, s.Origin.RetryTime = "", ptr.To(metav1.NewTime(d.now))
		s.Origin.Tries = afterPod(s.Origin.Tries, daemonapi.PublishResult{})
	case i < 0 || s.Origin.PodUID != "" && s.Origin.PodUID != string(d.o.Publishers[i].UID):
		d.ended(s, publishFailed("the pod that publishes is gone"))
	default:
		d.observe(s, &d.o.Publishers[i])
	}
}

// observe reports the outcome of the pod, or why it does not start.
func (d *branching) observe(s *v1alpha1.CheckpointBranchStatus, pod *corev1.Pod) {
	s.Origin.PodUID = string(pod.UID)
	w := watchPublisher(pod, d.o.Limits, d.now)
	switch {
	case w.result != nil: // stopOthers deletes the pod
		d.ended(s, *w.result)
		return
	case w.problem != "":
		d.tell(s, v1alpha1.ReasonPublishing, w.problem)
	}
	d.requeueAt(w.next)
}

// startNext plans a pod for the first branch that has to be pushed.
func (d *branching) startNext() {
	for i := range d.plan.Branches {
		s := &d.plan.Branches[i]
		spec := pushedBranch(d.o.Checkpoint, s)
		switch {
		case spec == nil || s.Origin == nil || s.State != v1alpha1.BranchMade:
			continue
		case s.Origin.Request != branchRequest(spec):
			s.Origin.Failures = 0
		case s.Origin.RetryTime == nil:
			continue
		case d.now.Before(d.nextTry(s.Origin)):
			d.requeueAt(d.nextTry(s.Origin))
			continue
		}
		if d.o.Damage != nil {
			d.hold(s, spec)
			continue
		}
		if d.o.Busy {
			d.tell(s, v1alpha1.ReasonPublishPending, "another branch of the task is being pushed")
			if !d.o.FreeAt.IsZero() {
				d.requeueAt(d.o.FreeAt)
			}
			continue
		}
		s.Origin.Request, s.Origin.RetryTime = branchRequest(spec), nil
		try := v1alpha1.PublishTry{Ref: resources.PublishRef(s.Name), Checkpoint: d.o.Checkpoint.Status.Number}
		s.Origin.Tries = begin(s.Origin.Tries, try, d.firstPod())
		d.plan.Pushes++
		s.Origin.Number = d.plan.Pushes
		if spec.ApprovedCommit != "" {
			d.add(s, v1alpha1.EventCommitApproved, spec.ApprovedCommit, fmt.Sprintf("approved that commit %s is pushed as the branch %s, whatever it changes", spec.ApprovedCommit, s.Name))
		}
		if d.create(s, spec); s.Origin.PodName != "" {
			return
		}
	}
}

// nextTry returns when another pod may follow one that has failed.
func (d *branching) nextTry(o *v1alpha1.OriginBranchStatus) time.Time {
	return retriedAt(o.Reason, o.Failures, d.o.Limits, o.RetryTime)
}

// hold says that a branch is not pushed because the checkpoint is damaged. It is once that has been
// healed: the Checkpoint's condition Intact then changes.
func (d *branching) hold(s *v1alpha1.CheckpointBranchStatus, spec *v1alpha1.CheckpointBranch) {
	o, request := s.Origin, branchRequest(spec)
	known := o.Reason == v1alpha1.ReasonCheckpointCorrupted && o.Request == request
	o.Request, o.HeldCommit, o.ProtectedFiles = request, "", nil
	d.tell(s, v1alpha1.ReasonCheckpointCorrupted, fmt.Sprintf(
		"checkpoint %d is damaged (%s): the branch is pushed by itself once it is healed, as by a restore of the gitstore from a backup", d.o.Checkpoint.Status.Number, Damage(*d.o.Damage)))
	if !known {
		o.RetryTime = ptr.To(metav1.NewTime(d.now))
		d.notPushed(s, fmt.Sprintf("%d/%s/damaged", o.Number, o.Request))
	}
}

// firstPod reports whether there was certainly no pod of the checkpoint before. Whether there was one of
// a branch that was taken out of the spec meanwhile, only the number of all pushes tells.
func (d *branching) firstPod() bool {
	c := &d.o.Checkpoint.Status
	return d.plan.Pushes == 0 && c.Time != nil && d.o.Task != nil && knowsPods(d.o.Task.Status.Attempts, c.Attempt, c.Time.Time, d.now)
}

// create plans the pod that pushes a branch, if the task can push at all.
func (d *branching) create(s *v1alpha1.CheckpointBranchStatus, spec *v1alpha1.CheckpointBranch) {
	c, task := d.o.Checkpoint, d.o.Task
	switch {
	case task == nil || string(task.UID) != c.Status.TaskUID || task.DeletionTimestamp != nil:
		d.ended(s, daemonapi.PublishResult{Reason: v1alpha1.ReasonTaskNotFound, Message: fmt.Sprintf("the Task %s that the checkpoint is of is gone, and with it the address and the credentials of its repository", c.Spec.TaskRef.Name)})
		return
	case task.Spec.Repository == nil:
		d.ended(s, daemonapi.PublishResult{Reason: v1alpha1.ReasonRepositoryNotFound, Message: "the task has no repository that a branch could be pushed to: set push to Never"})
		return
	}
	s.Origin.PodName, s.Origin.PodUID = resources.BranchPublisherName(c, s.Name, s.Origin.Number), ""
	d.tell(s, v1alpha1.ReasonPublishing, "the branch is being pushed")
	d.plan.Start = &BranchPublisher{Branch: *spec, Publisher: Publisher{Number: s.Origin.Number, Checkpoint: c.Status.Number}}
	ref := resources.PublishRef(s.Name)
	d.plan.Start.know(s.Origin.Tries, ref)
	d.plan.Start.announced(s.Origin.Tries, ref) // the Task's are not for this pod
	known, p := s.Origin.Ref == ref, task.Status.Publish
	if p != nil {
		d.plan.Start.know(ended(p.Tries), ref)
	}
	if known {
		d.plan.Start.Replaces, d.plan.Start.Onto = s.Origin.Commit, s.Origin.Onto
	}
	switch {
	case p == nil || p.Ref != ref:
	case known:
		d.plan.Start.Earlier = []daemonapi.OwnPush{{Commit: p.Commit, Onto: p.Onto}}
	default:
		d.plan.Start.Replaces, d.plan.Start.Onto = p.Commit, p.Onto
	}
}

// ended records the outcome of a pod, or why none was started.
func (d *branching) ended(s *v1alpha1.CheckpointBranchStatus, result daemonapi.PublishResult) {
	o := s.Origin
	key := cmp.Or(o.PodUID, fmt.Sprintf("%d/%s", o.Number, o.Request))
	o.PodName, o.PodUID, o.RetryTime, o.HeldCommit, o.ProtectedFiles = "", "", nil, "", nil
	for _, file := range result.Protected {
		o.ProtectedFiles = append(o.ProtectedFiles, resources.PlainText(file, 256))
	}
	if result.Reason == v1alpha1.ReasonProtectedPaths {
		o.HeldCommit = resources.PlainText(result.Commit, 64)
	}
	o.Tries = afterPod(o.Tries, result)
	if announcing(result.Reason) {
		var atOnce bool
		if o.Tries, atOnce = announce(o.Tries, d.o.Checkpoint.Status.Number, result); atOnce {
			o.RetryTime = ptr.To(metav1.NewTime(d.now))
			d.tell(s, v1alpha1.ReasonPushAnnounced, result.Message)
			return
		}
		result = publishFailed(stillMoving)
	}
	switch {
	case result.Reason == v1alpha1.ReasonPublished:
		d.published(s, result, key)
		return
	case result.Retryable && o.Failures+1 < branchFailures && (result.Reason != v1alpha1.ReasonPublishFailed || o.Failures+1 < maxUnknownFailures):
		o.Failures++
		o.RetryTime = retryTime(result.Reason, o.Failures, d.o.Limits, d.now)
		d.requeueAt(retriedAt(result.Reason, o.Failures, d.o.Limits, o.RetryTime))
		result.Message += "; trying again"
	case result.Retryable:
		o.Failures = 0
		result.Message = fmt.Sprintf("%s; it is not tried again: remove the cause, then request it again", clip.Marked(result.Message, maxMessage/2))
	default:
		o.Failures = 0
	}
	d.tell(s, result.Reason, result.Message)
	if o.Failures <= 1 {
		d.notPushed(s, key)
	}
}

// notPushed adds an Event about why the branch was not pushed.
func (d *branching) notPushed(s *v1alpha1.CheckpointBranchStatus, key string) {
	d.add(s, v1alpha1.EventBranchNotPublished, key, fmt.Sprintf("the branch %s of checkpoint %d was not pushed (%s): %s", s.Name, d.o.Checkpoint.Status.Number, s.Origin.Reason, s.Origin.Message))
}

// published records that the repository has the branch.
func (d *branching) published(s *v1alpha1.CheckpointBranchStatus, result daemonapi.PublishResult, key string) {
	o, known := s.Origin, s.Origin.Ref == result.Ref && s.Origin.Commit == result.Commit
	o.Tries = settled(o.Tries, v1alpha1.PublishTry{Ref: resources.PlainText(result.Ref, 255), Checkpoint: d.o.Checkpoint.Status.Number})
	o.Failures, o.Ref, o.Commit, o.Onto = 0, resources.PlainText(result.Ref, 255), resources.PlainText(result.Commit, 64), resources.PlainText(result.Onto, 64)
	if result.Answer != "" || !known {
		o.Answer = resources.PlainText(result.Answer, maxMessage)
	}
	d.tell(s, v1alpha1.ReasonPublished, fmt.Sprintf("checkpoint %d is at %s as %s", d.o.Checkpoint.Status.Number, result.Ref, result.Commit))
	if !known {
		d.add(s, v1alpha1.EventBranchPublished, key, o.Message)
	}
}

// tell writes reason and message.
func (d *branching) tell(s *v1alpha1.CheckpointBranchStatus, reason, message string) {
	s.Origin.Reason, s.Origin.Message = reason, statusText(message)
}

func (d *branching) add(s *v1alpha1.CheckpointBranchStatus, reason, key, message string) {
	d.plan.Events = append(d.plan.Events, BranchEvent{Branch: s.Name, Reason: reason, Message: statusText(message), Key: key})
}

// BranchRequester returns who asked for a branch of the Checkpoint, or removed it. What is written
// in the spec about that is true only if admission has stamped it.
func BranchRequester(c *v1alpha1.Checkpoint, branch string, stamped bool) string {
	i := slices.IndexFunc(c.Spec.Branches, func(b v1alpha1.CheckpointBranch) bool { return b.Name == branch })
	stamp, field := c.Spec.BranchesChangedBy, []any{"spec", "branches"}
	if i >= 0 {
		stamp, field = c.Spec.Branches[i].RequestedBy, []any{"spec", "branches", fieldpath.KeyByFields("name", branch), "name"}
	}
	if !stamped {
		stamp = ""
	}
	return cmp.Or(Requester(c, stamp, field...), Unknown)
}

// requeueAt asks for another decision at t at the latest.
func (d *branching) requeueAt(t time.Time) {
	after := max(t.Sub(d.now), 10*time.Millisecond)
	if d.plan.RequeueAfter == 0 || after < d.plan.RequeueAfter {
		d.plan.RequeueAfter = after
	}
}
