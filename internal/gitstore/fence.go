package gitstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// raiseTimeout is how long a newer attempt waits for a push of an older one
// that has passed its last check and is updating its refs.
const raiseTimeout = 15 * time.Second

// fences record the newest attempt seen of each task of one namespace, one file per
// task, so that a pod that was considered lost and comes back writes
// nothing. They are safe for concurrent use, also by several processes.
type fences struct {
	// folder holds <task UID>.json, the record, and <task UID>.lock.
	folder string
	// cache keeps the records of all tasks in memory; nil in a process that asks once.
	cache *recordCache
}

// fenceRecord is the content of a task's file.
type fenceRecord struct {
	// Attempt is the newest attempt seen.
	Attempt int64 `json:"attempt,omitempty"`
	// Name is the task's name, which the names of its branches contain.
	Name string `json:"name,omitempty"`
	// Namespace is the UID of the task's namespace; empty if it was not recorded. Before the first
	// attempt it may be that of a task that was adopted.
	Namespace string `json:"namespace,omitempty"`
	// Displacing is set before the branches of the name are moved to make room for those of another
	// namespace's task, and Displaced once they were: they are not this task's any more.
	Displacing bool `json:"displacing,omitempty"`
	Displaced  bool `json:"displaced,omitempty"`
	// Formers are the UIDs of the tasks whose checkpoints the task has adopted. Adopted are those
	// whose adoption is complete: the task has refs for all that they had.
	Formers []string `json:"formers,omitempty"`
	Adopted []string `json:"adopted,omitempty"`
	// Deleted is set once everything the task stored was deleted, or another task has adopted
	// it; it can no longer write.
	Deleted bool `json:"deleted,omitempty"`
}

// errTaskDeleted is returned for a task whose fence is shut for good.
var errTaskDeleted = errors.New("the task's checkpoints have been deleted")

// record returns the path of a task's record, and lock that of its lock file.
func (f fences) record(uid string) string { return filepath.Join(f.folder, uid+recordSuffix) }
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

// madeRoom reports whether the branches of the task's name are, or are about to be, those of
// another namespace's task.
func (r fenceRecord) madeRoom() bool { return r.Displacing || r.Displaced }

// newest returns the newest attempt seen of a task, 0 if there was none. It returns
// errTaskDeleted if the task may no longer write, and errMadeRoom if it may not do so at present.
func (f fences) newest(uid string) (int64, error) {
	record, err := f.read(uid)
	switch {
	case err != nil:
	case record.Deleted:
		err = errTaskDeleted
	case record.madeRoom():
		err = errMadeRoom
	}
	return record.Attempt, err
}

// errOtherNamespace is returned for a task of a namespace that does not exist any more.
var errOtherNamespace = errors.New("the task's namespace does not exist any more")

// raise records that an attempt was seen, and the namespace of the task. Once it has returned, no
// push of an older attempt can land. It returns the newest attempt seen, which is higher than the
// given one if that is stale.
func (f fences) raise(ctx context.Context, task Task) (int64, error) {
	if record, err := f.admit(task); err != nil || record.isRaised(task) {
		return record.Attempt, err
	}
	ctx, cancel := context.WithTimeout(ctx, raiseTimeout)
	defer cancel()
	held, err := openLocked(ctx, f.lock(task.UID), syscall.LOCK_EX)
	if err != nil {
		return 0, fmt.Errorf("lock the fence: %w", err)
	}
	defer held.Close()
	record, err := f.admit(task)
	if err != nil || record.isRaised(task) {
		return record.Attempt, err
	}
	if record.madeRoom() {
		return 0, errMadeRoom
	}
	record.Attempt, record.Name, record.Namespace = max(record.Attempt, task.Attempt), task.Name, task.NamespaceUID
	return record.Attempt, f.write(task.UID, record)
}

// isRaised reports whether the record says already what raise would record.
func (r fenceRecord) isRaised(task Task) bool {
	return r.Attempt >= task.Attempt && r.Namespace != "" && !r.madeRoom()
}

// admit returns the record of a task that may write, apart from its attempt.
func (f fences) admit(task Task) (fenceRecord, error) {
	record, err := f.read(task.UID)
	switch {
	case err != nil:
	case record.Deleted:
		err = errTaskDeleted
	case record.Attempt > 0 && record.Namespace != "" && record.Namespace != task.NamespaceUID:
		err = errOtherNamespace
	}
	return record, err
}

