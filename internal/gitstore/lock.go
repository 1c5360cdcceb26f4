package gitstore

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// lockPoll is how often a lock that someone else holds is tried again.
const lockPoll = 5 * time.Millisecond

// openLock opens a lock file, without locking it. The lock belongs to the open
// file: a child process that inherits it keeps the lock even when this process
// is killed, and it is free when the last of them closes it or ends.
func openLock(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
}

// lock takes the lock of an open file: syscall.LOCK_SH beside others,
// syscall.LOCK_EX alone. It waits until ctx is done.
func lock(ctx context.Context, file *os.File, how int) error {
	for {
		err := syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB)
		if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// openLocked opens a lock file and takes its lock. Closing the file frees it.
func openLocked(ctx context.Context, path string, how int) (*os.File, error) {
	file, err := openLock(path)
	if err != nil {
		return nil, err
	}
	if err := lock(ctx, file, how); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
