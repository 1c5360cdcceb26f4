// Package capacity determines how much memory and processor time a process may use. It
// divides a container's memory between the container's main process, whose garbage
// collector keeps to a limit, and the git processes that it starts, which get a limit
// each: otherwise what agents write would decide how much both use.
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

// limitUnder reads the limit from a cgroup v2 or v1 file system mounted at root.
func limitUnder(root string) int64 {
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		if text, err := os.ReadFile(filepath.Join(root, file)); err == nil {
			return parse(string(text))
		}
	}
	return 0
}

// unlimited is below the value that cgroup v1 gives for no limit.
const unlimited = 1 << 60

// parse parses the content of a limit file; 0 for no limit.
func parse(text string) int64 {
	limit, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || limit < 0 || limit >= unlimited {
		return 0 // "max"
	}
	return limit
}

// SetGoMemoryLimit sets the garbage collector's memory limit for this process, which is a
// soft one. GOMEMLIMIT in the environment takes precedence.
func SetGoMemoryLimit(bytes int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(bytes)
	}
}

// ForServer returns the part of a container's limit for a process that runs alone in it;
// the rest is for memory that the garbage collector does not manage.
func ForServer(limit int64) int64 {
	if limit <= 0 {
		return math.MaxInt64
	}
	return limit / 5 * 4
}

// Beside returns the part of a container's limit for a process beside others that may use
// the given bytes together. It is at least an eighth, since the others seldom use that much.
func Beside(limit, others int64) int64 {
	if limit <= 0 {
		return math.MaxInt64
	}
	return max(limit-others, limit/8)
}

// ForDaemon returns the daemon's part of its container's limit.
func ForDaemon(limit int64) int64 {
	if limit <= 0 {
		return math.MaxInt64
	}
	return limit / 2
}

// ForGit returns the part of a container's limit for one git process, 0 for no limit. Two
// git processes rarely need that much at the same time.
func ForGit(limit int64) int64 { return max(limit, 0) * 3 / 8 }
