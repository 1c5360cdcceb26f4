package gitstore

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// maxEdges is how many of the task's newest refs the first pass excludes.
const maxEdges = 200

// errMissingObjects is returned for a push that refers to objects which it does not contain
// and its task cannot see. They may well be in the repository, as another task's.
var errMissingObjects = errors.New("the push refers to " + gitstoreapi.MissingObjects + " and that no ref of the task reaches; push all of them")

// errThinPack is returned for a push to whose pack git had to add objects.
var errThinPack = errors.New("the pack contains deltas against objects that are not in it; push with --no-thin")

// checkConnectivity makes sure that a push contains every object that its refs reach, except
// for what its task already sees. It runs in the hook, while the objects of the push
// are in a quarantine folder. objects is how many the client's pack contained: git
// adds the missing base objects to a thin pack, and those are not the client's. owned returns the
// tasks of the task's namespace.
func checkConnectivity(ctx context.Context, g git, path, quarantine string, v view, owned func() (belongings, error), tips []string, objects int) error {
	contained, err := objectsIn(quarantine)
	if err != nil {
		return err
	}
	if contained.count != objects {
		return errThinPack
	}
	seen, err := v.refs(ctx, g, path)
	if err != nil {
		return err
	}
	// The newest refs usually account for everything that the push does not contain.
	missing := map[string]bool{}
	err = listObjects(ctx, g, path, tips, seen[:min(len(seen), maxEdges)], func(id string) bool {
		if !contained.ids[id] {
			missing[id] = true
		}
		return true
	})
	if err != nil || len(missing) == 0 {
		return err
	}
	of, err := owned()
	if err != nil {
		return err
	}
	based, err := bases(ctx, g, path, of)
	if err != nil {
		return err
	}
	err = listObjects(ctx, g, path, append(seen, based...), nil, func(id string) bool {
		delete(missing, id)
		return len(missing) > 0
	})
	if err == nil && len(missing) > 0 {
		return errMissingObjects
	}
	return err
}

// packedObjects are the objects of several packs. An object in two of them is counted
// twice.
type packedObjects struct {
	ids   map[string]bool
	count int
}

// objectsIn returns the objects of all packs in an object folder.
func objectsIn(folder string) (packedObjects, error) {
	found := packedObjects{ids: map[string]bool{}}
	indexes, err := filepath.Glob(filepath.Join(globEscape(folder), "pack", "*.idx"))
	if err != nil {
		return found, err
	}
	for _, name := range indexes {
		ids, err := readIndex(name)
		if err != nil {
			return found, err
		}
		for _, id := range ids {
			found.ids[id] = true
			found.count++
		}
	}
	return found, nil
}

// readIndex returns the ids of a pack's objects from its index, which git has just
// written: a magic number and the version, 2; for each first byte of an id, how many
// ids begin with it or a smaller one; and the ids, in order (gitformat-pack(5)).
func readIndex(name string) ([]string, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	in := bufio.NewReader(file)
	var head struct {
		Magic   [4]byte
		Version uint32
		Fanout  [256]uint32
	}
	if err := binary.Read(in, binary.BigEndian, &head); err != nil {
		return nil, fmt.Errorf("the pack index %s cannot be read: %w", name, err)
	}
	if head.Magic != [4]byte{0xff, 't', 'O', 'c'} || head.Version != 2 {
		return nil, fmt.Errorf("the pack index %s has an unknown format", name)
	}
	var ids []string
	for range head.Fanout[255] {
		var id [20]byte
		if _, err := io.ReadFull(in, id[:]); err != nil {
			return nil, fmt.Errorf("the pack index %s cannot be read: %w", name, err)
		}
		ids = append(ids, hex.EncodeToString(id[:]))
	}
	return ids, nil
}

// listObjects calls use with each object that the commits reach and the known ones do
// not. It is approximate: it may list objects that the known ones do reach. It stops
// when use returns false.
func listObjects(ctx context.Context, g git, path string, commits, known []string, use func(id string) bool) error {
	if len(commits) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	input := strings.Join(commits, "\n") + "\n"
	for _, id := range known {
		input += "^" + id + "\n"
	}
	command := g.command(ctx, path, "--git-dir=.", "rev-list", "--objects-edge-aggressive", "--no-object-names", "--stdin")
	command.Env = append(command.Env, objectFolders()...)
	command.Stdin = strings.NewReader(input)
	stderr := &tail{limit: 4 << 10}
	command.Stderr = stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := g.start(command); err != nil {
		return err
	}
	more := true
	lines := bufio.NewScanner(stdout)
	for more && lines.Scan() {
		if id := lines.Text(); !strings.HasPrefix(id, "-") {
			more = use(id)
		}
	}
	if !more {
		cancel()
		_, _ = io.Copy(io.Discard, stdout) // git has been told to exit
	}
	if err := g.wait(command); err != nil && more {
		return fmt.Errorf("git rev-list: %w: %s", err, stderr)
	}
	return nil
}

// objectFolders returns the environment variables that say where git keeps the objects
// of the current push.
func objectFolders() []string {
	var env []string
	for _, name := range []string{"GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_QUARANTINE_PATH"} {
		if value := os.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}
