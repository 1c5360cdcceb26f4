package toolcall

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

// Phases hands calls of the tool phase_set to the controller of Tasks, which alone writes the status of
// a Task: it is a source of requests for the supervisors whose agents have called. Nothing of it is
// stored: the history store has the calls, and a new process reads them again. The zero value is ready.
type Phases struct {
	mu    sync.Mutex
	calls map[types.UID][]plan.PhaseCall
	// wake enqueues a task; nil until the controller of Tasks has started.
	wake func(reconcile.Request)
}

// Start implements source.Source.
func (p *Phases) Start(_ context.Context, requests workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wake = requests.Add
	return nil
}

// String names the source in logs.
func (p *Phases) String() string { return "calls of phase_set" }

// Of returns the oldest call of a task that has no answer yet; nil for none.
func (p *Phases) Of(task types.UID) *plan.PhaseCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	if calls := p.calls[task]; len(calls) > 0 {
		return &calls[0]
	}
	return nil
}

// set adds a call, and wakes its task.
func (p *Phases) set(task *v1alpha1.Task, call plan.PhaseCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = map[types.UID][]plan.PhaseCall{}
	}
	if !slices.Contains(p.calls[task.UID], call) {
		p.calls[task.UID] = append(slices.Clone(p.calls[task.UID]), call)
	}
	if p.wake != nil {
		p.wake(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(task)})
	}
}

// drop removes a call that has an answer, and wakes nobody: the answer follows from the task's status.
func (p *Phases) drop(task types.UID, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(p.calls[task]), func(c plan.PhaseCall) bool { return c.ID == id })
	if len(rest) == 0 {
		delete(p.calls, task)
		return
	}
	p.calls[task] = rest
}
