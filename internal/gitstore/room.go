package gitstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/refname"
)

const (
	// roomTimeout is how long one request moves branches; the next one continues.
	roomTimeout = time.Minute
	// roomBatch is how many branches one transaction moves.
	roomBatch = 100
)

var (
	// errMakingRoom is returned to a task that begins, until the branches of its name are its own.
	errMakingRoom = errors.New("branches that another namespace's tasks have left under the name of the task are being moved; try again")
	// errMadeRoom is returned for a task whose branches were moved, until an attempt of it begins
	// again: that happens only if its namespace has come back.
	errMadeRoom = errors.New("the branches of the task have made room for those of a task in another namespace of the same name, and come back with the next request of its pod; try again")
)

// room is what has to be done before the branches of a name are those of a task that begins.
type room struct {
	// others are the tasks of another namespace that have the name, with the UIDs of their
	// namespaces, and whose branches have to make room.
	others map[string]fenceRecord
	// own are the tasks of the task's namespace whose branches have made room and come back.
	own []string
	// unsure is set if a record that cannot be read may be that of another such task.
	unsure bool
}

// done reports whether nothing has to be done.
func (r room) done() bool { return len(r.others) == 0 && len(r.own) == 0 && !r.unsure }

// place returns the UID of the namespace with which the others' branches go.
func (r room) place() string {
	uids := slices.Sorted(maps.Keys(r.others))
	n := slices.IndexFunc(uids, func(uid string) bool { return !r.others[uid].Deleted })
	return r.others[uids[max(n, 0)]].Namespace
}

// room returns what has to be done for a task. A task of its own namespace that has begun under the
// name has moved the branches of others already.
func (f fences) room(task Task) (room, error) {
	r := room{others: map[string]fenceRecord{}}
	o, err := f.owners()
	if err != nil {
		return r, err
	}
	records, damaged, err := f.records()
	if err != nil {
		return r, err
	}
	moved := false
	for uid, record := range records {
		if record.Name != task.Name {
			continue
		}
		untold := record.Namespace == "" && o.First == ""
		record.Namespace = cmp.Or(record.Namespace, o.First)
		switch {
		case record.madeRoom() && record.Namespace == task.NamespaceUID:
			r.own = append(r.own, uid)
		case uid == task.UID || record.Displaced:
		case untold && record.Deleted: // it has left nothing
		case untold:
			return r, errNotTold
		case !o.share(record.Namespace, task.NamespaceUID):
			r.others[uid] = record
		default:
			moved = moved || record.Attempt > 0 && !record.madeRoom()
		}
	}
	if moved {
		clear(r.others)
	}
	r.unsure = len(damaged) > 0 && !moved
	return r, nil
}

