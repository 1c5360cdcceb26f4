// Package queue decides which tasks may run when only so many may run at once, in the cluster, in each
// namespace, and of the children of one parent.
//
// It promises that a free place goes to the namespace that has the fewest, and among those to the one
// that has waited longest for one, whatever its tasks say of themselves; that of the tasks of a
// namespace that wait, the one with the highest priority is next, and among equals the oldest; that a
// namespace or a parent of which as many run as may holds no other one back; that a supervisor never
// keeps its own children from running; and that a task that runs never loses its place to another one.
//
// A parent that runs shares its place with one of its children: while any of them runs, the parent
// takes no place of the cluster's and of the namespace's. It mostly waits for them meanwhile, and if
// they had to wait for it as well, all of them would wait for ever.
//
// It holds no lock and knows no clock. A change costs as many steps as there are namespaces, and parents
// in them, and few for each task.
package queue

import (
	"cmp"
	"container/heap"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Limits are how many tasks may run at once; 0 for any number.
type Limits struct {
	// Total is the number in the cluster, PerNamespace that in each namespace.
	Total, PerNamespace int
}

// Shared returns the limits with one for each namespace. If none is set, it leaves a third of the
// cluster's places to others.
func (l Limits) Shared() Limits {
	if kept := l.Total / 3; l.PerNamespace == 0 && kept > 0 {
		l.PerNamespace = l.Total - kept
	}
	return l
}

// Limit is one of the limits that keep a task from running.
type Limit int

const (
	// NoLimit keeps it from nothing.
	NoLimit Limit = iota
	// OfParent is that of the children of its parent.
	OfParent
	// OfNamespace is that of its namespace.
	OfNamespace
	// OfCluster is that of the cluster.
	OfCluster
)

// Task is a task that waits for a place.
type Task struct {
	types.NamespacedName
	// Priority of the task; a higher one is first.
	Priority int32
	// Since is the time by which it waits; the one with the earliest is first.
	Since time.Time
	// Parent is the name of its parent in the same namespace; "" for none.
	Parent string
}

// Of returns a Task as one that waits. It waits by its age; if it has given up a place in which its agent
// could not start, by the time since then, or it would get that back at once.
func Of(task *v1alpha1.Task) Task {
	t := Task{
		NamespacedName: types.NamespacedName{Namespace: task.Namespace, Name: task.Name},
		Priority:       task.Spec.Priority, Since: task.CreationTimestamp.Time,
	}
	if ref := task.Spec.ParentRef; ref != nil {
		t.Parent = ref.Name // its spec says it from the beginning
	}
	if n := len(task.Status.Attempts); n > 0 {
		if gave := task.Status.Attempts[n-1].PlaceGivenUpTime; gave != nil {
			t.Since = gave.Time
		}
	}
	return t
}

// Compare returns less than 0 if a is before b, of tasks of one namespace.
func Compare(a, b Task) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Since.Compare(b.Since),
		strings.Compare(a.Name, b.Name))
}

// Queue is the tasks that run and those that wait. New returns one.
type Queue struct {
	limits Limits
	// running has the names of the parents of the tasks that run.
	running map[types.NamespacedName]string
	// taken is how many places they take.
	taken      int
	waiting    int
	namespaces map[string]*namespace
	// turns counts how often a namespace has begun to wait for a place.
	turns int
}

// namespace is the tasks of a namespace.
type namespace struct {
	// taken is how many places its tasks take.
	taken    int
	families map[string]*family
	// places are the tasks that wait, by their names.
	places map[string]*place
	// turn is the lower, the longer the namespace has waited for its next place.
	turn int
}

// family is the tasks of a namespace that have the same parent, or that have none.
type family struct {
	// limit is how many of them may run at once; 0 for any number.
	limit   int
	running int
	waiting line
	// parent is that parent.
	parent types.NamespacedName
}

func (f *family) full() bool { return f.limit > 0 && f.running >= f.limit }

// shares reports whether the next of a family that runs shares the place of its parent.
func (q *Queue) shares(f *family) bool { return f.running == 0 && q.Holds(f.parent) }

