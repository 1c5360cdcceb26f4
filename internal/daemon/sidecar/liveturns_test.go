package sidecar

import (
	"testing"
	"time"
)

// TestTurnsOfLiveFiles: however often somebody asks, checkpoints have four fifths of the time,
// and quick answers cost nobody anything.
func TestTurnsOfLiveFiles(t *testing.T) {
	var l liveTurns
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	take := func(id string, now float64, wantStore, wantRefuse string, wantAfter time.Duration) {
		t.Helper()
		store, refuse, after := l.take(id, at(now))
		if store != wantStore || refuse != wantRefuse || after != wantAfter {
			t.Fatalf("after %v s, the request %q: store %q, refuse %q, after %v; want %q, %q, %v", now, id, store, refuse, after, wantStore, wantRefuse, wantAfter)
		}
	}
	take("a", 0, "a", "", 0)
	take("b", 0.1, "", "", 0) // waits for the push
	take("c", 0.2, "", "", 0) // replaces b
	l.ended(at(0.5))
	take("", 0.5, "c", "", 0) // a quick one needs no rest
	l.ended(at(1.5))          // took 1 s, and rests until 5.5
	take("", 1.5, "", "", 0)  // nobody waits
	take("d", 1.6, "", "", 0) // the rest is short enough to wait for
	take("", 5.5, "d", "", 0)
	take("e", 6, "", "", 0)
	l.ended(at(15.5)) // took 10 s
	take("", 15.5, "", "e", 40*time.Second)
	take("f", 20.5, "", "f", 35*time.Second)
	if l.next() != nil {
		t.Error("a request that was refused still waits")
	}
	take("g", 51, "", "", 0)
	take("", 55.5, "g", "", 0)
}
