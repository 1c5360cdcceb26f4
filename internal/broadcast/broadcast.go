// Package broadcast wakes all who wait for a change.
package broadcast

// Change tells of a change of what a mutex guards. The same mutex guards it, and its
// zero value can be used: who looks and takes Next in one go misses nothing.
type Change struct{ next chan struct{} }

// Next is closed by the next Announce.
func (c *Change) Next() <-chan struct{} {
	if c.next == nil {
		c.next = make(chan struct{})
	}
	return c.next
}

// Announce wakes all who wait.
func (c *Change) Announce() {
	if c.next != nil {
		close(c.next)
		c.next = nil
	}
}
