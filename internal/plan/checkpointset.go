package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
)

// A Checkpoint with the scope Contract is a set: checkpoints of a supervisor and its children that are taken
// together. Each daemon stops its agent, takes the checkpoint, and keeps the agent stopped until it is told
// that all are taken. The set was taken together if each agent was still stopped when its daemon was told,
// and each task at rest is still at rest: then all of them stood still at the moment at which it was written
// that all are taken.

const (
	// setAgain is when a set is looked at again that waits for one of which nothing may be heard.
	setAgain = 30 * time.Second
	// setTakes is how long the checkpoints of a set may take: long enough for a daemon that connects
	// anew, and for a call of a tool to end.
	setTakes = 2 * time.Minute
	// setEnds is when a set ends at the latest, whatever is known by then.
	setEnds = 170 * time.Second
	// setRest is how long no set of a supervisor begins after one has ended: each stops all agents.
	setRest = time.Minute
)

// ObservedSet is what is known of a set of checkpoints.
type ObservedSet struct {
	// Checkpoint names the set.
	Checkpoint *v1alpha1.Checkpoint
	// Task is the supervisor; nil if there is no task of that name.
	Task *v1alpha1.Task
	// Children are the supervisor's; they are needed until the set has members.
	Children []v1alpha1.Task
	// Others are the other sets of the supervisor that have begun; they are needed until the set has members.
	Others []v1alpha1.Checkpoint
	// Members are what is known of the members, by the UID of the task.
	Members map[string]ObservedMember
}

// ObservedMember is what is known of a member of a set.
type ObservedMember struct {
	// Task is the member; nil if it is gone. It is needed of one that is pending, and, read from the API
	// server and not from a cache, of one at rest in a set that is being released.
	Task *v1alpha1.Task
	// Taken is the number of the checkpoint that was taken for the set; 0 while none was.
	Taken int64
	// Holds are how holds of the task's agent ended; they are needed when the set is being released.
	Holds []history.HoldEnd
	// Begun is the newest attempt that the history knows of. A pod may run before the Task lists it, but
	// not before it has told the history.
	Begun int64
}

// SetPlan is what to do for a set of checkpoints.
type SetPlan struct {
	// Set is the new state; nil while no set can be taken.
	Set *v1alpha1.CheckpointSet
	// Ready is the condition Ready, without times.
	Ready metav1.Condition
	// RequeueAfter asks for another decision after this time at the latest; 0 for none.
	RequeueAfter time.Duration
}

// DecideSet returns what to do next for a set that has not ended. It is pure.
func DecideSet(o ObservedSet, now time.Time) SetPlan {
	if o.Checkpoint.Status.Set == nil {
		members, b := setMembers(o)
		if wait, other := otherSet(o.Others, now); b == nil && other != nil {
			p := SetPlan{RequeueAfter: wait, Ready: metav1.Condition{Type: v1alpha1.CheckpointReady, Status: metav1.ConditionUnknown}}
			p.Ready.Reason, p.Ready.Message = other.Reason, other.Message
			return p
		}
		if b != nil { // whatever ends it is an event of the supervisor, or of the object itself
			return SetPlan{Ready: metav1.Condition{Type: v1alpha1.CheckpointReady, Status: metav1.ConditionFalse, Reason: b.Reason, Message: b.Message}}
		}
		set := &v1alpha1.CheckpointSet{State: v1alpha1.SetTaking, StartTime: ptr.To(metav1.NewTime(now)), Members: members}
		if anyMember(set, v1alpha1.MemberFailed) {
			set.State = v1alpha1.SetApart // no agent stops for what cannot become a set
		}
		return setPlan(set, now)
	}
	set := o.Checkpoint.Status.Set.DeepCopy()
	age := now.Sub(ptr.Deref(set.StartTime, metav1.Time{}).Time)
	if set.State == v1alpha1.SetTaking {
		if o.Checkpoint.DeletionTimestamp != nil { // it may stay for as long as somebody's finalizer
			age = max(age, setTakes)
		}
		for i := range set.Members {
			takeMember(&set.Members[i], o.Members[set.Members[i].UID], age)
		}
		if anyMember(set, v1alpha1.MemberFailed) || !anyMember(set, v1alpha1.MemberPending) {
			set.State = v1alpha1.SetReleasing // the holds end once this is written, and not before
		}
		return setPlan(set, now)
	}
	waits := false
	for i := range set.Members {
		waits = releaseMember(&set.Members[i], string(o.Checkpoint.UID), o.Members[set.Members[i].UID], age) || waits
	}
	if !waits {
		set.State = v1alpha1.SetApart
		if !slices.ContainsFunc(set.Members, apart) {
			set.State = v1alpha1.SetTogether
		}
	}
	return setPlan(set, now)
}

