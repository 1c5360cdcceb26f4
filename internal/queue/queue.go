// Package queue decides which tasks may run when only so many may run at once, in the cluster and in
// each namespace.
//
// It promises that of the tasks that wait, the one with the highest priority is next, and among equals
// the oldest; that a namespace that runs as many as it may holds no other one back; and that a task
// that runs never loses its place to another one. It holds no lock and knows no clock. A change costs
// as many steps as there are namespaces whose tasks wait, and few for each task.
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

// Any reports whether there is any limit.
func (l Limits) Any() bool { return l.Total > 0 || l.PerNamespace > 0 }

// Task is a task that waits for a place.
type Task struct {
	types.NamespacedName
	// Priority of the task; a higher one is first.
	Priority int32
	// Created is when the Task was created; an older one is first.
	Created time.Time
}

// Compare returns less than 0 if a is before b.
func Compare(a, b Task) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Created.Compare(b.Created),
		strings.Compare(a.Name, b.Name), strings.Compare(a.Namespace, b.Namespace))
}

// Queue is the tasks that run and those that wait. New returns one.
type Queue struct {
	limits     Limits
	running    map[types.NamespacedName]bool
	namespaces map[string]*namespace
}

// namespace is the tasks of a namespace.
type namespace struct {
	running int
	waiting line
	// places are the tasks that wait, by their names.
	places map[string]*place
}

// New returns a queue without tasks.
func New(limits Limits) *Queue {
	return &Queue{limits: limits, running: map[types.NamespacedName]bool{}, namespaces: map[string]*namespace{}}
}

func (q *Queue) in(name string) *namespace {
	n := q.namespaces[name]
	if n == nil {
		n = &namespace{places: map[string]*place{}}
		q.namespaces[name] = n
	}
	return n
}

// tidy forgets a namespace without tasks.
func (q *Queue) tidy(name string) {
	if n := q.namespaces[name]; n != nil && n.running == 0 && len(n.waiting) == 0 {
		delete(q.namespaces, name)
	}
}

// Hold notes that a task has a place, whether or not there was any, and does not wait.
func (q *Queue) Hold(task types.NamespacedName) {
	q.Leave(task)
	if !q.running[task] {
		q.running[task] = true
		q.in(task.Namespace).running++
	}
}

// Free notes that a task has no place.
func (q *Queue) Free(task types.NamespacedName) {
	if !q.running[task] {
		return
	}
	delete(q.running, task)
	q.in(task.Namespace).running--
	q.tidy(task.Namespace)
}

// Holds reports whether a task has a place.
func (q *Queue) Holds(task types.NamespacedName) bool { return q.running[task] }

// Join makes a task wait, unless it has a place. If it waits already, its priority is changed.
func (q *Queue) Join(task Task) {
	if q.running[task.NamespacedName] {
		return
	}
	n := q.in(task.Namespace)
	if p := n.places[task.Name]; p != nil {
		p.task = task
		heap.Fix(&n.waiting, p.index)
		return
	}
	p := &place{task: task}
	n.places[task.Name] = p
	heap.Push(&n.waiting, p)
}

// Leave makes a task wait no longer.
func (q *Queue) Leave(task types.NamespacedName) {
	n := q.namespaces[task.Namespace]
	if n == nil || n.places[task.Name] == nil {
		return
	}
	heap.Remove(&n.waiting, n.places[task.Name].index)
	delete(n.places, task.Name)
	q.tidy(task.Namespace)
}

// Waits reports whether a task waits.
func (q *Queue) Waits(task types.NamespacedName) bool {
	n := q.namespaces[task.Namespace]
	return n != nil && n.places[task.Name] != nil
}

// Waiting returns how many tasks wait.
func (q *Queue) Waiting() (count int) {
	for _, n := range q.namespaces {
		count += len(n.waiting)
	}
	return count
}

// Running returns how many tasks have a place.
func (q *Queue) Running() int { return len(q.running) }

// Full reports whether a namespace has no place left, and whether that is for its own limit.
func (q *Queue) Full(name string) (full, ofNamespace bool) {
	if n := q.namespaces[name]; q.limits.PerNamespace > 0 && n != nil && n.running >= q.limits.PerNamespace {
		return true, true
	}
	return q.limits.Total > 0 && len(q.running) >= q.limits.Total, false
}

// Admit gives every free place to the task that is next, and returns those tasks in order.
func (q *Queue) Admit() (admitted []types.NamespacedName) {
	for {
		next := q.next()
		if next == nil {
			return admitted
		}
		q.Hold(next.task.NamespacedName)
		admitted = append(admitted, next.task.NamespacedName)
	}
}

// next returns the task that is next; nil if none may run.
func (q *Queue) next() (first *place) {
	if q.limits.Total > 0 && len(q.running) >= q.limits.Total {
		return nil
	}
	for name, n := range q.namespaces {
		if len(n.waiting) == 0 || first != nil && Compare(first.task, n.waiting[0].task) < 0 {
			continue
		}
		if full, _ := q.Full(name); !full {
			first = n.waiting[0]
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
