// Package queue decides which tasks may run when only so many may run at once, in the cluster, in each
// namespace, and of the children of one parent.
//
// It promises that of the tasks that wait, the one with the highest priority is next, and among equals
// the oldest; that a namespace or a parent of which as many run as may holds no other one back; and
// that a task that runs never loses its place to another one. It holds no lock and knows no clock. A
// change costs as many steps as there are namespaces, and parents in them, and few for each task.
package queue

import (
	"cmp"
	"container/heap"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Limits are how many tasks may run at once; 0 for any number.
type Limits struct {
	// Total is the number in the cluster, PerNamespace that in each namespace.
	Total, PerNamespace int
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
	// Created is when the Task was created; an older one is first.
	Created time.Time
	// Parent is the name of its parent in the same namespace; "" for none.
	Parent string
}

// Compare returns less than 0 if a is before b.
func Compare(a, b Task) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Created.Compare(b.Created),
		strings.Compare(a.Name, b.Name), strings.Compare(a.Namespace, b.Namespace))
}

// Queue is the tasks that run and those that wait. New returns one.
type Queue struct {
	limits Limits
	// running has the names of the parents of the tasks that run.
	running    map[types.NamespacedName]string
	waiting    int
	namespaces map[string]*namespace
}

// namespace is the tasks of a namespace.
type namespace struct {
	running  int
	families map[string]*family
	// places are the tasks that wait, by their names.
	places map[string]*place
}

// family is the tasks of a namespace that have the same parent, or that have none.
type family struct {
	// limit is how many of them may run at once; 0 for any number.
	limit   int
	running int
	waiting line
}

func (f *family) full() bool { return f.limit > 0 && f.running >= f.limit }

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
		f = &family{}
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
	q.running[task] = parent
	n, f := q.of(task.Namespace, parent)
	n.running++
	f.running++
}

// Free notes that a task has no place.
func (q *Queue) Free(task types.NamespacedName) {
	parent, runs := q.running[task]
	if !runs {
		return
	}
	delete(q.running, task)
	n, f := q.of(task.Namespace, parent)
	n.running--
	f.running--
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
	p := &place{task: task}
	n.places[task.Name] = p
	heap.Push(&f.waiting, p)
	q.waiting++
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
	switch {
	case n != nil && n.families[parent] != nil && n.families[parent].full():
		return OfParent
	case n != nil && q.fullNamespace(n):
		return OfNamespace
	case q.fullCluster():
		return OfCluster
	}
	return NoLimit
}

func (q *Queue) fullNamespace(n *namespace) bool {
	return q.limits.PerNamespace > 0 && n.running >= q.limits.PerNamespace
}

func (q *Queue) fullCluster() bool {
	return q.limits.Total > 0 && len(q.running) >= q.limits.Total
}

// Admit gives every free place to the task that is next, and returns those tasks in order.
func (q *Queue) Admit() (admitted []types.NamespacedName) {
	for {
		next := q.next()
		if next == nil {
			return admitted
		}
		q.Hold(next.task.NamespacedName, next.task.Parent)
		admitted = append(admitted, next.task.NamespacedName)
	}
}

// next returns the task that is next; nil if none may run.
func (q *Queue) next() (first *place) {
	if q.waiting == 0 || q.fullCluster() {
		return nil
	}
	for _, n := range q.namespaces {
		if len(n.places) == 0 || q.fullNamespace(n) {
			continue
		}
		for _, f := range n.families {
			if len(f.waiting) == 0 || f.full() || first != nil && Compare(first.task, f.waiting[0].task) < 0 {
				continue
			}
			first = f.waiting[0]
		}
	}
	return first
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
