//go:build e2e && (soak || bench)

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cgroup is the folder that describes a container's memory.
type cgroup string

func cgroupOf(container string) cgroup {
	for _, root := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup"} { // versions 1 and 2
		if found, _ := filepath.Glob(root + "/*/kubepods/*/*/" + container); len(found) > 0 {
			return cgroup(found[0])
		}
	}
	return ""
}

// number reads the first of the files that exists.
func (c cgroup) number(files ...string) int64 {
	for _, file := range files {
		if text, err := os.ReadFile(filepath.Join(string(c), file)); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			return n
		}
	}
	return 0
}

// field reads the line "name value" of a file.
func (c cgroup) field(file string, names ...string) (sum int64) {
	text, err := os.ReadFile(filepath.Join(string(c), file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains(names, name) {
			n, _ := strconv.ParseInt(value, 10, 64)
			sum += n
		}
	}
	return sum
}

// kept returns the memory that cannot be reclaimed: all but the page cache.
func (c cgroup) kept() int64 {
	return c.field("memory.stat", "total_rss", "total_shmem", "anon", "shmem")
}

// kills counts the processes that were killed for lack of memory.
func (c cgroup) kills() int64 {
	return c.field("memory.oom_control", "oom_kill") + c.field("memory.events", "oom_kill")
}
