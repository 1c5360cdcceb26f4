package plan

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
)

// What bounds the branches that one pod looks after in the agent's repository: their number, and so
// the pod's report and the status of the Task; and their bytes in the pod's configuration, a variable
// that may have 128 KiB and has long prompts as well.
const (
	maxAgentBranches    = 64
	maxAgentBranchBytes = 16 << 10
	// agentBranchOtherText is what a branch takes there besides its name.
	agentBranchOtherText = 48
)

// ofBranch is a branch of a Checkpoint that the gitstore has.
type ofBranch struct {
	checkpoint int64
	spec       *v1alpha1.CheckpointBranch
	status     *v1alpha1.CheckpointBranchStatus
}

// attempt returns with which attempt it became what it is in the agent's repository; 0 if it is yet
// to be made there.
func (b ofBranch) attempt() int64 {
	if a := b.status.Agent; a != nil && a.State != v1alpha1.AgentBranchPending {
		return a.Attempt
	}
	return 0
}

// made reports whether the agent's repository has got it.
func (b ofBranch) made() bool {
	return b.status.Agent != nil && b.status.Agent.State == v1alpha1.AgentBranchMade
}

// told is what a pod is told of it.
func (b ofBranch) told() daemonapi.Branch {
	return daemonapi.Branch{Name: b.spec.Name, Checkpoint: b.checkpoint, Made: b.made()}
}

// request identifies the request to check the branch out; "" if there is none, or its outcome is
// known.
func (b ofBranch) request() string {
	if b.spec.Checkout != v1alpha1.CheckoutNextStart {
		return ""
	}
	id := daemonapi.CheckoutID(b.checkpoint, b.spec.Name, b.spec.ID)
	if a := b.status.Agent; a != nil && a.Checkout != nil && a.Checkout.Request == id && a.Checkout.State != v1alpha1.CheckoutPending {
		return ""
	}
	return id
}

// branchesOf returns the branches of Checkpoints that the agent's repository is to have. They are
// ordered: a cache lists Checkpoints in another order each time, and what a status says of them must
// not change with it.
func branchesOf(checkpoints []v1alpha1.Checkpoint) (list []ofBranch) {
	for i := range checkpoints {
		c := &checkpoints[i]
		for j := range c.Status.Branches {
			s := &c.Status.Branches[j]
			spec := entryOf(c, s.Name)
			if c.DeletionTimestamp == nil && spec != nil && s.State == v1alpha1.BranchMade && s.Commit != "" && daemonapi.AgentBranchName(s.Name) != "" {
				list = append(list, ofBranch{checkpoint: c.Status.Number, spec: spec, status: s})
			}
		}
	}
	slices.SortFunc(list, func(a, b ofBranch) int {
		return cmp.Or(cmp.Compare(a.checkpoint, b.checkpoint), cmp.Compare(a.spec.Name, b.spec.Name), cmp.Compare(a.spec.ID, b.spec.ID))
	})
	return list
}

