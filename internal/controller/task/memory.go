package task

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

// memory is what this process knows beyond what is stored. Losing it costs
// some reads and writes, never correctness.
type memory struct {
	mu    sync.Mutex
	tasks map[types.NamespacedName]*known
}

// known is what is known of one task. It is locked while the task is reconciled.
type known struct {
	sync.Mutex
	uid types.UID
	// recorded is the sequence up to which the history store has all entries.
	recorded int64
	// compared is when it was last looked whether the history store still has
	// what was recorded.
	compared time.Time
	// historyDeleted says that the store refuses whatever tells of the task.
	historyDeleted bool
	// recordProblem is why entries could not be recorded; "" when they could.
	recordProblem string
	// podAttempt and podUID are those of the last pod that this process made.
	podAttempt int64
	podUID     types.UID
	// reserved is the attempt that this process reserved last; 0 when it cannot
	// tell whether a pod was made for it.
	reserved int64
	// attempts are the numbers that the history store knows and those reserved since.
	attempts plan.Attempts
	// blocker is why the last pod could not be made.
	blocker   *plan.Blocker
	lastWrite time.Time
}

// of gives the task's entry, locked.
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

func (m *memory) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.tasks, key)
}

// podOf is the UID of the pod of the task's newest attempt, if this process made it.
func (k *known) podOf(task *v1alpha1.Task) string {
	n := len(task.Status.Attempts)
	if n == 0 || task.Status.Attempts[n-1].Number != k.podAttempt {
		return ""
	}
	return string(k.podUID)
}
