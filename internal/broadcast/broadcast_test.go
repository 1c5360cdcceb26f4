package broadcast_test

import (
	"testing"

	"github.com/clew-dev/clew/internal/broadcast"
)

func TestAChangeWakesAllWhoWaitedBeforeIt(t *testing.T) {
	var change broadcast.Change
	change.Announce() // nobody waits
	for range 2 {
		one, another := change.Next(), change.Next()
		if closed(one) || closed(another) {
			t.Fatal("nothing was announced, and somebody is woken")
		}
		change.Announce()
		if !closed(one) || !closed(another) {
			t.Fatal("a change was announced, and somebody still waits")
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
