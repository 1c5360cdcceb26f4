package main

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	memory = "/dev/shm"
	// needed is more than all tests have on disk at one time, in bytes.
	needed = 4 << 30
)

// memoryFolder makes a folder in memory for the tests' files, since syncing them to disk
// takes half of the tests' time, and returns a function that removes it. It returns "" if
// there is not enough memory, or if programs cannot run there, where go test builds them.
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
