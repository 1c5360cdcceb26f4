package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// A contract is the tasks of a namespace that name it. What it is stands in their status: the
// supervisor's has the current phase, a worker's the one in which it was made. The spec only says
// where to begin and where to go.

// Contract is what was found of the contract of a task.
type Contract struct {
	// Leader is another supervisor that leads the contract; nil if there is none.
	Leader *v1alpha1.Task
	// Room reports whether the task is among the contract's members, or may become one.
	Room bool
}

// ContractName returns the name of the contract that a task belongs to, which is its parent's if it
// names none; "" if it belongs to none, or if its parent has yet to be found.
func ContractName(task *v1alpha1.Task) string {
	if c := task.Status.Contract; c != nil {
		return c.Name
	}
	if c := task.Spec.Contract; c != nil {
		return c.Name
	}
	return ""
}

// Leads reports whether a task is a supervisor that leads its contract now.
func Leads(task *v1alpha1.Task) bool {
	return task.Status.Contract != nil && task.Status.Contract.LeadingSince != nil && task.DeletionTimestamp == nil
}

// LeadsBefore reports whether a task leads the contract that another one wants to lead. Should both
// lead, since a status was put back to an older copy, it is the older one.
func LeadsBefore(task, other *v1alpha1.Task) bool {
	return Leads(task) && (!Leads(other) || byAge([]v1alpha1.Task{*task, *other})[0].UID == task.UID)
}

// joinContract gives a task that is about to start its place in its contract, once, and returns why it
// must wait; nil if it need not.
func (d *decision) joinContract() *Blocker {
	supervisor := d.task.Spec.Role == v1alpha1.RoleSupervisor
	name := d.contractToJoin()
	if name == "" {
		return nil
	}
	if leader := d.o.Contract.Leader; supervisor && leader != nil && d.want() != wantRewindOnly {
		return &Blocker{v1alpha1.ReasonWaitingForContract, fmt.Sprintf(
			"the contract %s is led by the supervisor %s, which has not finished: this one starts when that has", name, leader.Name)}
	}
	if d.s.Contract != nil {
		return nil
	}
	if !d.o.Contract.Room {
		return contractFull(name)
	}
	if supervisor {
		d.enterPhase(name, cmp.Or(d.specPhase(), d.task.Spec.PhasesOf()[0]), "begins in phase", d.phaseRequester(), d.newestCheckpoint())
		d.s.Contract.SpecPhase = d.specPhase()
		return nil
	}
	phase, b := d.phaseToJoin(name)
	if b != nil {
		return b
	}
	d.s.Contract = &v1alpha1.ContractStatus{Name: name, Phase: phase, SpecPhase: d.specPhase()}
	d.addEntry(v1alpha1.EventTaskJoined, clew, "the task belongs to the contract "+name+inPhase(phase)+d.asChild())
	return nil
}

// contractFull says that a contract can have no more tasks.
func contractFull(name string) *Blocker {
	return &Blocker{v1alpha1.ReasonContractFull, fmt.Sprintf(
		"the contract %s has %d tasks, as many as a contract can have: delete one that is not needed, or use another contract", name, v1alpha1.MaxContractTasks)}
}

// contractToJoin returns the name of the task's contract, or its parent's.
func (d *decision) contractToJoin() string {
	if c := d.s.Contract; c != nil {
		return c.Name
	}
	if c := d.task.Spec.Contract; c != nil {
		return c.Name
	}
	if parent := d.o.Parent.Task; d.task.Spec.ParentRef != nil && parent != nil {
		return ContractName(parent)
	}
	return ""
}

// phaseToJoin returns the phase that a worker belongs to: the one that its spec names, or the current one
// of the supervisor that leads the contract.
func (d *decision) phaseToJoin(contract string) (string, *Blocker) {
	leader := d.o.Contract.Leader
	if parent := d.o.Parent.Task; d.task.Spec.ParentRef != nil && parent != nil {
		leader = parent
	}
	phase := d.specPhase()
	if leader == nil || leader.Status.Contract == nil {
		return phase, nil
	}
	if phases := leader.Spec.PhasesOf(); phase != "" && !slices.Contains(phases, phase) {
		return "", &Blocker{v1alpha1.ReasonPhaseUnknown, fmt.Sprintf(
			"the contract %s has no phase %s: its supervisor %s leads it through %s; set contract.phase to one of them, or leave it out",
			contract, phase, leader.Name, strings.Join(phases, ", "))}
	}
	return cmp.Or(phase, leader.Status.Contract.Phase), nil
}

// specPhase returns the phase in the spec; "" for none.
func (d *decision) specPhase() string {
	if c := d.task.Spec.Contract; c != nil {
		return c.Phase
	}
	return ""
}

// PhaseCall is a call of the tool phase_set by a supervisor's agent that has no answer yet.
type PhaseCall struct {
	// ID is the call's.
	ID string
	// Phase is the one that the contract is to go to.
	Phase string
	// Attempt is that in which the agent called.
	Attempt int64
}

// phaseRequester returns who asked for the phase in the spec; Clew if the spec has none.
func (d *decision) phaseRequester() string {
	if d.specPhase() == "" {
		return clew
	}
	return actorOf(d.contractRequester())
}

// enterPhase sets the contract's phase, which begins with a checkpoint of the supervisor; 0 for its first one.
func (d *decision) enterPhase(contract, phase, how, actor string, checkpoint int64) {
	next := ptr.Deref(d.s.Contract, v1alpha1.ContractStatus{})
	next.Name, next.Phase, next.Since = contract, phase, ptr.To(metav1.NewTime(d.now))
	d.noteEntered(&next, phase, checkpoint)
	d.s.Contract = &next
	message := fmt.Sprintf("the contract %s %s %s", contract, how, phase)
	if checkpoint > 0 {
		message += fmt.Sprintf(", with checkpoint %d", checkpoint)
	}
	d.addEntry(v1alpha1.EventPhaseChanged, actor, message)
}

// takeLead makes a supervisor whose agent starts the leader of its contract.
func (d *decision) takeLead() {
	if c := d.s.Contract; d.task.Spec.Role == v1alpha1.RoleSupervisor && c != nil && c.LeadingSince == nil {
		c.LeadingSince = ptr.To(metav1.NewTime(d.now))
	}
}

// leaveLead ends the lead of a supervisor that has completed or failed.
func (d *decision) leaveLead(succeeded metav1.ConditionStatus) {
	if d.s.Contract != nil && succeeded != metav1.ConditionUnknown {
		d.s.Contract.LeadingSince = nil
	}
}

// adoptsPhase reports whether the task takes over the phase that the former task was in: it joins the
// contract by that.
func (d *decision) adoptsPhase() bool { return d.o.Adoption.Phase != "" && d.task.Spec.Contract != nil }

// adoptPhase takes over the phase that the former task was in, wherever its tools had moved the contract.
func (d *decision) adoptPhase() {
	if phase := d.o.Adoption.Phase; d.adoptsPhase() {
		d.s.Contract = &v1alpha1.ContractStatus{
			Name: d.task.Spec.Contract.Name, Phase: phase, SpecPhase: d.specPhase(), Since: ptr.To(metav1.NewTime(d.now)),
		}
		d.noteEntered(d.s.Contract, phase, d.newestCheckpoint()) // to begin it again means from here
	}
}

// inPhase returns the end of a sentence about a task of a phase; "" for none.
func inPhase(phase string) string {
	if phase == "" {
		return ""
	}
	return ", in phase " + phase
}
