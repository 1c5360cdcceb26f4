package crash_test

import (
	"fmt"
	"os"
	"testing"
)

func soak() bool { return os.Getenv("CLEW_SOAK") == "1" }

// TestTheEndIsTheSameWhereverTheManagerIsKilled runs each chapter once, and then again for its
// writes.
func TestTheEndIsTheSameWhereverTheManagerIsKilled(t *testing.T) {
	for i, c := range scenario {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRun(t, nil)
			c.tell(r)
			want, writes := r.end(), r.striker.counted()
			t.Logf("soak: %d writes", len(writes))
			for i, at := range strikes(writes, float64(i)/float64(len(scenario))) {
				t.Run(fmt.Sprintf("%03d killed %s %s", i, at.when, at.write), func(t *testing.T) {
					t.Parallel()
					r := newRun(t, &at)
					c.tell(r)
					r.endsAs(want)
					if !r.striker.hit() {
						t.Logf("soak: 1 writes not reached")
						return
					}
					t.Logf("soak: 1 kills %s a write", at.when)
				})
			}
		})
	}
}

// strikes returns the writes at which to kill: all or, in the short form, one that is this far
// into the chapter.
func strikes(writes []write, far float64) (at []strike) {
	for _, w := range writes {
		at = append(at, strike{w, before}, strike{w, after})
	}
	if soak() {
		return at
	}
	one := int(far * float64(len(at)))
	return at[one : one+1]
}
