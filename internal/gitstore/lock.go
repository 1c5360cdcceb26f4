package gitstore

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// lockPoll is how long lock waits before it tries again to take a lock that is held.
const lockPoll = 5 * time.Millisecond

// openLock opens a lock file without locking it. The lock belongs to the open
// file: a child process that inherits the file keeps the lock even when this process
// is killed, and the lock is released when the last of them closes the file or exits.
func openLock(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
}

// lock locks an open file, shared with syscall.LOCK_SH or exclusively with
// syscall.LOCK_EX. It waits for the lock until ctx is done.
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

// openLocked opens a lock file and locks it. Closing the file releases the lock.
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
