package run

import (
	"time"

	"golang.org/x/sys/unix"
)

// processorTime is how long processors have worked for this process and for the
// processes that it has started and that have ended.
func processorTime() time.Duration {
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if unix.Getrusage(who, &used) == nil { // fails for an unknown who alone
			sum += time.Duration(used.Utime.Nano() + used.Stime.Nano())
		}
	}
	return sum
}