// adopt records that a task has adopted the checkpoints of a former one, and of those that this
// one had adopted, after their fence was shut. Both belong to the namespace with the UID owner if no
// other is recorded: the records may be older copies.
func (f fences) adopt(ctx context.Context, uid, former, owner string) error {
	ctx, cancel := context.WithTimeout(ctx, raiseTimeout)
	defer cancel()
	before, err := f.read(former)
	if err == nil && before.Namespace == "" && owner != "" {
		err = f.change(ctx, former, func(record *fenceRecord) { record.Namespace = owner })
	}
	if err != nil {
		return err
	}
	return f.change(ctx, uid, func(record *fenceRecord) {
		for _, adopted := range append(before.Formers, former) {
			if !slices.Contains(record.Formers, adopted) {
				record.Formers = append(record.Formers, adopted)
			}
		}
		record.Name, record.Namespace = cmp.Or(record.Name, before.Name), cmp.Or(record.Namespace, before.Namespace, owner)
	})
}

// adopters returns the tasks that had adopted the former one of an adoption before the task, the newest
// first; none once the task has begun, or has their checkpoints. Only an older copy of the history lets a
// task be adopted twice: it does not know them. They have the name of the former one, and its namespace or
// that of the adopting task, so that nobody else's checkpoints are given away.
func (f fences) adopters(a gitstoreapi.TaskAdoption) (uids []string, err error) {
	records, _, err := f.records()
	if err != nil {
		return nil, err
	}
	task, former := records[a.UID], records[a.Former]
	if task.Attempt > 0 || task.Deleted {
		return nil, nil // its own checkpoints have the numbers of theirs
	}
	for uid, record := range records {
		again := slices.Contains(record.Formers, a.Former) && record.Attempt > 0 && record.Name == former.Name
		ours := record.Namespace != "" && slices.Contains([]string{former.Namespace, task.Namespace, a.NamespaceUID}, record.Namespace)
		if again && ours && uid != a.UID && !slices.Contains(task.Adopted, uid) {
			uids = append(uids, uid)
		}
	}
	slices.SortFunc(uids, func(x, y string) int {
		return cmp.Or(len(records[y].Formers)-len(records[x].Formers), cmp.Compare(x, y))
	})
	return uids, nil
}

// markAdopted records that the adoptions of former tasks are complete.
func (f fences) markAdopted(ctx context.Context, uid string, formers []string) error {
	ctx, cancel := context.WithTimeout(ctx, raiseTimeout)
	defer cancel()
	return f.change(ctx, uid, func(record *fenceRecord) {
		for _, former := range formers {
			if !slices.Contains(record.Adopted, former) {
				record.Adopted = append(record.Adopted, former)
			}
		}
	})
}

// write replaces the record of a task. The caller holds the task's lock.
func (f fences) write(uid string, record fenceRecord) error {
	content, err := json.Marshal(record)
	if err != nil {
		return err
	}
	defer f.cache.wrote(uid)
	return durable.WriteShared(f.record(uid), temporaryFiles, append(content, '\n'), 0o644)
}

// shut closes the fence of a task for good, and returns the task's recorded name, if
// any. Once it has returned, no push of the task can land.
func (f fences) shut(ctx context.Context, uid string) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, raiseTimeout)
	defer cancel()
	held, err := openLocked(ctx, f.lock(uid), syscall.LOCK_EX)
	if err != nil {
		return "", fmt.Errorf("lock the fence: %w", err)
	}
	defer held.Close()
	// A damaged record is replaced like a missing one: the new one admits nobody.
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

// change changes the record of a task once no push that has passed its hook is in progress.
func (f fences) change(ctx context.Context, uid string, change func(*fenceRecord)) error {
	held, err := openLocked(ctx, f.lock(uid), syscall.LOCK_EX)
	if err != nil {
		return fmt.Errorf("lock the fence: %w", err)
	}
	defer held.Close()
	record, err := f.read(uid)
	if err != nil {
		return err
	}
	change(&record)
	return f.write(uid, record)
}

// nameInUse reports whether another task that may still write has the name, and its branches.
func (f fences) nameInUse(name, uid string) (bool, error) {
	records, damaged, err := f.records()
	if err != nil {
		return false, err
	}
	// A damaged record may have the name: assume that it does, so that nothing of that task is
	// deleted.
	found := slices.ContainsFunc(damaged, func(other string) bool { return other != uid })
	for other, record := range records {
		found = found || other != uid && record.Name == name && !record.Deleted && !record.Displaced
	}
	return found, nil
}

// taskDeleted returns the refusal for a task whose fence is shut.
func taskDeleted(task Task) *gitstoreapi.Refusal {
	return gitstoreapi.New(gitstoreapi.TaskDeleted, "the checkpoints of the task %s with UID %s have been permanently deleted, and it can no longer push; this pod should stop", task.Name, task.UID)
}

// stale returns the refusal for an attempt that a newer one has replaced, nil if it may
// write.
func stale(task Task, newest int64) *gitstoreapi.Refusal {
	if task.Attempt >= newest {
		return nil
	}
	return gitstoreapi.Stale(task.Name, task.Attempt, newest)
}
