package gitstore

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/gitpath"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// useTime is how long a verification uses a repository at a time: a deletion, and whoever comes
// after it, waits that long.
const useTime = 2 * time.Second

// shortOfResources matches what git prints when it failed for another reason than damage.
var shortOfResources = regexp.MustCompile(`(?i)out of memory|cannot allocate|malloc failed|no space left|too many open files|permission denied|cannot fork|unable to (fork|create thread)`)

// saysDamaged reports whether git, which ended with this error, has found damage, or at least
// did not fail for a reason that has nothing to do with what is stored.
func saysDamaged(err error) bool {
	exit := (*exec.ExitError)(nil)
	return errors.As(err, &exit) && exit.Exited() && !shortOfResources.MatchString(err.Error())
}

// list calls use with the ids of the objects that the commits reach, except those that verified
// commits reach. Its error satisfies saysDamaged if an object is missing or damaged.
func (v *verifier) list(use func(id string) error, commits ...string) error {
	used, err := v.repository.use(v.ctx)
	if err != nil {
		return err
	}
	defer used.Close()
	d := differ{ctx: v.ctx, git: v.git, path: v.repository.Path, held: []*os.File{used}}
	// The commit graph repeats what commits say.
	args := append([]string{"-c", "core.commitGraph=false", "rev-list", "--objects-edge-aggressive", "--no-object-names"}, commits...)
	return d.stream(func(in *bufio.Reader) error {
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			if id := lines.Text(); !strings.HasPrefix(id, "-") {
				if err := use(id); err != nil {
					return err
				}
			}
		}
		return lines.Err()
	}, append(append(args, "--not"), v.known.tips...)...)
}

// complete reports whether every object is there that commits reach.
func (v *verifier) complete(commits ...string) (bool, error) {
	err := v.list(func(string) error { return nil }, commits...)
	switch {
	case err == nil:
		return true, nil
	case v.ctx.Err() == nil && saysDamaged(err):
		v.known.tips = nil // they may reach what is damaged
		return false, nil
	}
	return false, err
}

// damage reads the objects of a checkpoint, and lists those that are missing or damaged.
func (v *verifier) damage(code, state string) ([]gitstoreapi.Damage, error) {
	r := &objectReader{v: v}
	defer r.close()
	w := &walk{read: r.read, seen: map[string]bool{}}
	for _, tip := range []struct{ part, commit string }{{gitstoreapi.PartCode, code}, {gitstoreapi.PartState, state}} {
		if err := w.commit(tip.part, tip.commit); err != nil {
			return w.found, err
		}
	}
	if len(w.found) > 0 {
		return w.found, nil
	}
	return w.found, v.history(w, code, state)
}

// history reads the objects that a checkpoint builds on: whoever fetches it fetches them too.
func (v *verifier) history(w *walk, code, state string) error {
	ids, err := v.listed(code, state)
	if err != nil && len(v.known.tips) > 0 && v.ctx.Err() == nil && saysDamaged(err) {
		v.known.tips = nil // one of them is damaged now, perhaps one that this checkpoint does not need
		ids, err = v.listed(code, state)
	}
	if err != nil && v.ctx.Err() == nil && saysDamaged(err) {
		w.add(gitstoreapi.PartCode, "object", anyObject.FindString(err.Error()), "", "is missing or damaged, in the history before it")
		return nil
	}
	for _, id := range ids {
		if err == nil && len(w.found) < gitstoreapi.MaxDamage {
			err = w.object(hex.EncodeToString(id[:]))
		}
	}
	return err
}

// listed returns what list lists.
func (v *verifier) listed(commits ...string) (ids [][sha1.Size]byte, err error) {
	err = v.list(func(id string) error {
		var binary [sha1.Size]byte
		_, err := hex.Decode(binary[:], []byte(id))
		ids = append(ids, binary)
		return err
	}, commits...)
	return ids, err
}

// anyObject matches an object's id in what git prints.
var anyObject = regexp.MustCompile(`\b[0-9a-f]{40}\b`)

// walk reads the objects of a checkpoint.
type walk struct {
	// read returns an object's kind, its content unless it is a blob, and what is wrong with it.
	read  func(id string) (kind string, content []byte, wrong string, err error)
	seen  map[string]bool
	found []gitstoreapi.Damage
}

func (w *walk) add(part, kind, id, path, wrong string) {
	if len(w.found) < gitstoreapi.MaxDamage {
		w.found = append(w.found, gitstoreapi.Damage{Part: part, Kind: kind, Object: id, Path: path, What: wrong})
	}
}

// commit reads a commit and everything in its tree.
func (w *walk) commit(part, id string) error {
	_, content, wrong, err := w.read(id)
	if err != nil {
		return err
	}
	w.seen[id] = true
	tree, _, _ := strings.Cut(strings.TrimPrefix(string(content), "tree "), "\n")
	if wrong == "" && !isObjectID(tree) {
		wrong = "is not a commit"
	}
	if wrong != "" {
		w.add(part, "commit", id, "", wrong)
		return nil
	}
	return w.tree(part, tree, "")
}

