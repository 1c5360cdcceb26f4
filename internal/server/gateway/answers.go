package gateway

import "sync"

// answers wakes requests that wait for the answers to calls. The zero value is ready.
type answers struct {
	mu     sync.Mutex
	byCall map[string]map[chan struct{}]struct{}
}

// await returns a channel that receives when a call may have been answered, until leave is called.
func (a *answers) await(call string) (answered <-chan struct{}, leave func()) {
	c := make(chan struct{}, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byCall == nil {
		a.byCall = map[string]map[chan struct{}]struct{}{}
	}
	if a.byCall[call] == nil {
		a.byCall[call] = map[chan struct{}]struct{}{}
	}
	a.byCall[call][c] = struct{}{}
	return c, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.byCall[call], c)
		if len(a.byCall[call]) == 0 {
			delete(a.byCall, call)
		}
	}
}

// announce wakes those who wait for the answer to a call; all who wait for any if it is "".
func (a *answers) announce(call string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if call != "" {
		wake(a.byCall[call])
		return
	}
	for _, waiting := range a.byCall {
		wake(waiting)
	}
}

func wake(waiting map[chan struct{}]struct{}) {
	for c := range waiting {
		select {
		case c <- struct{}{}:
		default: // it has not looked since the last time
		}
	}
}
