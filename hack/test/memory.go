package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

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
//
// A checkout's folder has the same name in every run: the name is in the environment of
// tests that use it, and go test repeats cached results only in the same environment. A
// second run beside the first gets a folder with a name of its own.
func memoryFolder() (folder string, remove func()) {
	var fs unix.Statfs_t
	if unix.Statfs(memory, &fs) != nil || fs.Flags&unix.ST_NOEXEC != 0 || fs.Bavail*uint64(fs.Bsize) < needed {
		return "", func() {}
	}
	folder, err := ownFolder(memory)
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

// ownFolder makes the folder of this checkout below parent, empty, or another one if a run
// in this checkout uses that. The lock ends with the process.
func ownFolder(parent string) (string, error) {
	checkout, err := os.Getwd()
	if err != nil {
		return "", err
	}
	lock, err := unix.Open(checkout, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	if unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB) != nil {
		unix.Close(lock)
		return os.MkdirTemp(parent, "clew-test-")
	}
	// The name is short, since tests put sockets below it, whose paths the kernel limits to
	// 107 bytes.
	name := sha256.Sum256([]byte(checkout))
	folder := filepath.Join(parent, fmt.Sprintf("clew-%x", name[:4]))
	if err := os.RemoveAll(folder); err != nil { // of a run that was killed
		return "", err
	}
	return folder, os.Mkdir(folder, 0o700)
}