// New returns a queue without tasks.
func New(limits Limits) *Queue {
	return &Queue{limits: limits, running: map[types.NamespacedName]string{}, namespaces: map[string]*namespace{}}
}

// of returns the namespace of a name, and the family of a parent in it.
func (q *Queue) of(name, parent string) (*namespace, *family) {
	n := q.namespaces[name]
	if n == nil {
		n = &namespace{families: map[string]*family{}, places: map[string]*place{}}
		q.namespaces[name] = n
	}
	f := n.families[parent]
	if f == nil {
		f = &family{parent: types.NamespacedName{Namespace: name, Name: parent}}
		n.families[parent] = f
	}
	return n, f
}

// tidy forgets a family without tasks and limit, and a namespace without families.
func (q *Queue) tidy(name, parent string) {
	n := q.namespaces[name]
	if n == nil {
		return
	}
	if f := n.families[parent]; f != nil && f.limit == 0 && f.running == 0 && len(f.waiting) == 0 {
		delete(n.families, parent)
	}
	if len(n.families) == 0 {
		delete(q.namespaces, name)
	}
}

// SetLimit sets how many children of a parent may run at once; 0 for any number.
func (q *Queue) SetLimit(parent types.NamespacedName, limit int) {
	_, f := q.of(parent.Namespace, parent.Name)
	f.limit = limit
	q.tidy(parent.Namespace, parent.Name)
}

// LimitOf returns how many children of a parent may run at once; 0 for any number.
func (q *Queue) LimitOf(parent types.NamespacedName) int {
	if n := q.namespaces[parent.Namespace]; n != nil && n.families[parent.Name] != nil {
		return n.families[parent.Name].limit
	}
	return 0
}

// Hold notes that a task with that parent has a place, whether or not there was any, and does not wait.
func (q *Queue) Hold(task types.NamespacedName, parent string) {
	q.Leave(task)
	if _, runs := q.running[task]; runs {
		return
	}
	n, f := q.of(task.Namespace, parent)
	if !q.shares(f) {
		q.take(n, 1)
	}
	f.running++
	if own := n.families[task.Name]; own != nil && own.running > 0 {
		q.take(n, -1)
	}
	q.running[task] = parent
}

// take notes that so many more places are taken by tasks of a namespace.
func (q *Queue) take(n *namespace, more int) {
	q.taken += more
	n.taken += more
}

// Free notes that a task has no place.
func (q *Queue) Free(task types.NamespacedName) {
	parent, runs := q.running[task]
	if !runs {
		return
	}
	delete(q.running, task)
	n, f := q.of(task.Namespace, parent)
	if own := n.families[task.Name]; own != nil && own.running > 0 {
		q.take(n, 1)
	}
	if f.running--; !q.shares(f) {
		q.take(n, -1)
	}
	q.tidy(task.Namespace, parent)
}

// Holds reports whether a task has a place.
func (q *Queue) Holds(task types.NamespacedName) bool {
	_, runs := q.running[task]
	return runs
}

// Join makes a task wait, unless it has a place. If it waits already, its priority is changed.
func (q *Queue) Join(task Task) {
	if q.Holds(task.NamespacedName) {
		return
	}
	if n := q.namespaces[task.Namespace]; n != nil && n.places[task.Name] != nil {
		p := n.places[task.Name]
		if p.task.Parent == task.Parent {
			p.task = task
			heap.Fix(&n.families[task.Parent].waiting, p.index)
			return
		}
		q.Leave(task.NamespacedName) // it was another task of that name
	}
	n, f := q.of(task.Namespace, task.Parent)
	if len(n.places) == 0 {
		q.begin(n)
	}
	p := &place{task: task}
	n.places[task.Name] = p
	heap.Push(&f.waiting, p)
	q.waiting++
}

// begin notes that a namespace begins to wait for a place.
func (q *Queue) begin(n *namespace) {
	q.turns++
	n.turn = q.turns
}

