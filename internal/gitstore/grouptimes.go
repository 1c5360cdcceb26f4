package gitstore

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// clockTick is the unit of times in /proc, the same on every Linux (see proc(5) and
// USER_HZ).
const clockTick = 10 * time.Millisecond

// Positions of fields in /proc/PID/stat, counted from the one after the command's name.
const (
	statGroup = 2
	// statTimes begins four times: in user mode and in the kernel, and both again for the
	// children that were waited for.
	statTimes, statTimesEnd = 11, 15
)

// groupTimes returns the processor time used by each process group. It counts processes
// that still run, and those that a running one has waited for.
func groupTimes() map[int]time.Duration {
	times := map[int]time.Duration{}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return times // cannot happen: the pattern is valid
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // the process has exited
		}
		if group, used, ok := readStat(line); ok {
			times[group] += used
		}
	}
	return times
}

// readStat parses a process's group and its processor time.
func readStat(line []byte) (group int, used time.Duration, ok bool) {
	// The name is in parentheses, and may itself contain some.
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
