package gitstore

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

// emptyTree is the id of the tree without entries, which git knows without storing it.
const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

// hasRefs reports whether the repository has a ref with this prefix, which ends in a slash.
func (r Repository) hasRefs(prefix string) (bool, error) {
	entries, err := os.ReadDir(filepath.Join(r.Path, prefix))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if len(entries) > 0 {
		return true, nil
	}
	packed, err := os.Open(filepath.Join(r.Path, "packed-refs"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer packed.Close()
	for lines := bufio.NewScanner(packed); ; {
		if !lines.Scan() {
			return false, lines.Err()
		}
		if bytes.Contains(lines.Bytes(), []byte(" "+prefix)) {
			return true, nil
		}
	}
}

// resolve returns the commit of a point, which may be of another task of the repository. It
// is found by refs that only the pods of that task can set.
func (d *differ) resolve(point string) (string, error) {
	uid, name, other := strings.Cut(point, ":")
	if !other {
		uid, name = d.uid, point
	}
	if !taskUID.MatchString(uid) {
		return "", noPoint(point)
	}
	number, isCheckpoint := strings.CutPrefix(name, gitstoreapi.PointCheckpoint)
	id, isCommit := strings.CutPrefix(name, gitstoreapi.PointCommit)
	switch {
	case name == gitstoreapi.PointBase:
		return d.base(uid)
	case isCheckpoint:
		n, err := strconv.ParseInt(number, 10, 32)
		if err != nil || n < 1 {
			return "", noPoint(point)
		}
		return d.commit(refname.Code(uid, n), "the gitstore does not have checkpoint %d of the task with UID %s", n, uid)
	case isCommit:
		return d.reached(uid, id)
	case name == gitstoreapi.PointLive:
		return d.commit(refname.Live(uid), "the gitstore does not have the present files of the task with UID %s", uid)
	}
	return "", noPoint(point)
}

func noPoint(point string) error {
	return gitstoreapi.New(gitstoreapi.BadRequest, "%q is not a point of a task: it must be base, live, checkpoint/NUMBER or commit/ID", clip.Marked(point, maxShown))
}

// commit returns the commit that a name means; the refusal NotFound, with the given sentence,
// if there is none.
func (d *differ) commit(name, missing string, args ...any) (string, error) {
	out, err := d.run(strings.NewReader(name+"^{commit}\n"), "cat-file", "--batch-check=%(objectname) %(objecttype)")
	if err != nil {
		return "", err
	}
	id, kind, _ := strings.Cut(strings.TrimSpace(out), " ")
	if kind != "commit" || !isObjectID(id) {
		return "", gitstoreapi.New(gitstoreapi.NotFound, missing, args...)
	}
	return id, nil
}

// base returns the commit that a task started from, if it is known, or the newest commit
// before its first checkpoint that does not look like a checkpoint, of whatever task. It is
// the empty tree for a task that began with an empty repository.
func (d *differ) base(uid string) (string, error) {
	if uid == d.uid && d.known != "" {
		return d.known, nil
	}
	first, err := d.run(nil, "for-each-ref", "--sort=version:refname", "--count=1", "--format=%(objectname)", refname.OfTask(uid)+"code/")
	if err != nil {
		return "", err
	}
	if first = strings.TrimSpace(first); first == "" {
		return "", gitstoreapi.New(gitstoreapi.NotFound, "the gitstore has no checkpoint of the task with UID %s", uid)
	}
	base := emptyTree
	err = d.stream(func(in *bufio.Reader) error {
		for lines := bufio.NewScanner(in); lines.Scan(); {
			if id, maker, _ := strings.Cut(lines.Text(), " "); strings.TrimSpace(maker) != checkpointCommitter {
				base = id
				return errEnough
			}
		}
		return nil
	}, "log", "--first-parent", "--max-count="+strconv.Itoa(maxChain), "--format=%H %<(40,trunc)%ce", "--end-of-options", first)
	if errors.Is(err, errEnough) {
		err = nil
	}
	return base, err
}

// maxChain bounds the checkpoints before a task's first one: forks of forks.
const maxChain = 100_000

// reached returns a commit that one of the task's refs reaches.
func (d *differ) reached(uid, id string) (string, error) {
	if !isObjectID(id) {
		return "", gitstoreapi.New(gitstoreapi.BadRequest, "%q is not the full id of a commit: give its 40 hexadecimal digits", clip.Marked(id, maxShown))
	}
	// The answer is the same for a commit that does not exist and for another task's.
	unknown := gitstoreapi.New(gitstoreapi.NotFound, "no checkpoint of the task with UID %s contains the commit %s in its history", uid, id)
	found, err := d.commit(id, "")
	if refusal := (*gitstoreapi.Refusal)(nil); errors.As(err, &refusal) || err == nil && found != id {
		return "", unknown
	}
	if err != nil {
		return "", err
	}
	refs, err := d.run(nil, "for-each-ref", "--format=^%(objectname)", refname.OfTask(uid))
	if err != nil {
		return "", err
	}
	if refs == "" {
		return "", unknown
	}
	left, err := d.run(strings.NewReader(id+"\n"+refs), "rev-list", "--max-count=1", "--stdin")
	if err != nil {
		return "", err
	}
	if strings.TrimSpace(left) != "" {
		return "", unknown
	}
	return id, nil
}

// damaged matches what git prints about objects that it cannot read.
var damaged = regexp.MustCompile(`(?i)unable to (read|find|parse|unpack)|could not (read|get)|bad (object|tree|blob|packed object)|not a valid object|is (corrupt|empty)|corrupt (loose|packed)|inflate|invalid object|missing (object|blob|tree|necessary objects)|index-pack abnormal exit|repository corruption|hash mismatch|does not match index|cannot read|failed to read`)