// makeRoom makes sure, before an attempt of a task is recorded, that the branches of its name are
// its namespace's: it moves those that another namespace's tasks of that name have left out of the
// way, and moves those back that had to make room for them. What is done when it is interrupted
// need not be done again.
func (s *Store) makeRoom(ctx context.Context, f fences, task Task) error {
	if record, err := f.admit(task); err != nil || record.Attempt > 0 && !record.madeRoom() {
		return err
	}
	if r, err := f.room(task); err != nil || r.done() {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	err := s.makeRoomAlone(waiting, f, task)
	if err != nil && waiting.Err() != nil {
		return fmt.Errorf("%w (%w)", errMakingRoom, err)
	}
	return err
}

// makeRoomAlone is makeRoom while no other request does the same for the name.
func (s *Store) makeRoomAlone(ctx context.Context, f fences, task Task) error {
	alone, err := openLocked(ctx, filepath.Join(f.folder, task.Name+".room"), syscall.LOCK_EX)
	if err != nil {
		return err
	}
	defer alone.Close()
	r, err := f.room(task)
	if err != nil || r.done() {
		return err
	}
	if err := s.setAside(ctx, f, task, r); err != nil {
		return err
	}
	if len(r.own) == 0 {
		return nil
	}
	if err := s.moveBack(ctx, task); err != nil {
		return err
	}
	for _, uid := range r.own {
		if err := f.change(ctx, uid, func(record *fenceRecord) { record.Displacing, record.Displaced = false, false }); err != nil {
			return err
		}
	}
	return nil
}

// setAside moves the branches of other namespaces' tasks to a place of their namespace. No push of
// these tasks lands once one of them was moved.
func (s *Store) setAside(ctx context.Context, f fences, task Task, r room) error {
	uids := slices.Sorted(maps.Keys(r.others))
	if len(uids) == 0 && !r.unsure {
		return nil
	}
	for _, uid := range uids {
		if r.others[uid].madeRoom() || r.others[uid].Deleted {
			continue
		}
		if err := f.change(ctx, uid, func(record *fenceRecord) { record.Displacing = true }); err != nil {
			return err
		}
	}
	err := s.moveBranches(ctx, task, refname.BranchesOf(task.Name), func(found []branch) (moves []move, err error) {
		if len(uids) == 0 && len(found) > 0 {
			return nil, fmt.Errorf("a fence record in %s is damaged, and it cannot be told whose the branches of the name %s are; remove the record once no older pod of its task can run", f.folder, task.Name)
		}
		for _, b := range found {
			to := refname.Displaced(r.place(), task.Name) + task.UID + "/" + strings.TrimPrefix(b.ref, refname.BranchesOf(task.Name))
			moves = append(moves, move{b, to})
		}
		return moves, nil
	})
	if err != nil {
		return err
	}
	for _, uid := range uids {
		if err := f.change(ctx, uid, func(record *fenceRecord) { record.Displacing, record.Displaced = false, true }); err != nil {
			return err
		}
	}
	return nil
}

// moveBack moves the branches of a task's name that had to make room back, unless others have
// their names meanwhile.
func (s *Store) moveBack(ctx context.Context, task Task) error {
	place := refname.Displaced(task.NamespaceUID, task.Name)
	return s.moveBranches(ctx, task, place, func(found []branch) (moves []move, err error) {
		for _, b := range found {
			_, rest, _ := strings.Cut(strings.TrimPrefix(b.ref, place), "/") // after the UID of the other task
			to := refname.BranchesOf(task.Name) + rest
			if !slices.ContainsFunc(moves, func(m move) bool { return collide(m.to, to) }) {
				moves = append(moves, move{b, to})
			}
		}
		return moves, nil
	})
}

// collide reports whether git cannot have both refs: they are one, or one is a folder of the other.
func collide(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}

// branch is a ref and the commit that it is at, and move says where it is to go.
type (
	branch struct{ id, ref string }
	move   struct {
		branch
		to string
	}
)

// moveBranches moves, in all repositories of a task's namespace, those of the refs with a prefix that
// which says.
func (s *Store) moveBranches(ctx context.Context, task Task, prefix string, which func([]branch) ([]move, error)) error {
	repositories, err := s.namespaceRepositories(task.Namespace)
	if err != nil {
		return err
	}
	for _, repository := range repositories {
		if has, err := repository.hasRefs(prefix); err != nil {
			return err
		} else if !has {
			continue
		}
		listed, err := s.gitFor(repository).run(ctx, repository.Path, "--git-dir=.", "for-each-ref", "--format=%(objectname) %(refname)", prefix)
		if err != nil {
			return err
		}
		var found []branch
		for line := range strings.Lines(listed) {
			id, ref, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			found = append(found, branch{id, ref})
		}
		moves, err := which(found)
		if err != nil {
			return err
		}
		for batch := range slices.Chunk(moves, roomBatch) {
			if err := s.moveBatch(ctx, repository, batch); err != nil {
				return fmt.Errorf("move branches of the name %s in the repository %s: %w", task.Name, repository.Name, err)
			}
		}
	}
	return nil
}

// moveBatch moves some branches of a repository. They are deleted where they were once they are on
// disk elsewhere.
func (s *Store) moveBatch(ctx context.Context, repository Repository, moves []move) error {
	used, err := repository.use(ctx)
	if err != nil {
		return err
	}
	defer used.Close()
	var made, deleted strings.Builder
	for _, m := range moves {
		fmt.Fprintf(&made, "update %s\x00%s\x00\x00", m.to, m.id)
		fmt.Fprintf(&deleted, "delete %s\x00%s\x00", m.ref, m.id)
	}
	for _, commands := range []string{made.String(), deleted.String()} {
		if _, err := s.gitFor(repository).runWith(ctx, []*os.File{used}, strings.NewReader(commands), repository.Path, "--git-dir=.", "update-ref", "--stdin", "-z"); err != nil {
			return err
		}
		if err := repository.syncBranches(); err != nil {
			return err
		}
	}
	return nil
}

// syncBranches makes branches that were made, moved or deleted survive a crash.
func (r Repository) syncBranches() error {
	refs := filepath.Join(r.Path, "refs")
	err := errors.Join(syncFolders(filepath.Join(refs, "heads")), syncFolders(filepath.Join(r.Path, refname.AllDisplaced)))
	return errors.Join(err, durable.SyncFolder(refs), durable.SyncFolder(r.Path))
}

// displacedWith returns the folders of the displaced branches that go with a deleted task: those of
// its namespace and name, if it is the last task that has both.
func (f fences) displacedWith(uid, namespaceUID, name string) (folders []string, err error) {
	o, err := f.owners()
	if err != nil || name == "" {
		return nil, err
	}
	records, damaged, err := f.records()
	if err != nil || len(damaged) > 0 {
		return nil, err
	}
	owner := cmp.Or(namespaceUID, o.First)
	for other, record := range records {
		if other != uid && record.Name == name && !record.Deleted && o.share(record.Namespace, owner) {
			return nil, nil
		}
	}
	namespaces := append(slices.Collect(maps.Keys(o.Keys)), o.First, owner)
	slices.Sort(namespaces)
	for _, namespace := range slices.Compact(namespaces) {
		if o.share(namespace, owner) {
			folders = append(folders, refname.Displaced(namespace, name))
		}
	}
	return folders, nil
}
