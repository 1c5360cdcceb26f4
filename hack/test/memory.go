package main

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	memory = "/dev/shm"
	// needed is more than all tests leave at one time, in bytes.
	needed = 4 << 30
)

// memoryFolder makes a folder in memory for what tests write, whose syncing to
// disk takes half of their time, and says how to remove it. It is "" where there
// is not enough memory, or programs there may not run: go test builds there too.
func memoryFolder() (folder string, remove func()) {
	var fs unix.Statfs_t
	if unix.Statfs(memory, &fs) != nil || fs.Flags&unix.ST_NOEXEC != 0 || fs.Bavail*uint64(fs.Bsize) < needed {
		return "", func() {}
	}
	folder, err := os.MkdirTemp(memory, "clew-test-")
	if err != nil {
		return "", func() {}
	}
	// Postgres runs as another user.
	if err := os.Chmod(folder, 0o755); err != nil { //nolint:gosec // see above
		os.RemoveAll(folder)
		return "", func() {}
	}
	return folder, func() { os.RemoveAll(folder) }
}
