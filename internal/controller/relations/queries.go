package relations

import (
	"cmp"
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/lookup"
	"github.com/clew-dev/clew/internal/plan"
)

// Lookups are what the workers of the account's controller look up.
func (a *Account) Lookups() map[string]lookup.Find {
	find := func(kind string, concerned func(of *entry, e *entry) bool) lookup.Find {
		return func(_ context.Context, namespace, name string) ([]reconcile.Request, error) {
			return a.find(subject{kind, namespace, name}, concerned), nil
		}
	}
	all := func(_, _ *entry) bool { return true }
	return map[string]lookup.Find{
		ofParent: find(ofParent, func(parent, e *entry) bool {
			is := plan.Relations{}
			if parent != nil {
				is = parent.is
			}
			return e.waits != "" || e.is.ParentUID == "" || e.is.FollowsParent(is)
		}),
		ofContract: find(ofContract, func(_, e *entry) bool { return e.waits != "" || !e.is.Joined }),
		ofTask:     find(ofTask, all),
		ofSource:   find(ofSource, all),
	}
}

// OfSource returns a handler that has the tasks looked up that start from the one that an object names.
func (a *Account) OfSource(nameOf func(client.Object) string) handler.EventHandler {
	return lookup.Handler(ofSource, func(object client.Object) string {
		a.mu.Lock()
		defer a.mu.Unlock()
		name := nameOf(object)
		if len(a.behind[subject{ofSource, object.GetNamespace(), name}]) == 0 {
			return ""
		}
		return name
	})
}

// find returns requests for the tasks behind a subject, of which of is the task of its name, if it is one,
// that its news concern.
func (a *Account) find(s subject, concerned func(of, e *entry) bool) (requests []reconcile.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.tasks[types.NamespacedName{Namespace: s.namespace, Name: s.name}]
	for name := range a.behind[s] {
		key := types.NamespacedName{Namespace: s.namespace, Name: name}
		if concerned(of, a.tasks[key]) {
			requests = append(requests, reconcile.Request{NamespacedName: key})
		}
	}
	return requests
}

// All returns requests for all tasks.
func (a *Account) All() []reconcile.Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	requests := make([]reconcile.Request, 0, len(a.tasks))
	for name := range a.tasks {
		requests = append(requests, reconcile.Request{NamespacedName: name})
	}
	return requests
}

// RoomBelow reports whether a task is a child of the parent with that UID, or could become one. Of a parent
// that the account does not know yet, everybody could; Take then tells.
func (a *Account) RoomBelow(task *v1alpha1.Task, parent types.UID) bool {
	return a.room(task, room{childrenRoom, task.Namespace, string(parent)})
}

// RoomIn reports whether a task is a member of a contract, or could become one.
func (a *Account) RoomIn(task *v1alpha1.Task, contract string) bool {
	return a.room(task, room{contractRoom, task.Namespace, contract})
}

func (a *Account) room(task *v1alpha1.Task, in room) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of(task)
	p := a.placesOf(in)
	defer a.tidy(in)
	return !p.known || p.fits(string(task.UID))
}

// Leader is a task that leads a contract, or is about to.
type Leader struct {
	Name string
	UID  types.UID
	// Reserved is true if the cache does not show yet that it leads.
	Reserved bool
}

// Leaders returns the tasks other than this one that lead a contract or are about to, in order. They are
// more than one only if a status was put back to an older copy.
func (a *Account) Leaders(task *v1alpha1.Task, contract string) (leaders []Leader) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of(task)
	p := a.rooms[room{leadRoom, task.Namespace, contract}]
	if p == nil {
		return nil
	}
	add := func(who map[string]string, reserved bool) {
		for uid, name := range who {
			if uid != string(task.UID) {
				leaders = append(leaders, Leader{name, types.UID(uid), reserved})
			}
		}
	}
	add(p.held, false)
	add(p.reserved, true)
	slices.SortFunc(leaders, func(a, b Leader) int { return cmp.Compare(a.Name, b.Name) })
	return leaders
}

