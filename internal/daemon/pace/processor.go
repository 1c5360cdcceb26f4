package pace

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime returns the processor time used by this process and the processes that it
// has started, including running ones: a git that stores a large change may run for long.
func ProcessorTime() time.Duration {
	sum := runningChildren() // first, so that a child that ends meanwhile counts twice rather than not at all
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if unix.Getrusage(who, &used) == nil { // fails only for an unknown who
			sum += time.Duration(used.Utime.Nano() + used.Stime.Nano())
		}
	}
	return sum
}

// clockTick is the unit of times in /proc, the same on all of Linux (see proc(5)
// and USER_HZ).
const clockTick = 10 * time.Millisecond

// runningChildren returns the processor time of the child processes that run. On a kernel
// that does not list them it is 0, and they count only when they have ended.
func runningChildren() (sum time.Duration) {
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
			if err == nil { // an error means that the child has ended
				sum += statTime(stat)
			}
		}
	}
	return sum
}

// statTimes and statTimesEnd delimit the fields utime, stime, cutime and cstime of
// /proc/PID/stat, counted from the one after the command's name.
const statTimes, statTimesEnd = 11, 15

// statTime returns the processor time of a process and its reaped children from its stat
// file.
func statTime(stat []byte) (sum time.Duration) {
	// The name is in parentheses, and may contain parentheses itself.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < statTimesEnd {
		return 0
	}
	for _, field := range fields[statTimes:statTimesEnd] {
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err == nil { // the kernel always writes numbers
			sum += time.Duration(ticks) * clockTick
		}
	}
	return sum
}