// entryOf returns the entry of the spec with a branch's name; nil if there is none.
func entryOf(c *v1alpha1.Checkpoint, name string) *v1alpha1.CheckpointBranch {
	i := slices.IndexFunc(c.Spec.Branches, func(b v1alpha1.CheckpointBranch) bool { return b.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Spec.Branches[i]
}

// checkouts returns the branches whose checkout is requested and has no outcome yet, one for each
// request.
func checkouts(list []ofBranch) (pending []ofBranch) {
	for _, b := range list {
		id := b.request()
		if id != "" && !slices.ContainsFunc(pending, func(p ofBranch) bool { return p.request() == id }) {
			pending = append(pending, b)
		}
	}
	return pending
}

// AgentBranches returns the branches of a task's Checkpoints that its next pod looks after in the
// agent's repository, and the one that it checks out. Those come first that are yet to be made
// there, then those that could not be, and then those that were: they are made again only after a
// rewind. None is checked out if several are requested: they wait until only one is.
func AgentBranches(checkpoints []v1alpha1.Checkpoint) (branches []daemonapi.Branch, checkout *daemonapi.Checkout) {
	list := branchesOf(checkpoints)
	if pending := checkouts(list); len(pending) == 1 {
		b := pending[0]
		checkout = &daemonapi.Checkout{ID: b.request(), Branch: b.told()}
	}
	order := map[bool]int{true: 1}
	slices.SortFunc(list, func(a, b ofBranch) int {
		return cmp.Or(cmp.Compare(order[a.made()], order[b.made()]), cmp.Compare(a.attempt(), b.attempt()), cmp.Compare(a.spec.Name, b.spec.Name), cmp.Compare(a.checkpoint, b.checkpoint))
	})
	if checkout != nil {
		branches = append(branches, checkout.Branch)
	}
	room := maxAgentBranchBytes
	for _, b := range list {
		known := slices.ContainsFunc(branches, func(x daemonapi.Branch) bool { return x.Name == b.spec.Name })
		if room -= len(b.spec.Name) + agentBranchOtherText; !known && room >= 0 && len(branches) < maxAgentBranches {
			branches = append(branches, b.told())
		}
	}
	return branches, checkout
}

// agentBranchesOf returns what the start of an agent has made of the branches that its pod was told
// of, but for those that had been made before, and whether that is known.
func agentBranchesOf(attempt int64, pod *corev1.Pod, result daemonapi.PrepareResult) (list []v1alpha1.AgentBranch, ok bool) {
	config, ok := resources.ConfigOf(pod)
	if !ok || config.PrepareOnly || len(result.Branches) != len(config.Branches) {
		return nil, false
	}
	for i, b := range config.Branches {
		r := result.Branches[i]
		if b.Made && r.Commit == "" && r.Outcome == daemonapi.OutcomePresent {
			continue
		}
		state, message := becameOf(b, r)
		branch := v1alpha1.AgentBranch{Name: b.Name, Checkpoint: b.Checkpoint, AgentBranchStatus: v1alpha1.AgentBranchStatus{State: state, Commit: statusText(r.Commit), Message: message, Attempt: attempt}}
		if c, r := config.Checkout, result.Checkout; c != nil && c.Branch == b && r != nil && r.ID == c.ID {
			branch.Checkout = checkoutOf(attempt, *c, *r)
		}
		list = append(list, branch)
	}
	return list, true
}

// becameOf returns what became of a branch.
func becameOf(b daemonapi.Branch, r daemonapi.BranchResult) (v1alpha1.AgentBranchState, string) {
	name := daemonapi.AgentBranchName(b.Name)
	switch r.Outcome {
	case daemonapi.OutcomeMade, daemonapi.OutcomePresent:
		return v1alpha1.AgentBranchMade, fmt.Sprintf("the agent's repository got the branch %s at %s; from then on it is the agent's", name, r.Commit)
	case daemonapi.OutcomeTaken:
		return v1alpha1.AgentBranchNameTaken, fmt.Sprintf("the agent's repository has a branch %s of its own, which is left as it is: use another name for this one, or have the agent rename or delete its own", name)
	case daemonapi.OutcomeConflicts:
		return v1alpha1.AgentBranchRefused, fmt.Sprintf("the agent's repository has a branch beside which git can have no branch %s: use another name", name)
	case daemonapi.OutcomeInvalidName:
		return v1alpha1.AgentBranchRefused, fmt.Sprintf("git accepts no branch named %s: use another name", name)
	case daemonapi.OutcomeUnsuitedRepository:
		return v1alpha1.AgentBranchRefused, "the agent has no repository of its own that is a folder .git with plain files: such a one gets no branches; fetch the branch from the gitstore"
	case daemonapi.OutcomeNoCommit:
		return v1alpha1.AgentBranchRefused, fmt.Sprintf("the agent's commit at checkpoint %d was not stored with it, or there was nothing to commit: fetch the branch from the gitstore", b.Checkpoint)
	case daemonapi.OutcomeGivenUp:
		return v1alpha1.AgentBranchRefused, fmt.Sprintf("Clew's container was killed while it made the branches of checkpoint %d, and again while it made no other ones: its files may be too many for the memory of Clew's containers; fetch the branch from the gitstore", b.Checkpoint)
	case daemonapi.OutcomeNotFetched:
	}
	return v1alpha1.AgentBranchPending, "the branch could not be made when the agent started, since the checkpoint could not be had in time: it is tried again at the next start"
}

// checkoutOf returns the outcome of a checkout.
func checkoutOf(attempt int64, c daemonapi.Checkout, r daemonapi.CheckoutResult) *v1alpha1.CheckoutStatus {
	s := &v1alpha1.CheckoutStatus{Request: c.ID, State: v1alpha1.CheckoutDone, Attempt: attempt, FromCheckpoint: r.FromCheckpoint, ToCheckpoint: r.ToCheckpoint}
	name := daemonapi.AgentBranchName(c.Name)
	switch {
	case r.Reason != "":
		s.State, s.Reason, s.Message = v1alpha1.CheckoutRefused, statusText(r.Reason), statusText("the agent's HEAD stays where it is: "+r.Message)
	case r.FromCheckpoint == 0:
		s.Message = fmt.Sprintf("the agent's HEAD is on the branch %s", name)
	default:
		s.Message = fmt.Sprintf("the agent's HEAD was brought to the branch %s; a rewind to checkpoint %d takes that back", name, r.FromCheckpoint)
	}
	return s
}

// agentBranch brings what the status says of a branch in the agent's repository up to date with the
// Task's status, and adds what happened.
func (d *branching) agentBranch(s *v1alpha1.CheckpointBranchStatus) {
	spec, c := entryOf(d.o.Checkpoint, s.Name), d.o.Checkpoint
	if spec == nil || daemonapi.AgentBranchName(s.Name) == "" {
		s.Agent = nil
		return
	}
	if s.State != v1alpha1.BranchMade || d.o.Task == nil || string(d.o.Task.UID) != c.Status.TaskUID {
		return // what the agent's repository had stays true
	}
	var was v1alpha1.AgentBranchStatus
	if s.Agent != nil {
		was = *s.Agent
	}
	next := was
	if next.State == "" {
		next.State, next.Message = v1alpha1.AgentBranchPending, "the agent's repository gets the branch when the agent next starts"
	}
	found := d.reported(s)
	if found != nil && supersedes(found.AgentBranchStatus, was) {
		next = found.AgentBranchStatus
	}
	next.Checkout = d.checkout(spec, was.Checkout, found)
	s.Agent = &next
	d.addAgentEvents(s, was)
}

// supersedes reports whether what an attempt reports of a branch is more than was known. A branch
// that was made is the agent's: that it was moved or deleted since is none of Clew's business.
func supersedes(found, was v1alpha1.AgentBranchStatus) bool {
	switch {
	case found.Attempt < was.Attempt:
		return false
	case was.State == v1alpha1.AgentBranchMade:
		return found.State == v1alpha1.AgentBranchMade && found.Commit != was.Commit
	}
	return found.State != was.State || found.Message != was.Message || found.Commit != was.Commit
}

// reported returns what the Task's status says of a branch; nil if it says nothing.
func (d *branching) reported(s *v1alpha1.CheckpointBranchStatus) *v1alpha1.AgentBranch {
	list := d.o.Task.Status.AgentBranches
	i := slices.IndexFunc(list, func(b v1alpha1.AgentBranch) bool {
		return b.Name == s.Name && b.Checkpoint == d.o.Checkpoint.Status.Number
	})
	if i < 0 {
		return nil
	}
	found := list[i]
	if found.State == formerNameTaken {
		found.State = v1alpha1.AgentBranchNameTaken
	}
	return &found
}

// formerNameTaken is what earlier managers wrote for AgentBranchNameTaken.
const formerNameTaken v1alpha1.AgentBranchState = "Kept"

// checkout returns what is known of the request to check a branch out; nil if there is none.
func (d *branching) checkout(spec *v1alpha1.CheckpointBranch, was *v1alpha1.CheckoutStatus, found *v1alpha1.AgentBranch) *v1alpha1.CheckoutStatus {
	if spec.Checkout != v1alpha1.CheckoutNextStart {
		return nil
	}
	id := daemonapi.CheckoutID(d.o.Checkpoint.Status.Number, spec.Name, spec.ID)
	switch {
	case was != nil && was.Request == id && was.State != v1alpha1.CheckoutPending:
		return was
	case found != nil && found.Checkout != nil && found.Checkout.Request == id:
		return found.Checkout.DeepCopy()
	}
	s := &v1alpha1.CheckoutStatus{Request: id, State: v1alpha1.CheckoutPending, Message: "the agent's HEAD is brought to the branch when the agent next starts"}
	if i := slices.IndexFunc(d.o.Checkouts, func(other daemonapi.Checkout) bool { return other.ID != id }); i >= 0 {
		other := d.o.Checkouts[i]
		s.Message = statusText(fmt.Sprintf("checkpoint %d asks for a checkout of its branch %s as well: none is checked out until all but one say checkout: Never", other.Checkpoint, other.Name))
	}
	return s
}

// Checkouts returns the checkouts that Checkpoints of a task request and that have no outcome yet.
func Checkouts(checkpoints []v1alpha1.Checkpoint) (list []daemonapi.Checkout) {
	for _, b := range checkouts(branchesOf(checkpoints)) {
		list = append(list, daemonapi.Checkout{ID: b.request(), Branch: b.told()})
	}
	return list
}

// ChecksOut reports whether a Checkpoint asks for a checkout.
func ChecksOut(c *v1alpha1.Checkpoint) bool {
	return slices.ContainsFunc(c.Spec.Branches, func(b v1alpha1.CheckpointBranch) bool { return b.Checkout == v1alpha1.CheckoutNextStart })
}

// addAgentEvents adds what has changed about a branch in the agent's repository.
func (d *branching) addAgentEvents(s *v1alpha1.CheckpointBranchStatus, was v1alpha1.AgentBranchStatus) {
	number, a := d.o.Checkpoint.Status.Number, s.Agent
	switch key := fmt.Sprintf("%d/%s", a.Attempt, a.State); {
	case a.State == was.State && a.Message == was.Message, a.State == v1alpha1.AgentBranchPending:
	case a.State == v1alpha1.AgentBranchMade:
		d.add(s, v1alpha1.EventAgentBranchMade, key, fmt.Sprintf("branch %s of checkpoint %d: %s", s.Name, number, a.Message))
	default:
		d.add(s, v1alpha1.EventAgentBranchNotMade, key, fmt.Sprintf("branch %s of checkpoint %d was not made in the agent's repository (%s): %s", s.Name, number, a.State, a.Message))
	}
	checkout := a.Checkout
	if checkout == nil || checkout.State == v1alpha1.CheckoutPending || was.Checkout != nil && was.Checkout.Request == checkout.Request && was.Checkout.State == checkout.State {
		return
	}
	if checkout.State == v1alpha1.CheckoutDone {
		d.add(s, v1alpha1.EventBranchCheckedOut, checkout.Request, fmt.Sprintf("branch %s of checkpoint %d was checked out: %s", s.Name, number, checkout.Message))
		return
	}
	d.add(s, v1alpha1.EventBranchNotCheckedOut, checkout.Request, fmt.Sprintf("branch %s of checkpoint %d was not checked out (%s): %s", s.Name, number, checkout.Reason, checkout.Message))
}
