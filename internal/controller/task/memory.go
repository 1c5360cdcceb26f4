package task

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// memory is what this process knows in addition to what is stored. Losing it costs some
// reads and writes, never correctness.
type memory struct {
	mu    sync.Mutex
	tasks map[types.NamespacedName]*known
	// copies counts how often the history store may have become an older copy.
	copies atomic.Int64
}

// known is what this process knows about one task. It is locked while the task is
// reconciled.
type known struct {
	sync.Mutex
	// uid is the task's UID; a new task of the same name starts with a new entry.
	uid types.UID
	// recorded is the sequence number up to which the history store has all entries.
	recorded int64
	// lastCompared is when the recorded transitions were last compared with those that the
	// history store has.
	lastCompared time.Time
	// historyDeleted is true when the task's history was deleted: the store refuses its
	// entries.
	historyDeleted bool
	// recordProblem is why entries could not be recorded; "" when they could.
	recordProblem string
	// keptGeneration is the generation of the task whose spec was kept last, when memory.copies was
	// keptIn.
	keptGeneration, keptIn int64
	// keptMembership is the place in the contract that was kept with it.
	keptMembership history.Membership
	// keptBudgets are those that were stored last, for the attempt that keptBudgetsFor has, when
	// memory.copies was keptBudgetsIn.
	keptBudgets                   history.SetBudgets
	keptBudgetsFor, keptBudgetsIn int64
	// podAttempt and podUID are the attempt and UID of the last pod this process created.
	podAttempt int64
	podUID     types.UID
	// reserved is the attempt this process reserved last; 0 if it is unknown whether a pod
	// was created for it.
	reserved int64
	// attempts is the history store's last answer, and the numbers reserved since.
	attempts plan.Attempts
	// blocker is why the last pod could not be created; nil if it could.
	blocker *plan.Blocker
	// publisherRefused is why the pod that publishes could not be created; "" if it could, or
	// if the status says so.
	publisherRefused string
	// publisher is the number of the pod that publishes which this process reserved last; 0 if it is
	// unknown whether a pod was created for it, or known that one was.
	publisher int64
	// growthRefused is why the claim could not grow, and growthAnswered is true until the next
	// decision if that was found out a moment ago.
	growthRefused  growthRefusal
	growthAnswered bool
	// class is the storage class of the claim, as it was read last.
	class readClass
	// volume is the claim's PersistentVolume, as it was read last.
	volume readVolume
	// template is what was found out about the template of the task.
	template template
	// lastWrite is when the status was last written.
	lastWrite time.Time
}

// template is what is known of the template of a generation of a task.
type template struct {
	known      bool
	generation int64
	// problem is why it cannot be used; "" if it can. digest is that of the pods that the spec makes; "" if
	// it makes none.
	problem, digest string
}

// of returns the task's entry, locked.
func (m *memory) of(task *v1alpha1.Task) *known {
	key := types.NamespacedName{Namespace: task.Namespace, Name: task.Name}
	m.mu.Lock()
	if m.tasks == nil {
		m.tasks = map[types.NamespacedName]*known{}
	}
	k := m.tasks[key]
	if k == nil || k.uid != task.UID {
		k = &known{uid: task.UID}
		m.tasks[key] = k
	}
	m.mu.Unlock()
	k.Lock()
	return k
}

// forget drops the entry of a task that no longer exists.
func (m *memory) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.tasks, key)
}

// podOf returns the UID of the pod of the task's newest attempt; "" if this process did not
// create it.
func (k *known) podOf(task *v1alpha1.Task) string {
	n := len(task.Status.Attempts)
	if n == 0 || task.Status.Attempts[n-1].Number != k.podAttempt {
		return ""
	}
	return string(k.podUID)
}
