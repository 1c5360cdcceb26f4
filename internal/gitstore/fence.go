package gitstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/gitstore/refusal"
)

// raiseTimeout is how long a newer attempt waits for a push of an older one
// that has passed its last check and is just moving its refs.
const raiseTimeout = 15 * time.Second

// fences remember the newest attempt seen of each task of one namespace, each
// in a file, so that a pod that was taken for lost and comes back writes
// nothing. They are safe for concurrent use, also by several processes.
type fences struct {
	// folder holds <task UID>.json, the record, and <task UID>.lock.
	folder string
}

// fenceRecord is what the file of a task says.
type fenceRecord struct {
	// Attempt is the newest one seen.
	Attempt int64 `json:"attempt"`
}

func (f fences) record(uid string) string { return filepath.Join(f.folder, uid+".json") }
func (f fences) lock(uid string) string   { return filepath.Join(f.folder, uid+".lock") }

// newest returns the newest attempt seen of a task, 0 if none was.
func (f fences) newest(uid string) (int64, error) {
	content, err := os.ReadFile(f.record(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var record fenceRecord
	if err := json.Unmarshal(content, &record); err != nil {
		return 0, fmt.Errorf("the fence record %s is damaged: %w; remove it once no older pod of the task can run", f.record(uid), err)
	}
	return record.Attempt, nil
}

// raise records that an attempt was seen. When it returns, no push of an older
// attempt can land any more. It returns the newest attempt seen, which is
// higher than the given one if that is stale.
func (f fences) raise(ctx context.Context, task Task) (int64, error) {
	newest, err := f.newest(task.UID)
	if err != nil || newest >= task.Attempt {
		return newest, err
	}
	ctx, cancel := context.WithTimeout(ctx, raiseTimeout)
	defer cancel()
	held, err := openLocked(ctx, f.lock(task.UID), syscall.LOCK_EX)
	if err != nil {
		return 0, fmt.Errorf("lock of the fence: %w", err)
	}
	defer held.Close()
	newest, err = f.newest(task.UID)
	if err != nil || newest >= task.Attempt {
		return newest, err
	}
	content, err := json.Marshal(fenceRecord{Attempt: task.Attempt})
	if err != nil {
		return 0, err
	}
	return task.Attempt, writeFileSynced(f.record(task.UID), append(content, '\n'), 0o644)
}

// stale returns the refusal of a write of an attempt that newest has overtaken,
// nil if it may write.
func stale(task Task, newest int64) *refusal.Refusal {
	if task.Attempt >= newest {
		return nil
	}
	return refusal.New(refusal.StaleAttempt,
		"attempt %d of the task %s may not write any more, because attempt %d has been seen; this pod has been replaced and should stop",
		task.Attempt, task.Name, newest)
}