// Take keeps the places for a task that its next status shows and its stored one does not, and reports
// whether they were free: all of them, or none is taken. Settle must follow.
func (a *Account) Take(task *v1alpha1.Task, next *v1alpha1.TaskStatus) bool {
	decided := &v1alpha1.Task{ObjectMeta: task.ObjectMeta, Spec: task.Spec, Status: *next}
	was, now := plan.RelationsOf(task), plan.RelationsOf(decided)
	before := roomsOf(task.Namespace, was)
	wanted := slices.DeleteFunc(roomsOf(task.Namespace, now), func(in room) bool {
		// A child that follows its parent, which was applied anew, is one already.
		return slices.Contains(before, in) || in.kind == childrenRoom && was.ParentUID != ""
	})
	if len(wanted) == 0 {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.of(task)
	if e == nil {
		return false
	}
	for _, in := range wanted {
		if p := a.placesOf(in); !p.known || !p.fits(e.is.UID) {
			a.tidy(in)
			return false
		}
	}
	for _, in := range wanted {
		a.reserve(in, e, task.Name)
	}
	return true
}

// Owes reports whether places are kept for a task that the cache does not show: only the API server knows
// whether it uses them.
func (a *Account) Owes(task *v1alpha1.Task) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.of(task)
	return e != nil && len(e.reserved) > 0
}

// Settle says how a task is after a decision. If that is known from the API server, places that were kept
// for it and that its status does not show are given to others.
func (a *Account) Settle(task *v1alpha1.Task, live bool) {
	now := plan.RelationsOf(task)
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.of(task)
	if e == nil {
		return
	}
	e.waits = now.Waits
	uses := roomsOf(task.Namespace, now)
	for in := range e.reserved {
		if live && !slices.Contains(uses, in) {
			a.giveBack(in, e, e.is.UID)
		}
	}
	a.relate(client.ObjectKeyFromObject(task), e)
}

// Close gives no more places below a supervisor away, and returns how many are kept for tasks that the
// cache does not show as children: they may be about to become some.
func (a *Account) Close(task *v1alpha1.Task) (joining int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.of(task)
	if e == nil || !e.is.Supervisor {
		return 0
	}
	e.closed = true
	p := a.placesOf(room{childrenRoom, task.Namespace, e.is.UID})
	p.open = false
	return len(p.reserved)
}

// ParentCircle follows the parents of a task that has none yet, and returns their names if they lead back
// to it; nil if they do not. It follows no more than could be a chain of children.
func (a *Account) ParentCircle(task *v1alpha1.Task) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := []string{task.Name}
	for up := plan.RelationsOf(task); len(names) <= v1alpha1.MaxContractTasks; {
		switch {
		case up.ParentName == task.Name:
			return names
		case up.ParentName == "" || up.ParentUID != "" || slices.Contains(names, up.ParentName):
			return nil
		}
		names = append(names, up.ParentName)
		e := a.tasks[types.NamespacedName{Namespace: task.Namespace, Name: up.ParentName}]
		if e == nil {
			return nil
		}
		up = e.is
	}
	return nil
}

// Waiters returns the names of the tasks that wait for a task to complete, in order.
func (a *Account) Waiters(task *v1alpha1.Task) (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.behind[subject{ofTask, task.Namespace, task.Name}] {
		for _, dep := range a.tasks[types.NamespacedName{Namespace: task.Namespace, Name: name}].is.Awaits {
			if dep.TaskRef.Name == task.Name && dep.Condition != v1alpha1.DependOnFinished {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// maxWalk is how many tasks are looked at to find a circle of tasks that wait for each other.
const maxWalk = 500

// Awaiting returns the tasks that wait for a task, directly or through others, with those that each waits
// for, and the task itself with those that it awaits: a circle may be among them.
func (a *Account) Awaiting(task *v1alpha1.Task, awaits []string) map[string][]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	found, next := map[string][]string{task.Name: awaits}, []string{task.Name}
	for len(next) > 0 && len(found) < maxWalk {
		behind := a.behind[subject{ofTask, task.Namespace, next[0]}]
		next = next[1:]
		for name := range behind {
			if found[name] != nil {
				continue
			}
			for _, dep := range a.tasks[types.NamespacedName{Namespace: task.Namespace, Name: name}].is.Awaits {
				found[name] = append(found[name], dep.TaskRef.Name)
			}
			next = append(next, name)
		}
	}
	return found
}
