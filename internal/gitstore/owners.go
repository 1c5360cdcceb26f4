package gitstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

// A namespace that is made anew under an old name is another one, and what the tasks of the old
// one have left is not its own. The folder of a name is shared by all namespaces that have had it:
// what belongs to whom is recorded for each task, in its fence. So nothing has to be moved when
// the history of an earlier namespace is granted, no request about a task by its UID depends on
// who has the name, and all that a grant changes is what readers and new tasks see.

// owners is what the server has told about the namespaces that have had a name.
type owners struct {
	// First is the UID of the namespace that has what was stored before UIDs were recorded;
	// "unknown" if that was gone by then. It is written once.
	First string `json:"first,omitempty"`
	// Keys are the keys of the namespaces in the history, by UID. Namespaces with one key share
	// what they have.
	Keys map[string]string `json:"keys,omitempty"`
}

// share reports whether two namespaces, given by their UIDs, share what they have. The first one
// is empty for what was stored before UIDs were recorded.
func (o owners) share(owner, uid string) bool {
	owner = cmp.Or(owner, o.First)
	return owner != "" && (owner == uid || o.Keys[owner] != "" && o.Keys[owner] == o.Keys[uid])
}

// tell adds what the history says now; told has the keys of all namespaces of the name, the
// earliest first. It reports whether anything changed.
func (o *owners) tell(name string, told []gitstoreapi.Namespace) (changed bool) {
	keys := map[string]string{}
	for _, namespace := range told {
		if namespace.Key == name && o.First == "" {
			o.First, changed = namespace.UID, true
		}
		keys[namespace.UID] = namespace.Key
		changed = changed || o.Keys[namespace.UID] != namespace.Key
	}
	changed = changed || len(keys) != len(o.Keys)
	o.Keys = keys
	return changed
}

// errDamagedOwners is returned until the server tells what the file said anew.
var errDamagedOwners = errors.New("the file with the keys of a name's namespaces is damaged")

// ownersFile returns the path of what was told about the namespaces of the fences' folder.
func (f fences) ownersFile() string { return filepath.Join(filepath.Dir(f.folder), "owners.json") }

// owners returns what was told about the namespaces of the folder.
func (f fences) owners() (owners, error) {
	var o owners
	content, err := os.ReadFile(f.ownersFile())
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(content, &o); err != nil {
		return owners{}, fmt.Errorf("%w: %s: %w", errDamagedOwners, f.ownersFile(), err)
	}
	return o, nil
}

// writeOwners replaces what was told.
func (f fences) writeOwners(o owners) error {
	content, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return durable.WriteShared(f.ownersFile(), temporaryFiles, append(content, '\n'), 0o644)
}

// records reads the records of all tasks by UID, and returns the UIDs of those that cannot be read.
func (f fences) records() (found map[string]fenceRecord, damaged []string, err error) {
	paths, err := filepath.Glob(filepath.Join(globEscape(f.folder), "*.json"))
	found = make(map[string]fenceRecord, len(paths))
	for _, path := range paths {
		uid := strings.TrimSuffix(filepath.Base(path), ".json")
		record, err := f.read(uid)
		if err != nil {
			damaged = append(damaged, uid)
			continue
		}
		found[uid] = record
	}
	return found, damaged, err
}

// belongings are the tasks of a folder that belong to a namespace.
type belongings struct {
	// all is set if no task of the folder belongs to another namespace.
	all bool
	// uids are those of the tasks, and names those whose branches are theirs.
	uids, names map[string]bool
}

// has reports whether a task belongs to the namespace, and hasBranches whether the branches of a
// task's name do.
func (b belongings) has(uid string) bool          { return b.all || b.uids[uid] }
func (b belongings) hasBranches(name string) bool { return b.all || b.names[name] }

// errNotTold is returned as long as it is not known to whom something belongs that was stored
// before UIDs were recorded.
var errNotTold = errors.New("Clew's server has not told yet to which namespace of this name the older tasks belong; try again in a few seconds")

// belongings returns which tasks belong to a namespace.
func (f fences) belongings(namespaceUID string) (belongings, error) {
	b := belongings{all: true, uids: map[string]bool{}, names: map[string]bool{}}
	o, err := f.owners()
	if err != nil {
		return b, err
	}
	records, damaged, err := f.records()
	if err != nil {
		return b, err
	}
	// A record may have been removed, as the message about a damaged one says.
	b.all = len(damaged) == 0 && (o.First == "" || o.share(o.First, namespaceUID))
	for uid, record := range records {
		switch {
		case record.Namespace == "" && o.First == "" && record.Deleted: // it has left nothing
		case record.Namespace == "" && o.First == "":
			return b, errNotTold
		case !o.share(record.Namespace, namespaceUID):
			b.all = false
		default:
			b.uids[uid] = true
			b.names[record.Name] = b.names[record.Name] || !record.Displaced
		}
	}
	return b, nil
}