// AwaitSet returns what to do for a set while another one of the supervisor has begun that the cache does not
// show yet.
func AwaitSet(other string) SetPlan {
	return SetPlan{RequeueAfter: setAgain, Ready: metav1.Condition{Type: v1alpha1.CheckpointReady, Status: metav1.ConditionUnknown,
		Reason: v1alpha1.ReasonAnotherSet, Message: takesAnother(other)}}
}

func takesAnother(name string) string {
	return fmt.Sprintf("the set %s of the supervisor is being taken: this one begins a minute after that has ended", name)
}

// otherSet returns the set because of which no further one of the supervisor begins, and after which time one
// may begin; 0 if that is heard of, nil if one may begin now.
func otherSet(others []v1alpha1.Checkpoint, now time.Time) (wait time.Duration, b *Blocker) {
	for i := range others {
		c := &others[i]
		if !c.Status.Set.State.Ended() {
			return 0, &Blocker{v1alpha1.ReasonAnotherSet, takesAnother(c.Name)}
		}
		ended := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.CheckpointReady)
		if ended == nil {
			continue
		}
		if left := ended.LastTransitionTime.Add(setRest).Sub(now); left > wait {
			wait, b = left, &Blocker{v1alpha1.ReasonAnotherSet, fmt.Sprintf("the set %s of the supervisor has just ended: this one begins a minute after that", c.Name)}
		}
	}
	return wait, b
}

// maxRefusal bounds why a member's checkpoint could not be requested, in bytes, without the mark of what is cut.
const maxRefusal = 500

// RefusedSet returns what to do for a set once checkpoints of members could not be requested: no agent waits
// for them. refused says why, by the UID of the task.
func RefusedSet(set *v1alpha1.CheckpointSet, refused map[string]string, now time.Time) SetPlan {
	set = set.DeepCopy()
	for i := range set.Members {
		if m := &set.Members[i]; refused[m.UID] != "" {
			m.State, m.Message = v1alpha1.MemberFailed, clip.Marked(refused[m.UID], maxRefusal)
		}
	}
	set.State = v1alpha1.SetReleasing
	return setPlan(set, now)
}

// RecalledSet returns the set of a Checkpoint that is applied again to a task that continues the history of
// another one: it stands for the supervisor's checkpoint of that time. Which ones of the children belonged
// to it is not kept.
func RecalledSet(task *v1alpha1.Task, name string, number int64) SetPlan {
	member := v1alpha1.CheckpointSetMember{Task: task.Name, UID: string(task.UID), Checkpoint: name, Number: number, State: v1alpha1.MemberTaken}
	return SetPlan{
		Set: &v1alpha1.CheckpointSet{State: v1alpha1.SetApart, Members: []v1alpha1.CheckpointSetMember{member}},
		Ready: metav1.Condition{Type: v1alpha1.CheckpointReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotTakenTogether, Message: fmt.Sprintf(
			"checkpoint %d was taken of the supervisor for the last Checkpoint of this name, of the former task that the task continues; those of its children are not known any more: for a set, apply a Checkpoint with scope Contract under another name", number)},
	}
}

func setPlan(set *v1alpha1.CheckpointSet, now time.Time) SetPlan {
	p := SetPlan{Set: set, Ready: SetReady(set)}
	if !set.State.Ended() {
		at := setTakes
		if set.State == v1alpha1.SetReleasing {
			at = setEnds
		}
		p.RequeueAfter = max(time.Second, set.StartTime.Add(at).Sub(now))
	}
	return p
}

