package relations

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/lookup"
	"github.com/clew-dev/clew/internal/plan"
)

// subject is what tasks of a namespace are behind: its news concern them.
type subject struct {
	kind, namespace, name string
}

// Kinds of subjects: a parent, a contract, a task that others wait for to end, and one from which others
// start.
const (
	ofParent   = "parent"
	ofContract = "contract"
	ofTask     = "task"
	ofSource   = "source"
)

// gather is how long the changes of a parent's children are gathered before it counts them, and those of
// the tasks that wait for a failed one before it says who they are.
const gather = 100 * time.Millisecond

// stand puts a task behind its subjects, and behind no others. The caller holds mu.
func (a *Account) stand(name types.NamespacedName, e *entry) {
	var now []subject
	add := func(kind, of string) {
		if s := (subject{kind, name.Namespace, of}); of != "" && !slices.Contains(now, s) {
			now = append(now, s)
		}
	}
	add(ofParent, e.is.ParentName)
	add(ofContract, e.contract)
	for _, dep := range e.is.Awaits {
		add(ofTask, dep.TaskRef.Name)
	}
	add(ofSource, e.is.Source)
	if slices.Equal(e.subjects, now) {
		return
	}
	for _, s := range e.subjects {
		if a.behind[s].Delete(name.Name); a.behind[s].Len() == 0 {
			delete(a.behind, s)
		}
	}
	for _, s := range now {
		if a.behind[s] == nil {
			a.behind[s] = sets.Set[string]{}
		}
		a.behind[s].Insert(name.Name)
	}
	e.subjects = now
}

// tell wakes those that a change of a task concerns, and has a worker look for them where they may be
// many. The caller holds mu.
func (a *Account) tell(name types.NamespacedName, was, now plan.Relations) {
	if !a.ready {
		return // every task is reconciled at the start
	}
	if was.AsParent() != now.AsParent() {
		a.lookUp(ofParent, name)
	}
	if was.UID != now.UID {
		a.lookUp(ofSource, name)
	}
	if was.UID != now.UID || was.Status != now.Status || was.Reason != now.Reason {
		a.lookUp(ofTask, name)
	}
	if was.AsLead() != now.AsLead() { // of a contract that a task names for good
		a.lookUp(ofContract, types.NamespacedName{Namespace: name.Namespace, Name: cmp.Or(now.Contract, was.Contract)})
	}
	if was.ParentUID != now.ParentUID || was.FamilyView != now.FamilyView {
		a.tellParent(name.Namespace, was)
		a.tellParent(name.Namespace, now)
	}
	if !slices.Equal(was.Awaits, now.Awaits) {
		a.tellFailed(name.Namespace, was.Awaits)
		a.tellFailed(name.Namespace, now.Awaits)
	}
}

// tellParent wakes the parent of a child, which counts it. The caller holds mu.
func (a *Account) tellParent(namespace string, child plan.Relations) {
	if child.ParentUID != "" {
		a.wakeLater(types.NamespacedName{Namespace: namespace, Name: child.ParentName})
	}
}

// tellFailed wakes the tasks that have failed among those that one awaits: they say who waits. The caller
// holds mu.
func (a *Account) tellFailed(namespace string, awaits []v1alpha1.Dependency) {
	for _, dep := range awaits {
		name := types.NamespacedName{Namespace: namespace, Name: dep.TaskRef.Name}
		if e := a.tasks[name]; e != nil && e.is.Failed() {
			a.wakeLater(name)
		}
	}
}

// lookUp has a worker wake those behind a subject, if there are any. The caller holds mu.
func (a *Account) lookUp(kind string, of types.NamespacedName) {
	if len(a.behind[subject{kind, of.Namespace, of.Name}]) > 0 && a.ready && a.queue != nil {
		a.queue.Add(lookup.Request(kind, of.Namespace, of.Name))
	}
}

// wakeLater has a task reconciled that many others may concern at once. The caller holds mu.
func (a *Account) wakeLater(name types.NamespacedName) {
	if a.queue != nil {
		a.queue.AddAfter(reconcile.Request{NamespacedName: name}, gather)
	}
}

// wake has a task reconciled. The caller holds mu.
func (a *Account) wake(name types.NamespacedName) {
	if a.queue != nil {
		a.queue.Add(reconcile.Request{NamespacedName: name})
	}
}
