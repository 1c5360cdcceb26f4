package gitstore

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// clockTick is the unit of times in /proc, the same on all of Linux (see proc(5)
// and USER_HZ).
const clockTick = 10 * time.Millisecond

// Places of the fields of /proc/PID/stat behind the command's name.
const (
	statGroup = 2
	// statTimes are four: in user mode and in the kernel, and both of the children
	// that were waited for.
	statTimes, statTimesEnd = 11, 15
)

// groupTimes is the processor time that process groups have used, as far as their
// processes still run or were waited for by one that does.
func groupTimes() map[int]time.Duration {
	times := map[int]time.Duration{}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return times // the pattern is a good one
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		if group, used, ok := readStat(line); ok {
			times[group] += used
		}
	}
	return times
}

// readStat reads a process's group and what it has used.
func readStat(line []byte) (group int, used time.Duration, ok bool) {
	// The name is in brackets, and may hold brackets itself.
	fields := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:])
	if len(fields) < statTimesEnd {
		return 0, 0, false
	}
	group, err := strconv.Atoi(string(fields[statGroup]))
	if err != nil {
		return 0, 0, false
	}
	for _, field := range fields[statTimes:statTimesEnd] {
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, 0, false
		}
		used += time.Duration(ticks) * clockTick
	}
	return group, used, true
}
