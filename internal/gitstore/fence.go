package gitstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/gitstoreapi"
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
	Attempt int64 `json:"attempt,omitempty"`
	// Name of the task, whose branches go by it.
	Name string `json:"name,omitempty"`
	// Deleted: what the task had stored was deleted, and it writes no more.
	Deleted bool `json:"deleted,omitempty"`
}

// errTaskDeleted: the fence is closed for good.
var errTaskDeleted = errors.New("the task's checkpoints have been deleted")

func (f fences) record(uid string) string { return filepath.Join(f.folder, uid+".json") }
func (f fences) lock(uid string) string   { return filepath.Join(f.folder, uid+".lock") }

// read returns the record of a task, an empty one if there is none.
func (f fences) read(uid string) (fenceRecord, error) {
	var record fenceRecord
	content, err := os.ReadFile(f.record(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return record, nil
	}
	if err != nil {
		return record, err
	}
	if err := json.Unmarshal(content, &record); err != nil {
		return record, fmt.Errorf("the fence record %s is damaged: %w; remove it once no older pod of the task can run", f.record(uid), err)
	}
	return record, nil
}

// newest returns the newest attempt seen of a task, 0 if none was;
// errTaskDeleted if it may write no more.
func (f fences) newest(uid string) (int64, error) {
	record, err := f.read(uid)
	if err == nil && record.Deleted {
		err = errTaskDeleted
	}
	return record.Attempt, err
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
	return task.Attempt, f.write(task.UID, fenceRecord{Attempt: task.Attempt, Name: task.Name})
}

// write replaces the record of a task, whose lock the caller holds.
func (f fences) write(uid string, record fenceRecord) error {
	content, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return durable.WriteShared(f.record(uid), besideFiles, append(content, '\n'), 0o644)
}

// shut closes the fence of a task for good, and returns the name that it was
// known by, if any. When it returns, no push of the task can land any more.
func (f fences) shut(ctx context.Context, uid string) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, raiseTimeout)
	defer cancel()
	held, err := openLocked(ctx, f.lock(uid), syscall.LOCK_EX)
	if err != nil {
		return "", fmt.Errorf("lock of the fence: %w", err)
	}
	defer held.Close()
	// A damaged record is as good as none: the new one lets nobody in.
	record, err := f.read(uid)
	if err != nil {
		record = fenceRecord{}
	}
	if record.Deleted {
		return record.Name, nil
	}
	record.Deleted = true
	return record.Name, f.write(uid, record)
}

// othersNamed tells whether another task that still writes had the name.
func (f fences) othersNamed(name, uid string) (bool, error) {
	records, err := filepath.Glob(filepath.Join(globEscape(f.folder), "*.json"))
	if err != nil {
		return false, err
	}
	found := false
	for _, path := range records {
		other := strings.TrimSuffix(filepath.Base(path), ".json")
		if other == uid {
			continue
		}
		record, err := f.read(other)
		// Who knows whose a damaged one is: nothing is taken from it.
		found = found || err != nil || record.Name == name && !record.Deleted
	}
	return found, nil
}

// taskDeleted is the refusal of a task whose fence is shut.
func taskDeleted(task Task) *gitstoreapi.Refusal {
	return gitstoreapi.New(gitstoreapi.TaskDeleted, "the checkpoints of the task %s with UID %s have been deleted for good, and nothing more is taken from it; this pod should stop", task.Name, task.UID)
}

// stale returns the refusal of a write of an attempt that newest has overtaken,
// nil if it may write.
func stale(task Task, newest int64) *gitstoreapi.Refusal {
	if task.Attempt >= newest {
		return nil
	}
	return gitstoreapi.Stale(task.Name, task.Attempt, newest)
}
