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
)

// maxEdges is how many of the task's newest refs the first look starts from.
const maxEdges = 200

// errNotBrought says that a push names objects that it does not bring and that
// its task cannot see. They may well be there: of another task.
var errNotBrought = errors.New("the push names objects that it does not bring and that no ref of the task leads to; push all of them")

// errThinPack says that git had to add objects to the pack of a push.
var errThinPack = errors.New("the pack builds on objects that it does not hold; push with --no-thin")

// checkBrought makes sure that a push brings all that its refs lead to, but for
// what its task sees already. It runs in the hook, where the objects of the push
// are in a folder of their own. objects is how many the client's pack held: git
// adds to a pack the objects that it builds on, which are not the client's.
func checkBrought(ctx context.Context, g git, path, quarantine string, v view, tips []string, objects int) error {
	brought, err := objectsIn(quarantine)
	if err != nil {
		return err
	}
	if brought.count != objects {
		return errThinPack
	}
	seen, err := v.refs(ctx, g, path)
	if err != nil {
		return err
	}
	// Mostly the newest refs account for all that was not brought.
	missing := map[string]bool{}
	err = listObjects(ctx, g, path, tips, seen[:min(len(seen), maxEdges)], func(id string) bool {
		if !brought.ids[id] {
			missing[id] = true
		}
		return true
	})
	if err != nil || len(missing) == 0 {
		return err
	}
	based, err := bases(ctx, g, path)
	if err != nil {
		return err
	}
	err = listObjects(ctx, g, path, append(seen, based...), nil, func(id string) bool {
		delete(missing, id)
		return len(missing) > 0
	})
	if err == nil && len(missing) > 0 {
		return errNotBrought
	}
	return err
}

// packedObjects are the objects of some packs. An object that is in them twice
// counts twice.
type packedObjects struct {
	ids   map[string]bool
	count int
}

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

// readIndex returns the ids of the objects in a pack, by its index. Git has just
// written it: a magic number and the version, 2; of each first byte of an id the number
// of ids up to it; and the ids, in order (gitformat-pack(5)).
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
		return nil, fmt.Errorf("the index %s of a pack cannot be read: %w", name, err)
	}
	if head.Magic != [4]byte{0xff, 't', 'O', 'c'} || head.Version != 2 {
		return nil, fmt.Errorf("the index %s of a pack has a form that is not known", name)
	}
	var ids []string
	for range head.Fanout[255] {
		var id [20]byte
		if _, err := io.ReadFull(in, id[:]); err != nil {
			return nil, fmt.Errorf("the index %s of a pack cannot be read: %w", name, err)
		}
		ids = append(ids, hex.EncodeToString(id[:]))
	}
	return ids, nil
}

// listObjects calls use with each object that the commits lead to and the known
// ones do not, roughly: it may name some that these do lead to. It ends when use
// returns false.
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
		_, _ = io.Copy(io.Discard, stdout) // it has been told to end
	}
	if err := g.wait(command); err != nil && more {
		return fmt.Errorf("git rev-list: %w: %s", err, stderr)
	}
	return nil
}

// objectFolders hands on where git keeps the objects of the push under way.
func objectFolders() []string {
	var env []string
	for _, name := range []string{"GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_QUARANTINE_PATH"} {
		if value := os.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}
