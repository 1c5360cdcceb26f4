package toolcall

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// object is one of which the changes wake calls.
type object struct {
	kind string
	types.NamespacedName
}

// keyOf returns the object of a name and of the kind of another one.
func keyOf(of client.Object, name types.NamespacedName) object {
	return object{fmt.Sprintf("%T", of), name}
}

// checkpointsOf returns what stands for all checkpoints of a task.
func checkpointsOf(namespace, task string) object {
	return object{"checkpoints", types.NamespacedName{Namespace: namespace, Name: task}}
}

// waits remembers which calls wait for which objects. The zero value is ready. A new process has none: it
// looks at all calls once.
type waits struct {
	mu   sync.Mutex
	by   map[object]sets.Set[reconcile.Request]
	call map[reconcile.Request]sets.Set[object]
}

// begin forgets what a call has waited for: it is about to be looked at.
func (w *waits) begin(request reconcile.Request) { w.end(request) }

// end forgets a call.
func (w *waits) end(request reconcile.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for o := range w.call[request] {
		w.by[o].Delete(request)
		if w.by[o].Len() == 0 {
			delete(w.by, o)
		}
	}
	delete(w.call, request)
}

// add makes a call wait for an object. It must be called before the object is read.
func (w *waits) add(request reconcile.Request, o object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by, w.call = map[object]sets.Set[reconcile.Request]{}, map[reconcile.Request]sets.Set[object]{}
	}
	if w.by[o] == nil {
		w.by[o] = sets.Set[reconcile.Request]{}
	}
	if w.call[request] == nil {
		w.call[request] = sets.Set[object]{}
	}
	w.by[o].Insert(request)
	w.call[request].Insert(o)
}

// has reports whether a call waits for anything.
func (w *waits) has(request reconcile.Request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.call[request].Len() > 0
}

// of returns the calls that wait for a changed object.
func (w *waits) of(changed client.Object) []reconcile.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := w.by[keyOf(changed, client.ObjectKeyFromObject(changed))].UnsortedList()
	if c, ok := changed.(*v1alpha1.Checkpoint); ok {
		found = append(found, w.by[checkpointsOf(c.Namespace, c.Spec.TaskRef.Name)].UnsortedList()...)
	}
	return found
}