// setMembers returns the members with which a set begins, or why none can.
func setMembers(o ObservedSet) (members []v1alpha1.CheckpointSetMember, b *Blocker) {
	name := o.Checkpoint.Spec.TaskRef.Name
	switch {
	case o.Task == nil:
		return nil, &Blocker{v1alpha1.ReasonTaskNotFound, fmt.Sprintf("there is no Task %q in this namespace: name a task of this namespace", name)}
	case o.Checkpoint.Labels[v1alpha1.LabelManagedBy] == v1alpha1.ManagedBy:
		return nil, &Blocker{v1alpha1.ReasonTaskNotFound, "the label " + v1alpha1.LabelManagedBy + ": " + v1alpha1.ManagedBy +
			" is for objects that Clew makes, and no daemon is asked for a checkpoint because of one: remove the label"}
	case o.Task.Spec.Role != v1alpha1.RoleSupervisor:
		return nil, &Blocker{v1alpha1.ReasonNotASupervisor, fmt.Sprintf(
			"the task %s is a worker, and only a supervisor has children: delete this object, and name a supervisor, or leave scope out", name)}
	case !hasRun(o.Task):
		return nil, &Blocker{v1alpha1.ReasonTaskNotStarted, fmt.Sprintf("the supervisor %s has not run yet, so there is nothing to take: the set is taken when it runs", name)}
	}
	members = []v1alpha1.CheckpointSetMember{newMember(o.Task, o.Checkpoint.Name)}
	for _, child := range byAge(o.Children) {
		if hasRun(child) && child.DeletionTimestamp == nil {
			object := ""
			if working(child) {
				object = MemberName(child.Name, string(o.Checkpoint.UID))
			}
			members = append(members, newMember(child, object))
		}
	}
	switch children := len(members) - 1; {
	case children == 0:
		return nil, &Blocker{v1alpha1.ReasonNoChildren, fmt.Sprintf("none of the children of %s has run yet: the set is taken when one has", name)}
	case children > v1alpha1.MaxSetChildren:
		return nil, &Blocker{v1alpha1.ReasonTooManyChildren, fmt.Sprintf(
			"%d children of %s have run, and a set has %d at most: delete some that have finished, and the set is taken", children, name, v1alpha1.MaxSetChildren)}
	}
	return members, nil
}

// hasRun reports whether a task has a state: its agent runs, or it has a checkpoint.
func hasRun(task *v1alpha1.Task) bool {
	c := succeededOf(task)
	return task.Status.LatestCheckpoint != nil || working(task) && c != nil && c.Reason == v1alpha1.ReasonRunning
}

// MemberName returns the name of the Checkpoint object of a child in a set.
func MemberName(task, setUID string) string {
	id := strings.ReplaceAll(setUID, "-", "")
	return fmt.Sprintf("%s-set-%s", task, id[:min(12, len(id))])
}

// newMember returns a task as a member of a set that begins. object is the name of its Checkpoint in the set;
// empty for that of its last checkpoint.
func newMember(task *v1alpha1.Task, object string) v1alpha1.CheckpointSetMember {
	m := v1alpha1.CheckpointSetMember{Task: task.Name, UID: string(task.UID), Checkpoint: object, State: v1alpha1.MemberPending}
	switch {
	case !working(task):
		rest(&m, task)
		if object == "" {
			m.Checkpoint = task.Status.LatestCheckpoint.Name
		}
	case !holds(task):
		m.State, m.Message = v1alpha1.MemberFailed, "its pod is of before the upgrade of Clew, and does not stand still for a set: suspend and resume the task"
	}
	return m
}

// holds reports whether the daemon of a task at work keeps the agent stopped for a set. Versions whose daemon
// does not left out what an attempt is for.
func holds(task *v1alpha1.Task) bool {
	return task.Status.Attempts[len(task.Status.Attempts)-1].Purpose != ""
}

// rest makes a member one at rest, with the task's last checkpoint, of which it has one.
func rest(m *v1alpha1.CheckpointSetMember, task *v1alpha1.Task) {
	m.State, m.Attempt = v1alpha1.MemberAtRest, lastAttempt(task)
	m.Number = task.Status.LatestCheckpoint.Number
}

// lastAttempt returns the number of a task's last attempt; 0 if it has none.
func lastAttempt(task *v1alpha1.Task) int64 {
	if n := len(task.Status.Attempts); n > 0 {
		return task.Status.Attempts[n-1].Number
	}
	return 0
}

// takeMember follows a member whose checkpoint is awaited.
func takeMember(m *v1alpha1.CheckpointSetMember, is ObservedMember, age time.Duration) {
	switch {
	case m.State != v1alpha1.MemberPending:
	case is.Taken != 0:
		m.State, m.Number = v1alpha1.MemberTaken, is.Taken
	case is.Task == nil, string(is.Task.UID) != m.UID, age >= setTakes:
		m.State = v1alpha1.MemberFailed
	case !working(is.Task) && is.Task.Status.LatestCheckpoint != nil:
		rest(m, is.Task)
	}
}

