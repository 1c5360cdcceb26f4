package v1alpha1

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Role is a task's part in its contract.
// +kubebuilder:validation:Enum=Worker;Supervisor
type Role string

const (
	// RoleWorker does one piece of the work.
	RoleWorker Role = "Worker"
	// RoleSupervisor leads the contract through its phases, and has children.
	RoleSupervisor Role = "Supervisor"
)

// Phases of a contract whose supervisor lists none.
const (
	PhaseResearch = "Research"
	PhaseSpecify  = "Specify"
	PhasePlan     = "Plan"
	PhaseExecute  = "Execute"
	PhaseReview   = "Review"
)

// DefaultPhases returns the phases of a contract whose supervisor lists none, in their order.
func DefaultPhases() []string {
	return []string{PhaseResearch, PhaseSpecify, PhasePlan, PhaseExecute, PhaseReview}
}

const (
	// MaxContractTasks is the number of tasks that a contract can have.
	MaxContractTasks = 1000
	// MaxTaskDepth is how deep children are nested: a task without a parent has the depth 0.
	MaxTaskDepth = 4
)

// Contract is the group of tasks that a task belongs to: all tasks of the namespace that name it.
type Contract struct {
	// name of the contract. It is immutable. Whoever makes a Task that names a contract needs the right
	// to patch the Tasks of the namespace, or, for a worker with parentRef, that Task.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="contract.name must be lower-case letters, digits and '-' only, since labels carry it"
	Name string `json:"name"`
	// phase of the contract. In a supervisor, it is the phase to begin with, the first one when
	// left out, and moves the contract to another one whenever it is changed;
	// status.contract.phase is the current one, which Clew moves as well, without ever changing
	// this field. While the supervisor's agent works, a phase begins with a checkpoint that is taken
	// for it, and the contract enters it when the gitstore has that. In a worker, it is the phase that the task belongs to; when left out, the
	// current one of the contract's supervisor when the task is made.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",message="contract.phase must begin and end with a letter or digit, and have only those, '-', '_' and '.', since labels carry it"
	Phase string `json:"phase,omitempty"`
	// phases of the contract in their order; Research, Specify, Plan, Execute and Review when left
	// out. Only a supervisor lists them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.all(p, p.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="each of contract.phases must begin and end with a letter or digit, and have only those, '-', '_' and '.', since labels carry it"
	Phases []string `json:"phases,omitempty"`
	// budget is what all tasks of the contract may spend together, the supervisor and those that are
	// gone included, for as long as the history of any of them is kept; status.contract.spent has what
	// they have spent. When all is spent, those that run are stopped as by a budget of their own, once
	// they have told the history what they have spent since, and no other one starts; each of them
	// continues by a resume once the budget is raised, and those that have yet to start do so by
	// themselves. Only a supervisor has it; that of the one that leads the contract counts, or else of
	// the newest one that has.
	// +optional
	Budget *Budget `json:"budget,omitempty"`
}

// ChildrenOnDelete says what becomes of children when their parent is deleted.
// +kubebuilder:validation:Enum=Delete;Orphan
type ChildrenOnDelete string

const (
	// ChildrenDelete deletes them, with their own children; their history is kept.
	ChildrenDelete ChildrenOnDelete = "Delete"
	// ChildrenOrphan leaves them as they are.
	ChildrenOrphan ChildrenOnDelete = "Orphan"
)

// Children are the limits of a supervisor's children, and what they are made of.
type Children struct {
	// maximum is the number of children that the task may have, finished ones included.
	// +optional
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Maximum *int32 `json:"maximum,omitempty"`
	// atOnce is how many of the children run at once, by whomever they were made; any number when
	// left out. The others are Queued, without a pod, and start by priority and age. A lower number
	// stops none that runs.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	AtOnce *int32 `json:"atOnce,omitempty"`
	// onDelete says what becomes of the children when the task is deleted.
	// +optional
	// +kubebuilder:default=Delete
	OnDelete ChildrenOnDelete `json:"onDelete,omitempty"`
	// template is what the children are made of that the agent makes with the tool task_create. What
	// it leaves out is as in this task; so are their repository and nodeLoss, always. Not taken over are
	// budget and publish, those of tools that are a supervisor's, and the action Delete of onFinish,
	// which is Release in a child. A change takes effect with the next child.
	// +optional
	Template *ChildTemplate `json:"template,omitempty"`
}

