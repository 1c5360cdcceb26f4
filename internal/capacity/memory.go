// Package capacity says how much memory and processor time a process may use. It
// divides a container's memory between the process that runs in it, whose garbage
// collector keeps to a limit, and the git processes that it starts, which get a limit
// each: what agents write decides how much both would otherwise take.
package capacity

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// MemoryLimit returns the container's memory limit in bytes, 0 for none.
func MemoryLimit() int64 { return limitUnder("/sys/fs/cgroup") }

// limitUnder reads the limit where a node with cgroup v2, or one with v1, has it.
func limitUnder(root string) int64 {
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		if text, err := os.ReadFile(filepath.Join(root, file)); err == nil {
			return parse(string(text))
		}
	}
	return 0
}

// unlimited is less than what cgroup v1 says where there is no limit.
const unlimited = 1 << 60

func parse(text string) int64 {
	limit, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || limit < 0 || limit >= unlimited {
		return 0 // "max"
	}
	return limit
}

// SetGoMemoryLimit makes the garbage collector keep this process to so many bytes,
// if it can. GOMEMLIMIT in the environment takes precedence.
func SetGoMemoryLimit(bytes int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(bytes)
	}
}

// ForServer is the part of a limit for a process that is alone in its container;
// the rest is for what the garbage collector does not see.
func ForServer(limit int64) int64 {
	if limit <= 0 {
		return math.MaxInt64
	}
	return limit / 5 * 4
}

// Beside is the part of a limit for a process beside others that may take so many
// bytes together: an eighth at least, as they seldom do.
func Beside(limit, others int64) int64 {
	if limit <= 0 {
		return math.MaxInt64
	}
	return max(limit-others, limit/8)
}

// ForDaemon is the daemon's part of a limit.
func ForDaemon(limit int64) int64 {
	if limit <= 0 {
		return math.MaxInt64
	}
	return limit / 2
}

// ForGit is what one git process gets of a limit, 0 for no limit. It is rare that
// two need that much at a time.
func ForGit(limit int64) int64 { return max(limit, 0) * 3 / 8 }