// releaseMember follows a member of a set that ends, and reports whether it is not known yet how it came to
// continue.
func releaseMember(m *v1alpha1.CheckpointSetMember, set string, is ObservedMember, age time.Duration) (waits bool) {
	switch {
	case m.HoldEnd != "":
	case m.State == v1alpha1.MemberAtRest:
		if is.Task == nil || string(is.Task.UID) != m.UID || working(is.Task) || lastAttempt(is.Task) != m.Attempt || is.Begun > m.Attempt {
			m.HoldEnd = v1alpha1.HoldExpired
		}
	case m.State == v1alpha1.MemberTaken:
		i := slices.IndexFunc(is.Holds, func(h history.HoldEnd) bool { return h.Set == set && h.Checkpoint == m.Number })
		if i < 0 {
			if age < setEnds {
				return true
			}
			m.HoldEnd = v1alpha1.HoldExpired
			return false
		}
		m.HoldEnd, m.Moment = v1alpha1.HoldExpired, v1alpha1.MomentBetweenCalls
		if is.Holds[i].InCall {
			m.Moment = v1alpha1.MomentInCall
		}
		if is.Holds[i].Released {
			m.HoldEnd = v1alpha1.HoldReleased
		}
	}
	return false
}

// apart reports whether a member was not stopped when all had their checkpoint.
func apart(m v1alpha1.CheckpointSetMember) bool {
	return m.State == v1alpha1.MemberFailed || m.State == v1alpha1.MemberPending || m.HoldEnd == v1alpha1.HoldExpired
}

func anyMember(set *v1alpha1.CheckpointSet, state v1alpha1.SetMemberState) bool {
	return slices.ContainsFunc(set.Members, func(m v1alpha1.CheckpointSetMember) bool { return m.State == state })
}

// SetReady returns the condition Ready of a Checkpoint that names a set.
func SetReady(set *v1alpha1.CheckpointSet) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.CheckpointReady, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonTakingTogether}
	tasks := fmt.Sprintf("the checkpoints of %d tasks", len(set.Members))
	named := func(which func(m v1alpha1.CheckpointSetMember) bool) string { return memberNames(set, which) }
	switch set.State {
	case v1alpha1.SetTaking:
		c.Message = fmt.Sprintf("%s are being taken together: waiting for that of %s", tasks,
			named(func(m v1alpha1.CheckpointSetMember) bool { return m.State == v1alpha1.MemberPending }))
		if !anyMember(set, v1alpha1.MemberPending) {
			c.Message = tasks + " are being taken together"
		}
	case v1alpha1.SetReleasing:
		c.Message = tasks + " are taken, and their agents are told to continue"
		if anyMember(set, v1alpha1.MemberFailed) {
			c.Message = tasks + " cannot all be taken, and the agents are told to continue"
		}
	case v1alpha1.SetTogether:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonTakenTogether, tasks+" were taken together"
		if in := named(func(m v1alpha1.CheckpointSetMember) bool { return m.Moment == v1alpha1.MomentInCall }); in != "" {
			c.Message += ", that of " + in + " in the middle of a call of a tool that took long"
		}
	default:
		var why []string
		refused, inTime := func(m v1alpha1.CheckpointSetMember) bool { return m.Message != "" }, " in time"
		if i := slices.IndexFunc(set.Members, refused); i >= 0 {
			why, inTime = append(why, fmt.Sprintf("none could be requested of %s (%s)", named(refused), set.Members[i].Message)), ""
		}
		if failed := named(func(m v1alpha1.CheckpointSetMember) bool {
			return (m.State == v1alpha1.MemberFailed || m.State == v1alpha1.MemberPending) && !refused(m)
		}); failed != "" {
			why = append(why, "none was taken of "+failed+inTime)
		}
		if ran := named(func(m v1alpha1.CheckpointSetMember) bool { return m.HoldEnd == v1alpha1.HoldExpired }); ran != "" {
			why = append(why, ran+" did not stand still until all were taken")
		}
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonNotTakenTogether
		c.Message = fmt.Sprintf("%s were not taken together: %s. Those that were taken are valid, each of its own task; for a set, apply a Checkpoint with scope Contract again, under another name",
			tasks, strings.Join(why, ", and "))
	}
	return c
}

// maxMembersNamed is how many members a message names.
const maxMembersNamed = 8

// memberNames lists the names of the members that are selected; "" for none.
func memberNames(set *v1alpha1.CheckpointSet, which func(v1alpha1.CheckpointSetMember) bool) string {
	var names []string
	for _, m := range set.Members {
		if which(m) {
			names = append(names, m.Task)
		}
	}
	return namesOf(names, maxMembersNamed)
}

// namesOf lists the first names, and says how many more there are; "" for none.
func namesOf(names []string, most int) string {
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