// mayBuildOn returns the tasks on whose bases a task of the namespace may build. Nothing waits until
// it is known to whom older ones belong: the task then pushes the bases itself.
func (f fences) mayBuildOn(namespaceUID string) (belongings, error) {
	owned, err := f.belongings(namespaceUID)
	if errors.Is(err, errNotTold) {
		return belongings{}, nil
	}
	return owned, err
}

// belongings returns which tasks of a folder belong to the namespace with a UID.
func (s *Store) belongings(namespace, uid string) (belongings, error) {
	f, err := s.fences(namespace)
	if err != nil {
		return belongings{}, err
	}
	return f.belongings(uid)
}

// displaced returns the tasks of other namespaces that have the name of a task which begins, and
// whose branches have to make room, and whether a record that cannot be read may be another one.
// A task of its own namespace that had the name before has done that already.
func (f fences) displaced(task Task) (others map[string]fenceRecord, unsure bool, err error) {
	o, err := f.owners()
	if err != nil {
		return nil, false, err
	}
	records, damaged, err := f.records()
	if err != nil {
		return nil, false, err
	}
	others = map[string]fenceRecord{}
	for uid, record := range records {
		switch {
		case uid == task.UID || record.Name != task.Name || record.Displaced:
		case record.Namespace == "" && o.First == "" && record.Deleted: // it has left nothing
		case record.Namespace == "" && o.First == "":
			return nil, false, errNotTold
		case o.share(record.Namespace, task.NamespaceUID):
			return nil, false, nil
		default:
			others[uid] = record
		}
	}
	return others, len(damaged) > 0, nil
}

// displace records that the branches of a task's name are another namespace's.
func (f fences) displace(ctx context.Context, uid string) error {
	held, err := openLocked(ctx, f.lock(uid), syscall.LOCK_EX)
	if err != nil {
		return fmt.Errorf("lock the fence: %w", err)
	}
	defer held.Close()
	record, err := f.read(uid)
	if err != nil {
		return err
	}
	record.Displaced = true
	return f.write(uid, record)
}

// makeRoom makes sure, before the first attempt of a task is recorded, that the branches of its
// name are its namespace's: it moves those that another namespace's tasks of that name have left
// out of the way. It may be repeated.
func (s *Store) makeRoom(ctx context.Context, f fences, task Task) error {
	others, unsure, err := f.displaced(task)
	if err != nil || len(others) == 0 && !unsure {
		return err
	}
	repositories, err := s.namespaceRepositories(task.Namespace)
	if err != nil {
		return err
	}
	for _, repository := range repositories {
		if has, err := repository.hasRefs(refname.BranchesOf(task.Name)); err != nil || !has {
			if err != nil {
				return err
			}
			continue
		}
		if len(others) == 0 {
			return fmt.Errorf("a fence record in %s is damaged, and it cannot be told whose the branches of the name %s are; remove the record once no older pod of its task can run", f.folder, task.Name)
		}
		if err := s.setAside(ctx, repository, task, heirs(others)); err != nil {
			return fmt.Errorf("move the branches %s of the repository %s: %w", task.Name, repository.Name, err)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(others)) {
		if err := f.displace(ctx, uid); err != nil {
			return err
		}
	}
	return nil
}

// heirs returns the tasks with which branches of a name go: those that were not deleted, or all if
// all were.
func heirs(tasks map[string]fenceRecord) (uids []string) {
	for uid, record := range tasks {
		if !record.Deleted {
			uids = append(uids, uid)
		}
	}
	if len(uids) == 0 {
		uids = slices.Collect(maps.Keys(tasks))
	}
	return uids
}

// setAside moves the branches of a task's name in one repository to the displaced branches of
// others. They are deleted where they were once they are on disk elsewhere.
func (s *Store) setAside(ctx context.Context, repository Repository, task Task, heirs []string) error {
	used, err := repository.use(ctx)
	if err != nil {
		return err
	}
	defer used.Close()
	git := s.gitFor(repository)
	listed, err := git.run(ctx, repository.Path, "--git-dir=.", "for-each-ref", "--format=%(objectname) %(refname)", refname.BranchesOf(task.Name))
	if err != nil {
		return err
	}
	var made, deleted strings.Builder
	for line := range strings.Lines(listed) {
		id, ref, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		for _, uid := range heirs {
			aside := refname.Displaced(uid) + task.UID + "/" + strings.TrimPrefix(ref, refname.BranchesOf(task.Name))
			fmt.Fprintf(&made, "update %s\x00%s\x00\x00", aside, id)
		}
		fmt.Fprintf(&deleted, "delete %s\x00%s\x00", ref, id)
	}
	for _, commands := range []string{made.String(), deleted.String()} {
		if commands == "" {
			continue
		}
		if _, err := git.runWith(ctx, []*os.File{used}, strings.NewReader(commands), repository.Path, "--git-dir=.", "update-ref", "--stdin", "-z"); err != nil {
			return err
		}
		if err := errors.Join(syncFolders(filepath.Join(repository.Path, "refs")), durable.SyncFolder(repository.Path)); err != nil {
			return err
		}
	}
	return nil
}