// Leave makes a task wait no longer.
func (q *Queue) Leave(task types.NamespacedName) {
	n := q.namespaces[task.Namespace]
	if n == nil || n.places[task.Name] == nil {
		return
	}
	p := n.places[task.Name]
	heap.Remove(&n.families[p.task.Parent].waiting, p.index)
	delete(n.places, task.Name)
	q.waiting--
	q.tidy(task.Namespace, p.task.Parent)
}

// Waits reports whether a task waits.
func (q *Queue) Waits(task types.NamespacedName) bool {
	n := q.namespaces[task.Namespace]
	return n != nil && n.places[task.Name] != nil
}

// Waiting returns how many tasks wait.
func (q *Queue) Waiting() int { return q.waiting }

// Running returns how many tasks have a place.
func (q *Queue) Running() int { return len(q.running) }

// Reached returns the limit that leaves no place to another child of a parent in a namespace.
func (q *Queue) Reached(name, parent string) Limit {
	n := q.namespaces[name]
	var f *family
	if n != nil {
		f = n.families[parent]
	}
	switch {
	case f != nil && f.full():
		return OfParent
	case f != nil && q.shares(f):
		return NoLimit
	case n != nil && q.fullNamespace(n):
		return OfNamespace
	case q.fullCluster():
		return OfCluster
	}
	return NoLimit
}

func (q *Queue) fullNamespace(n *namespace) bool {
	return q.limits.PerNamespace > 0 && n.taken >= q.limits.PerNamespace
}

func (q *Queue) fullCluster() bool {
	return q.limits.Total > 0 && q.taken >= q.limits.Total
}

// Admit gives every free place to the task that is next, and returns those tasks in order.
func (q *Queue) Admit() (admitted []types.NamespacedName) {
	for {
		next := q.next()
		if next == nil {
			return admitted
		}
		if n, f := q.of(next.task.Namespace, next.task.Parent); !q.shares(f) {
			q.begin(n)
		}
		q.Hold(next.task.NamespacedName, next.task.Parent)
		admitted = append(admitted, next.task.NamespacedName)
	}
}

// next returns the task that is next; nil if none may run.
func (q *Queue) next() *place {
	if q.waiting == 0 {
		return nil
	}
	var first *place
	var of *namespace
	for _, n := range q.namespaces {
		if len(n.places) == 0 {
			continue
		}
		p, shares := q.nextOf(n)
		if shares {
			return p
		}
		if p != nil && (of == nil || cmp.Or(cmp.Compare(n.taken, of.taken), cmp.Compare(n.turn, of.turn)) < 0) {
			first, of = p, n
		}
	}
	return first
}

// nextOf returns the task of a namespace that is next, and whether it shares the place of its parent;
// nil if none may run.
func (q *Queue) nextOf(n *namespace) (first *place, shares bool) {
	full := q.fullCluster() || q.fullNamespace(n)
	for _, f := range n.families {
		switch {
		case len(f.waiting) == 0 || f.full():
		case q.shares(f):
			return f.waiting[0], true
		case !full && (first == nil || Compare(f.waiting[0].task, first.task) < 0):
			first = f.waiting[0]
		}
	}
	return first, false
}

// Wanted reports whether the place of a task that has one would go to another task that waits.
func (q *Queue) Wanted(task types.NamespacedName) bool {
	parent, runs := q.running[task]
	if !runs || q.waiting == 0 {
		return false
	}
	q.Free(task)
	next := q.next()
	q.Hold(task, parent)
	return next != nil
}

// place is a task in a line.
type place struct {
	task  Task
	index int
}

// line is the tasks of a namespace that wait, as a heap.
type line []*place

// Len implements heap.Interface.
func (l line) Len() int { return len(l) }

// Less implements heap.Interface.
func (l line) Less(i, j int) bool { return Compare(l[i].task, l[j].task) < 0 }

// Swap implements heap.Interface.
func (l line) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].index, l[j].index = i, j
}

// Push implements heap.Interface.
func (l *line) Push(x any) {
	p, _ := x.(*place)
	p.index = len(*l)
	*l = append(*l, p)
}

// Pop implements heap.Interface.
func (l *line) Pop() any {
	last := len(*l) - 1
	p := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	return p
}
