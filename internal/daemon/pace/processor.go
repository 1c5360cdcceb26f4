package pace

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime is how long processors have worked for this process and for those that it
// has started: a git that stores a large change works for as long as that takes.
func ProcessorTime() time.Duration {
	sum := ofChildren() // first: one that ends meanwhile counts twice for a moment, but is not missed
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if unix.Getrusage(who, &used) == nil { // fails for an unknown who alone
			sum += time.Duration(used.Utime.Nano() + used.Stime.Nano())
		}
	}
	return sum
}

// clockTick is the unit of times in /proc, the same on all of Linux (see proc(5)
// and USER_HZ).
const clockTick = 10 * time.Millisecond

// ofChildren is processorTime for the processes that run. A kernel that does not list them
// tells of nothing before they have ended.
func ofChildren() (sum time.Duration) {
	const threads = "/proc/self/task"
	entries, err := os.ReadDir(threads)
	if err != nil {
		return 0
	}
	for _, thread := range entries {
		ids, err := os.ReadFile(filepath.Join(threads, thread.Name(), "children"))
		if err != nil {
			continue // the thread has ended
		}
		for id := range bytes.FieldsSeq(ids) {
			stat, err := os.ReadFile(filepath.Join("/proc", string(id), "stat"))
			if err == nil { // or it has ended
				sum += statTime(stat)
			}
		}
	}
	return sum
}

// Places of the fields of /proc/PID/stat behind the command's name: in user mode and in the
// kernel, and both of the children that were waited for.
const statTimes, statTimesEnd = 11, 15

func statTime(stat []byte) (sum time.Duration) {
	// The name is in brackets, and may hold brackets itself.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < statTimesEnd {
		return 0
	}
	for _, field := range fields[statTimes:statTimesEnd] {
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err == nil { // the kernel writes numbers
			sum += time.Duration(ticks) * clockTick
		}
	}
	return sum
}
