// Package broadcast notifies all goroutines that wait for a change.
package broadcast

// Change notifies waiters of changes to data that a mutex guards. The same mutex must
// guard the Change. A waiter that reads the data and calls Next under one lock misses
// no change. The zero value is ready to use.
type Change struct{ next chan struct{} }

// Next returns a channel that the next Announce closes.
func (c *Change) Next() <-chan struct{} {
	if c.next == nil {
		c.next = make(chan struct{})
	}
	return c.next
}

// Announce wakes all waiters.
func (c *Change) Announce() {
	if c.next != nil {
		close(c.next)
		c.next = nil
	}
}
