package gitstore

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/gitstoreapi"
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
	o, _, err := f.readOwners()
	return o, err
}

// readOwners returns what was told about the namespaces of the folder, also as it is written.
func (f fences) readOwners() (o owners, told string, err error) {
	content, err := os.ReadFile(f.ownersFile())
	if errors.Is(err, fs.ErrNotExist) {
		return o, "", nil
	}
	if err != nil {
		return o, "", err
	}
	if err := json.Unmarshal(content, &o); err != nil {
		return owners{}, "", fmt.Errorf("%w: %s: %w", errDamagedOwners, f.ownersFile(), err)
	}
	return o, string(content), nil
}

// writeOwners replaces what was told.
func (f fences) writeOwners(o owners) error {
	content, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return durable.WriteShared(f.ownersFile(), temporaryFiles, append(content, '\n'), 0o644)
}

// belongings are the tasks of a folder that belong to a namespace.
type belongings struct {
	// all is set if no task of the folder belongs to another namespace.
	all bool
	// uids are those of the tasks, and names those whose branches are theirs.
	uids, names map[string]bool
	// owners tells which namespaces share what they have with the one with this UID.
	owners owners
	uid    string
}

// has reports whether a task belongs to the namespace, and hasBranches whether the branches of a
// task's name do.
func (b belongings) has(uid string) bool          { return b.all || b.uids[uid] }
func (b belongings) hasBranches(name string) bool { return b.all || b.names[name] }

// hasDisplaced reports whether displaced branches in the folder with a UID belong to the namespace.
// Earlier versions named it after a task and not after a namespace.
func (b belongings) hasDisplaced(uid string) bool { return b.has(uid) || b.owners.share(uid, b.uid) }

// errNotTold is returned as long as it is not known to whom something belongs that was stored
// before UIDs were recorded.
var errNotTold = errors.New("Clew's server has not told yet to which namespace of this name the older tasks belong; try again in a few seconds")

// belongings returns which tasks belong to a namespace. Nobody may change what it returns.
func (f fences) belongings(namespaceUID string) (belongings, error) {
	o, told, err := f.readOwners()
	if err != nil {
		return belongings{}, err
	}
	all, err := f.cache.of(f)
	if err != nil {
		return belongings{}, err
	}
	return all.belongings(namespaceUID, o, told)
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

// namespaceOf returns the UID of the namespace to which a task belongs; empty if that is not known.
func (s *Store) namespaceOf(namespace, taskUID string) (string, error) {
	f, err := s.fences(namespace)
	if err != nil {
		return "", err
	}
	o, err := f.owners()
	if err != nil {
		return "", err
	}
	record, err := f.read(taskUID)
	return cmp.Or(record.Namespace, o.First), err
}

// belongings returns which tasks of a folder belong to the namespace with a UID.
func (s *Store) belongings(namespace, uid string) (belongings, error) {
	f, err := s.fences(namespace)
	if err != nil {
		return belongings{}, err
	}
	return f.belongings(uid)
}