// ContractStatus is a task's place in its contract.
type ContractStatus struct {
	// name of the contract: that of spec.contract, or else the parent's.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// phase is the current one of a supervisor's contract; or the one in which a worker was made,
	// empty if it belongs to none.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Phase string `json:"phase,omitempty"`
	// specPhase is the spec.contract.phase that was followed last.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	SpecPhase string `json:"specPhase,omitempty"`
	// wished is the phase that spec.contract.phase asks for and that the contract has yet to enter. It is
	// absent if there is none.
	// +optional
	Wished *WishedPhase `json:"wished,omitempty"`
	// since is when the contract entered the phase.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// leadingSince is since when a supervisor leads the contract: from the start of its agent until
	// the task completes or fails. It is absent while it does not.
	// +optional
	LeadingSince *metav1.Time `json:"leadingSince,omitempty"`
	// handledCalls are the ids of the newest calls of the tool phase_set that were carried out, newest
	// last. None of them is carried out again.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	HandledCalls []string `json:"handledCalls,omitempty"`
	// refusedCalls are those among them that have not moved the contract, since no checkpoint could be
	// taken with which the phase would have begun.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=32
	RefusedCalls []RefusedPhaseCall `json:"refusedCalls,omitempty"`
	// spent is what all tasks of the contract have spent, if contract.budget bounds it. It is written
	// together with other changes.
	// +optional
	Spent *Spent `json:"spent,omitempty"`
	// spentTime is when that became known.
	// +optional
	SpentTime *metav1.MicroTime `json:"spentTime,omitempty"`
	// entered is the log of the phases that the supervisor has led the contract into, newest last, with where
	// each began. A rewind or resume that goes back in the supervisor's conversation takes nothing from it: it
	// adds the phase once more that it leads back into. RestartPhase goes back to where the phase began last, in
	// the conversation as it stands. Of too many, the oldest is dropped that was taken back, or else that was
	// entered again since.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Entered []EnteredPhase `json:"entered,omitempty"`
	// restart is the last resume that has begun a phase again. Children that it has found unfinished
	// stop.
	// +optional
	Restart *PhaseRestart `json:"restart,omitempty"`
}

// WishedPhase is a phase that the spec of a supervisor asks for.
type WishedPhase struct {
	// phase that is asked for.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Phase string `json:"phase"`
	// since is when that was first seen.
	// +required
	Since metav1.Time `json:"since"`
	// id is a random one, from which the Checkpoint with which the phase begins has its name, so that nobody
	// can foresee it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id,omitempty"`
	// requestedBy is who had set contract.phase when that was first seen; empty if that is not known. The
	// Checkpoint is requested in this name.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RequestedBy string `json:"requestedBy,omitempty"`
	// after is the number of the supervisor's newest checkpoint then. If its agent is at work, the phase
	// begins with a later one.
	// +optional
	After int64 `json:"after,omitempty"`
}

// EnteredPhase is where a phase of a contract began.
type EnteredPhase struct {
	// phase that was entered.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Phase string `json:"phase"`
	// time at which it was entered.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
	// checkpoint is the number of the one with which it began: taken for that, if the supervisor's agent
	// was at work, and else its newest one. It is empty if there was none, so that the phase began with
	// the first one.
	// +optional
	Checkpoint int64 `json:"checkpoint,omitempty"`
	// at is the number of the newest checkpoint of before, if the conversation went back into the phase: those
	// after it are of this phase. It is empty if the contract entered the phase with checkpoint.
	// +optional
	At int64 `json:"at,omitempty"`
}

