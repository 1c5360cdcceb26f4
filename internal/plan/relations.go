package plan

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/reason"
)

// FamilyView is what the parent of a task follows of it.
type FamilyView struct {
	Status, Reason string
	Working        bool
	Deleting       bool
	// Finished and Released are what a parent waits for that is to be deleted with its children.
	Finished, Released bool
}

// FamilyViewOf returns what the parent of a task follows of it.
func FamilyViewOf(task *v1alpha1.Task) FamilyView {
	v := FamilyView{Working: working(task), Deleting: task.DeletionTimestamp != nil}
	if c := succeededOf(task); c != nil {
		v.Status, v.Reason = string(c.Status), c.Reason
	}
	v.Finished, v.Released = task.Status.FinishedTime != nil, task.Status.IsReleased()
	return v
}

// Relations are what a task has to do with others, as its spec and its status say.
type Relations struct {
	FamilyView
	// UID is the task's; "" stands for no task.
	UID string
	// Supervisor is true for a task that may have children, Maximum of them.
	Supervisor bool
	Maximum    int
	// ParentName is the parent in its spec, ParentUID the one that it has found; "" for none.
	ParentName, ParentUID string
	// Contract is the name of its contract, and Joined is true once it is one of the members; "" if it
	// belongs to none, or to its parent's and has yet to find out.
	Contract string
	Joined   bool
	// Leads is true for the supervisor that leads the contract. A supervisor leads it through Phases, as
	// one text, with Budget for all of its tasks; Begun is true once it has an attempt.
	Leads  bool
	Phases string
	Budget budget.Amounts
	Begun  bool
	// ReleasesChildren is true for a supervisor that is to be deleted with its children, which give their
	// volumes back first. ReleasePending is true for a task that is to give its own back, and has not.
	ReleasesChildren, ReleasePending bool
	// Restart is the resume of a supervisor that has begun a phase again last, and FollowedRestart that of
	// the parent that the task has followed; "" for none.
	Restart, FollowedRestart string
	// Rewind is the rewind of a supervisor that takes children along and is complete, and FollowedRewind
	// that of the parent that the task has seen; "" for none.
	Rewind, FollowedRewind string
	// Adopted is the UID of the former task that it continues; "" for none.
	Adopted string
	// Waits is why it cannot start, if others can change that; "" otherwise.
	Waits string
	// Awaits are the tasks that it waits for.
	Awaits []v1alpha1.Dependency
	// Source is the name of the task from which it starts, until that is resolved; "" otherwise.
	Source string
}

// RelationsOf returns what a task has to do with others.
func RelationsOf(task *v1alpha1.Task) Relations {
	r := Relations{
		FamilyView: FamilyViewOf(task), UID: string(task.UID),
		Supervisor: task.Spec.Role == v1alpha1.RoleSupervisor, Maximum: MaximumOf(task),
		ParentName: ptr.Deref(task.Spec.ParentRef, v1alpha1.NameReference{}).Name,
		ParentUID:  ptr.Deref(task.Status.Parent, v1alpha1.ParentStatus{}).UID,
		Contract:   ContractName(task), Joined: task.Status.Contract != nil, Leads: Leads(task),
		Adopted: ptr.Deref(task.Status.Adoption, v1alpha1.AdoptionStatus{}).TaskUID, Awaits: Awaited(task),
	}
	if r.Supervisor {
		r.Phases, r.Budget, r.Begun = strings.Join(task.Spec.PhasesOf(), ","), ContractBudget(task), len(task.Status.Attempts) > 0
	}
	if c := task.Status.Contract; c != nil && c.Restart != nil {
		r.Restart = c.Restart.ID
	}
	if led := task.Status.SetRewind; led != nil && led.State == v1alpha1.OperationCompleted {
		r.Rewind = led.ID
	}
	parent := ptr.Deref(task.Status.Parent, v1alpha1.ParentStatus{})
	r.FollowedRestart, r.FollowedRewind = parent.FollowedRestart, parent.FollowedRewind
	r.ReleasesChildren = releasesChildren(task)
	r.ReleasePending = meta.IsStatusConditionFalse(task.Status.Conditions, v1alpha1.TaskVolumeReleased)
	if !r.Deleting && reason.Find(r.Reason).Watched {
		r.Waits = r.Reason
	}
	if from := UnresolvedSource(task); from != nil && len(r.Awaits) == 0 {
		r.Source = from.TaskRef.Name // otherwise it looks for that once they have ended
	}
	return r
}

// Equal reports whether nothing is different.
func (r Relations) Equal(other Relations) bool { return equality.Semantic.DeepEqual(r, other) }

// AsParent is what tasks that are or want to be a task's children follow of it.
type AsParent struct {
	UID                         string
	Deleting, Supervisor, Found bool
	ReleasesChildren            bool
	Contract, Phases, Adopted   string
	Restart, Rewind             string
}

// AsParent returns what children follow of the task. One that has not joined its contract has not
// started; one that names a parent and has not found it has not either.
func (r Relations) AsParent() AsParent {
	p := AsParent{UID: r.UID, Deleting: r.Deleting, Supervisor: r.Supervisor, Found: r.ParentName == "" || r.ParentUID != "",
		ReleasesChildren: r.ReleasesChildren, Phases: r.Phases, Adopted: r.Adopted, Restart: r.Restart, Rewind: r.Rewind}
	if r.Joined {
		p.Contract = r.Contract
	}
	return p
}

// FollowsParent reports whether a child has to decide again when its parent has changed. parent is the zero
// value once it is gone.
func (r Relations) FollowsParent(parent Relations) bool {
	if parent.UID != "" && r.ParentUID != parent.UID {
		return true
	}
	if parent.Restart != "" && parent.Restart != r.FollowedRestart || parent.Rewind != "" && parent.Rewind != r.FollowedRewind {
		return true
	}
	return !(r.Finished && r.Released) && (parent.ReleasesChildren || r.ReleasePending)
}

// AsLead is what the tasks of a contract follow of its supervisors.
type AsLead struct {
	UID, Contract, Phases  string
	Leads, Begun, Deleting bool
	Budget                 budget.Amounts
}

// AsLead returns what the tasks of its contract follow of a supervisor; the zero value for a worker.
func (r Relations) AsLead() AsLead {
	if !r.Supervisor {
		return AsLead{}
	}
	lead := AsLead{UID: r.UID, Contract: r.Contract, Leads: r.Leads, Begun: r.Begun, Deleting: r.Deleting, Budget: r.Budget}
	if r.Leads {
		lead.Phases = r.Phases
	}
	return lead
}

// Failed reports whether the task has failed: such a one says who waits for it.
func (r Relations) Failed() bool { return r.Status == string(metav1.ConditionFalse) }