// tree reads a tree and everything in it.
func (w *walk) tree(part, id, path string) error {
	if w.seen[id] || id == emptyTree {
		return nil
	}
	w.seen[id] = true
	_, content, wrong, err := w.read(id)
	if err != nil {
		return err
	}
	if wrong != "" {
		w.add(part, "tree", id, path, wrong)
		return nil
	}
	for len(content) > 0 {
		head, rest, _ := bytes.Cut(content, []byte{0})
		mode, name, _ := strings.Cut(string(head), " ")
		if len(rest) < sha1.Size {
			w.add(part, "tree", id, path, "is not a tree")
			return nil
		}
		entry, at := hex.EncodeToString(rest[:sha1.Size]), gitpath.Quote(name)
		if path != "" {
			at = path + "/" + at
		}
		content = rest[sha1.Size:]
		switch mode {
		case "40000", "040000":
			err = w.tree(part, entry, at)
		case nestedRepository:
		default:
			err = w.blob(part, entry, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// blob reads a file's content.
func (w *walk) blob(part, id, path string) error {
	if w.seen[id] {
		return nil
	}
	w.seen[id] = true
	_, _, wrong, err := w.read(id)
	if err == nil && wrong != "" {
		w.add(part, "blob", id, path, wrong)
	}
	return err
}

// object reads an object of the history before the checkpoint.
func (w *walk) object(id string) error {
	if w.seen[id] {
		return nil
	}
	kind, _, wrong, err := w.read(id)
	if err != nil || wrong == "" {
		return err
	}
	if kind == "" {
		kind = "object"
	}
	w.add(gitstoreapi.PartCode, kind, id, "", wrong+", in the history before it")
	return nil
}

// objectReader reads objects one after the other, and compares each with its id.
type objectReader struct {
	v *verifier

	used    *os.File
	since   time.Time
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	said    *tail
}

// read reads an object. wrong says what is wrong with it; content is empty for a blob.
func (r *objectReader) read(id string) (kind string, content []byte, wrong string, err error) {
	if err := r.renew(); err != nil {
		return "", nil, "", err
	}
	kind, content, wrong, ended := r.one(id)
	if !ended {
		return kind, content, wrong, nil
	}
	// Git ends itself at some kinds of damage.
	said, exit := r.said, r.end()
	if r.v.ctx.Err() != nil {
		return "", nil, "", r.v.ctx.Err()
	}
	if exit != nil {
		exit = fmt.Errorf("git cat-file: %w: %s", exit, said)
	}
	if exit == nil || !saysDamaged(exit) {
		return "", nil, "", fmt.Errorf("git cat-file ended while it read the object %s: %w", id, exit)
	}
	return kind, nil, "is damaged", nil
}

// one reads an object; ended is true if git has ended.
func (r *objectReader) one(id string) (kind string, content []byte, wrong string, ended bool) {
	if _, err := io.WriteString(r.in, id+"\n"); err != nil {
		return "", nil, "", true
	}
	line, err := r.out.ReadString('\n')
	if err != nil {
		return "", nil, "", true
	}
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return "", nil, "is missing", false
	}
	kind = fields[1]
	size, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil {
		return kind, nil, "", true
	}
	hash := sha1.New()
	fmt.Fprintf(hash, "%s %d\x00", kind, size)
	var kept bytes.Buffer
	to := io.Writer(hash)
	if kind == "tree" || kind == "commit" {
		to = io.MultiWriter(hash, &kept)
	}
	if _, err := io.CopyN(to, r.out, size); err != nil {
		return kind, nil, "", true
	}
	if _, err := r.out.Discard(1); err != nil {
		return kind, nil, "", true
	}
	if hex.EncodeToString(hash.Sum(nil)) != id {
		return kind, nil, "has another content than was stored", false
	}
	return kind, kept.Bytes(), "", false
}

// renew starts git unless it runs, and lets those go first who wait for the repository.
func (r *objectReader) renew() error {
	if r.command != nil && time.Since(r.since) < useTime {
		return nil
	}
	if r.command != nil {
		_ = r.end() // nothing was asked of it
	}
	used, err := r.v.repository.use(r.v.ctx)
	if err != nil {
		return err
	}
	r.used, r.since = used, time.Now()
	command := r.v.git.command(r.v.ctx, r.v.repository.Path, "--git-dir=.", "cat-file", "--batch")
	r.said = &tail{limit: 4 << 10}
	command.Stderr = r.said
	command.ExtraFiles = []*os.File{used}
	if r.in, err = command.StdinPipe(); err != nil {
		return err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	r.out = bufio.NewReaderSize(out, 64<<10)
	if err := r.v.git.start(command); err != nil {
		return err
	}
	r.command = command
	return nil
}

// end ends git, and returns its error.
func (r *objectReader) end() error {
	if r.command == nil {
		return nil
	}
	_ = r.in.Close() // git ends at the end of its input
	_, _ = io.Copy(io.Discard, r.out)
	err := r.v.git.wait(r.command)
	r.command = nil
	_ = r.used.Close() // nothing was written to it
	return err
}

func (r *objectReader) close() { _ = r.end() }