// RefusedPhaseCall is a call of the tool phase_set that has not moved the contract.
type RefusedPhaseCall struct {
	// id of the call.
	// +required
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// message says why.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// Start returns the number of the checkpoint with which the phase began.
func (e EnteredPhase) Start() int64 { return cmp.Or(e.Checkpoint, 1) }

// Has reports whether a checkpoint was taken in the phase, or after it.
func (e EnteredPhase) Has(checkpoint int64) bool {
	if e.At != 0 {
		return e.At < checkpoint
	}
	return e.Checkpoint <= checkpoint
}

// Find returns the index in Entered of where a phase, the current one if its name is empty, began last in the
// supervisor's conversation as it stands; -1 if the contract has not been in it, or all of that was taken back.
func (c *ContractStatus) Find(phase string) int {
	phase = cmp.Or(phase, c.Phase)
	for _, i := range slices.Backward(c.Line()) {
		if c.Entered[i].Phase == phase {
			return i
		}
	}
	return -1
}

// Line returns the indices in Entered of the phases that have led to the current one in the supervisor's
// conversation as it stands, in their order.
func (c *ContractStatus) Line() (line []int) {
	for i := len(c.Entered) - 1; i >= 0; i-- {
		if e := c.Entered[i]; e.At != 0 {
			was := slices.IndexFunc(c.Entered[:i], func(o EnteredPhase) bool { return o.At == 0 && o.Phase == e.Phase && o.Checkpoint == e.Checkpoint })
			if was < 0 { // what had led there is not known any more
				line = append(line, i)
				break
			}
			i = was
		}
		line = append(line, i)
	}
	slices.Reverse(line)
	return line
}

// PhaseRestart is a resume of a supervisor that has begun a phase again.
type PhaseRestart struct {
	// id of the resume.
	// +required
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// time at which no agent of the try that was given up was left, and the new one had not begun: children
	// that were made by then, and have not finished, stop.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
	// requestedBy is who requested it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	RequestedBy string `json:"requestedBy,omitempty"`
}

// ParentStatus is the parent that was found for spec.parentRef.
type ParentStatus struct {
	// name of the parent.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the parent.
	// +required
	// +kubebuilder:validation:MaxLength=63
	UID string `json:"uid"`
	// depth of the task: 1 for a child of a task without a parent.
	// +required
	Depth int32 `json:"depth"`
	// followedRestart is the id of the last resume of the parent with the mode RestartPhase that the
	// task has followed.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	FollowedRestart string `json:"followedRestart,omitempty"`
	// stoppedBy is the id of such a resume that has stopped the task, which stays so until it is
	// resumed itself.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	StoppedBy string `json:"stoppedBy,omitempty"`
	// followedRewind is the id of the last rewind of the parent that takes children along and that the
	// task has seen.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	FollowedRewind string `json:"followedRewind,omitempty"`
	// rewind is the rewind by which the task follows that one, if it does; status.rewind says what has
	// become of it.
	// +optional
	Rewind *ParentRewind `json:"rewind,omitempty"`
}

// ChildrenStatus counts a supervisor's children by their state.
type ChildrenStatus struct {
	// total is the number of children that exist.
	// +required
	Total int32 `json:"total"`
	// waiting is the number of those that have yet to start, or wait for something.
	// +optional
	Waiting int32 `json:"waiting,omitempty"`
	// running is the number of those that work.
	// +optional
	Running int32 `json:"running,omitempty"`
	// stopped is the number of those that wait for a person or their supervisor: suspended, rewound
	// or drifted.
	// +optional
	Stopped int32 `json:"stopped,omitempty"`
	// completed is the number of those that completed.
	// +optional
	Completed int32 `json:"completed,omitempty"`
	// failed is the number of those that failed.
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// unfinished are the names of the oldest 20 that have neither completed nor failed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	// +kubebuilder:validation:items:MaxLength=253
	Unfinished []string `json:"unfinished,omitempty"`
}

// PhasesOf returns the phases of the contract that a supervisor leads, in their order.
func (s *TaskSpec) PhasesOf() []string {
	if s.Contract != nil && len(s.Contract.Phases) > 0 {
		return s.Contract.Phases
	}
	return DefaultPhases()
}
