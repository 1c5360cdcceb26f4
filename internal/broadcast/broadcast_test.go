package broadcast_test

import (
	"testing"

	"github.com/clew-dev/clew/internal/broadcast"
)

func TestAnnounceWakesAllWaiters(t *testing.T) {
	var change broadcast.Change
	change.Announce() // without waiters
	for range 2 {
		one, another := change.Next(), change.Next()
		if closed(one) || closed(another) {
			t.Fatal("a waiter was woken without an Announce")
		}
		change.Announce()
		if !closed(one) || !closed(another) {
			t.Fatal("a waiter still waits after Announce")
		}
	}
}

func closed(waiting <-chan struct{}) bool {
	select {
	case <-waiting:
		return true
	default:
		return false
	}
}
