package toolcall

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// made remembers the names of the tasks that calls make, of each supervisor by its UID, until the cache
// shows them: a supervisor's next call may come before that, and its children are counted. The zero value is
// ready. A new process remembers none, and has all in its cache that earlier ones have made.
type made struct {
	mu sync.Mutex
	// by has the call that makes a task; "" once that has its answer, so that what there is not will not come.
	by map[types.UID]map[string]string
}

// add remembers tasks that a call is about to make.
func (m *made) add(lead types.UID, call string, names ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.by == nil {
		m.by = map[types.UID]map[string]string{}
	}
	if m.by[lead] == nil {
		m.by[lead] = map[string]string{}
	}
	for _, name := range names {
		m.by[lead][name] = call
	}
}

// answered notes that a call has its answer.
func (m *made) answered(lead types.UID, call string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, by := range m.by[lead] {
		if by == call {
			m.by[lead][name] = ""
		}
	}
}

// of returns what calls of a supervisor make, by name: whether it may be yet to come.
func (m *made) of(lead types.UID) map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[string]bool, len(m.by[lead]))
	for name, call := range m.by[lead] {
		all[name] = call != ""
	}
	return all
}

// drop forgets tasks.
func (m *made) drop(lead types.UID, names ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		delete(m.by[lead], name)
	}
	if len(m.by[lead]) == 0 {
		delete(m.by, lead)
	}
}

// gone forgets a supervisor.
func (m *made) gone(lead types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.by, lead)
}
