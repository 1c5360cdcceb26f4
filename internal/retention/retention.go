// Package retention decides which Checkpoint objects of a task are surplus. It is pure: the
// manager deletes what it returns all the time, and kubectl clew checkpoint prune does so
// when somebody asks.
//
// It promises never to return the latest Checkpoint of a task, one that a Task, Fork or
// ConversationSnapshot names, one whose spec.retention is Keep, or one that somebody applied or
// gave a branch and that does not say ByPolicy. Only objects are ever surplus: the record stays in the
// history and the code in the gitstore.
package retention

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

// Rule says which of a task's Checkpoint objects stay: the newest, and the young ones.
type Rule struct {
	// KeepLast is how many of the newest stay.
	KeepLast int
	// KeepFor is the age up to which the others stay as well.
	KeepFor time.Duration
	// Ceiling is how many stay at most, whatever their age; 0 for any number.
	Ceiling int
}

// RuleOf returns the rule of a task's checkpointPolicy, or that of a finished task that was released. A
// ceiling of 0 is none.
func RuleOf(task *v1alpha1.Task, ceiling int) Rule {
	if r := task.Status.Released; task.Status.IsReleased() && r.Cause == v1alpha1.ReleasedFinished {
		return Rule{} // the latest one stays all the same
	}
	policy := task.Spec.CheckpointPolicy.Retention
	// Without the schema's defaults, as in an object of an older version, only the ceiling counts.
	last := int(ptr.Deref(policy.KeepLast, 1<<30))
	if ceiling > 0 {
		last = min(last, ceiling)
	}
	return Rule{KeepLast: last, KeepFor: time.Duration(ptr.Deref(policy.KeepForSeconds, 0)) * time.Second, Ceiling: ceiling}
}

// Answer is what a rule says about the objects of a task.
type Answer struct {
	// Surplus are the objects to delete, oldest checkpoint first.
	Surplus []*v1alpha1.Checkpoint
	// Kept is how many of those that the rule is about stay.
	Kept int
	// Newest is when the newest of them was created; zero if there are none.
	Newest time.Time
	// Next is when an object that is still too young becomes surplus; zero if none does.
	Next time.Time
}

// Decide applies a rule to the Checkpoints of a task. The list may contain others, which it
// ignores; it is only read.
func Decide(list []v1alpha1.Checkpoint, task *v1alpha1.Task, named Names, rule Rule, now time.Time) Answer {
	var subject []*v1alpha1.Checkpoint
	for i := range list {
		if c := &list[i]; isSubject(c, task) && !named.Has(c) {
			subject = append(subject, c)
		}
	}
	slices.SortFunc(subject, func(a, b *v1alpha1.Checkpoint) int {
		return cmp.Or(cmp.Compare(b.Status.Number, a.Status.Number), cmp.Compare(a.Name, b.Name))
	})
	answer := Answer{}
	for i, c := range subject {
		created := c.CreationTimestamp.Time
		if created.After(answer.Newest) {
			answer.Newest = created
		}
		if i < rule.KeepLast || isLatest(c, task) {
			answer.Kept++
			continue
		}
		young := rule.KeepFor > 0 && (rule.Ceiling == 0 || i < rule.Ceiling)
		if until := created.Add(rule.KeepFor); young && until.After(now) {
			answer.Kept++
			if answer.Next.IsZero() || until.Before(answer.Next) {
				answer.Next = until
			}
			continue
		}
		answer.Surplus = append(answer.Surplus, c)
	}
	slices.Reverse(answer.Surplus)
	return answer
}

// isLatest reports whether it is the task's latest checkpoint.
func isLatest(c *v1alpha1.Checkpoint, task *v1alpha1.Task) bool {
	latest := task.Status.LatestCheckpoint
	return latest != nil && (latest.Name == c.Name || latest.Number == c.Status.Number)
}

// isSubject reports whether the rule is about the Checkpoint.
func isSubject(c *v1alpha1.Checkpoint, task *v1alpha1.Task) bool {
	switch {
	case c.DeletionTimestamp != nil, c.Status.Number == 0, c.Status.TaskUID != string(task.UID), c.Spec.TaskRef.Name != task.Name:
		return false
	case c.Spec.Retention != "":
		return c.Spec.Retention == v1alpha1.CheckpointByPolicy
	}
	return managed(c, task) && isAutomatic(c.Status.Trigger) && len(c.Spec.Branches) == 0
}

// managed reports whether the manager created the Checkpoint, for this task. Anybody in the
// namespace can write labels and owners; the name and the requester that admission writes
// distinguish the manager's objects from imitations.
func managed(c *v1alpha1.Checkpoint, task *v1alpha1.Task) bool {
	uid, number, ok := resources.CheckpointNumber(c)
	return ok && uid == string(task.UID) && c.Status.Number == number &&
		c.Spec.RequestedBy == "" && c.Status.RequestedBy == "" &&
		(c.Name == resources.CheckpointName(task.Name, number) || c.Name == resources.CheckpointNameOr(task, number))
}

// isAutomatic reports whether the checkpoint was taken for an agent and not for a person.
// Triggers unknown to this version are not automatic.
func isAutomatic(trigger v1alpha1.CheckpointTrigger) bool {
	return slices.Contains([]v1alpha1.CheckpointTrigger{
		v1alpha1.TriggerAgent, v1alpha1.TriggerToolCalls, v1alpha1.TriggerInterval, v1alpha1.TriggerBeforeRiskyTool, v1alpha1.TriggerBeforeRun,
		v1alpha1.TriggerSuspend, v1alpha1.TriggerCompletion, v1alpha1.TriggerFailure, v1alpha1.TriggerDrift, v1alpha1.TriggerPhase,
	}, trigger)
}
