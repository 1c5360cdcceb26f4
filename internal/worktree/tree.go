package worktree

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// oid is a git object id (SHA-1).
type oid [20]byte

var (
	noOID     oid
	emptyTree = oid{0x4b, 0x82, 0x5d, 0xc6, 0x42, 0xcb, 0x6e, 0xb9, 0xa0, 0x60, 0xe5, 0x4b, 0xf8, 0xd6, 0x92, 0x88, 0xfb, 0xee, 0x49, 0x04}
)

func (o oid) String() string { return hex.EncodeToString(o[:]) }

func (o oid) isZero() bool { return o == noOID }

func parseOID(text string) (oid, error) {
	var o oid
	if len(text) != 40 {
		return o, fmt.Errorf("%q is not an object id of 40 hexadecimal digits", text)
	}
	if _, err := hex.Decode(o[:], []byte(text)); err != nil {
		return o, fmt.Errorf("%q is not an object id of 40 hexadecimal digits", text)
	}
	return o, nil
}

// hashObject returns the git object id of content with the given object type.
func hashObject(kind string, content []byte) oid {
	h := sha1.New()
	header := append(strconv.AppendInt([]byte(kind+" "), int64(len(content)), 10), 0)
	h.Write(header)
	h.Write(content)
	var o oid
	h.Sum(o[:0])
	return o
}

// Modes of tree entries, as git writes them.
const (
	modeFile uint32 = 0o100644
	modeExec uint32 = 0o100755
	modeLink uint32 = 0o120000
	modeDir  uint32 = 0o040000
	modeSub  uint32 = 0o160000 // a gitlink: a submodule that is not checked out
)

// fileStat holds the attributes that show whether a file has changed since it was
// hashed.
type fileStat struct {
	size         int64
	mtime, ctime int64 // nanoseconds
	ino          uint64
}

// entry is one name in a folder. In a scanned tree it describes the file on disk. In
// a tree read from a commit it has no stat, and perm comes from entries.json.
type entry struct {
	name string
	mode uint32
	perm uint32 // permission bits 07777; meaningless for links
	oid  oid    // of the blob, or of the commit for modeSub; unset for folders
	stat fileStat

	trusted bool       // stat may vouch for oid on the next scan
	hidden  bool       // git rejects the name: it is in the state tree instead of the code tree
	gone    bool       // vanished during the scan
	skip    SkipReason // why it is not captured, "" if it is
	data    []byte     // content read by this scan, if it is kept in memory
	dir     *dir       // for folders
	link    oid        // for an empty folder that represents a submodule: its commit
	origin  *entry     // in a view: the entry in the real tree
}

// dir is a folder. Its entries are sorted by name.
type dir struct {
	entries []entry
	partial bool // the folder on disk has other entries, which are not managed
}

// find returns the entry with this name, or nil. d may be nil.
func (d *dir) find(name string) *entry {
	if d == nil {
		return nil
	}
	i := sort.Search(len(d.entries), func(i int) bool { return d.entries[i].name >= name })
	if i < len(d.entries) && d.entries[i].name == name {
		return &d.entries[i]
	}
	return nil
}

// lookup returns the entry at a path below d, or nil.
func (d *dir) lookup(path string) *entry {
	var e *entry
	for rest := path; ; {
		name, tail, more := strings.Cut(rest, "/")
		if e = d.find(name); e == nil || !more {
			return e
		}
		d, rest = e.dir, tail
	}
}

// put adds or replaces an entry. It invalidates pointers to entries of d.
func (d *dir) put(e entry) *entry {
	i := sort.Search(len(d.entries), func(i int) bool { return d.entries[i].name >= e.name })
	if i < len(d.entries) && d.entries[i].name == e.name {
		d.entries[i] = e
		return &d.entries[i]
	}
	d.entries = append(d.entries, entry{})
	copy(d.entries[i+1:], d.entries[i:])
	d.entries[i] = e
	return &d.entries[i]
}

// folder returns the folder at path, creating it and its parents if they do not
// exist. It replaces a file, though trees read from commits never have one there.
func (d *dir) folder(path string) *dir {
	if path == "" {
		return d
	}
	name, rest, _ := strings.Cut(path, "/")
	e := d.find(name)
	if e == nil || e.dir == nil {
		e = d.put(entry{name: name, mode: modeDir, perm: 0o755, dir: &dir{}})
	}
	return e.dir.folder(rest)
}

// hasStored reports whether d contains anything that git would store.
func (d *dir) hasStored() bool {
	for i := range d.entries {
		e := &d.entries[i]
		if e.stored() && (e.dir == nil || !e.link.isZero() || e.dir.hasStored()) {
			return true
		}
	}
	return false
}

// isSubmodule reports whether e is an empty folder that represents a submodule.
func (e *entry) isSubmodule() bool {
	return e.dir != nil && !e.link.isZero() && !e.dir.hasStored()
}

// isPipe reports whether e is a named pipe. A target has one as an entry, as a scan does,
// with its permission bits. e may be nil.
func (e *entry) isPipe() bool { return e != nil && e.skip == SkipFifo }

// stored reports whether an entry belongs in the code tree.
func (e *entry) stored() bool { return !e.hidden && !e.gone && e.skip == "" }

// treeOID returns the id of the git tree with d's stored entries, or the zero id if
// there are none: git does not store empty folders.
func (d *dir) treeOID() oid {
	var buf bytes.Buffer
	for _, i := range d.gitOrder() {
		e := &d.entries[i]
		mode, id := e.mode, e.oid
		if e.dir != nil {
			if id = e.dir.treeOID(); id.isZero() {
				mode, id = modeSub, e.link
			}
		}
		if id.isZero() {
			continue
		}
		buf.WriteString(strconv.FormatUint(uint64(mode), 8))
		buf.WriteByte(' ')
		buf.WriteString(e.name)
		buf.WriteByte(0)
		buf.Write(id[:])
	}
	if buf.Len() == 0 {
		return noOID
	}
	return hashObject("tree", buf.Bytes())
}

// rootTree is treeOID for the root, where an empty tree does have an id.
func rootTree(d *dir) oid {
	if id := d.treeOID(); !id.isZero() {
		return id
	}
	return emptyTree
}

// gitOrder lists the stored entries in the order of a git tree, in which a
// folder sorts as if its name ended in a slash.
func (d *dir) gitOrder() []int {
	order := make([]int, 0, len(d.entries))
	sorted := true
	for i := range d.entries {
		if !d.entries[i].stored() {
			continue
		}
		if n := len(order); n > 0 && !gitLess(&d.entries[order[n-1]], &d.entries[i]) {
			sorted = false
		}
		order = append(order, i)
	}
	if !sorted {
		sort.Slice(order, func(a, b int) bool { return gitLess(&d.entries[order[a]], &d.entries[order[b]]) })
	}
	return order
}

// gitLess compares two entries as git does: a folder as if its name ended in a
// slash, a submodule as a file.
func gitLess(a, b *entry) bool {
	n := min(len(a.name), len(b.name))
	if c := strings.Compare(a.name[:n], b.name[:n]); c != 0 {
		return c < 0
	}
	return tail(a, n) < tail(b, n)
}

// tail returns the byte that decides the order of names that share their first n bytes.
func tail(e *entry, n int) byte {
	if len(e.name) > n {
		return e.name[n]
	}
	if e.dir != nil && !e.isSubmodule() {
		return '/'
	}
	return 0
}

// walkFiles calls f for every stored entry that is not a folder, in order.
func (d *dir) walkFiles(path string, f func(path string, e *entry)) {
	for i := range d.entries {
		e := &d.entries[i]
		if !e.stored() {
			continue
		}
		p := joinPath(path, e.name)
		if e.dir != nil {
			e.dir.walkFiles(p, f)
			continue
		}
		f(p, e)
	}
}

// parseTree parses the output of git ls-tree -r -t -z. It also returns the ids of the
// trees below the root.
func parseTree(out []byte) (*dir, []oid, error) {
	root := &dir{}
	var trees []oid
	var at *dir
	atPath := "\x00"
	for len(out) > 0 {
		line, rest, ok := bytes.Cut(out, []byte{0})
		if !ok {
			return nil, nil, fmt.Errorf("git ls-tree: the output ends in the middle of an entry")
		}
		out = rest
		head, path, ok := strings.Cut(string(line), "\t")
		fields := strings.Fields(head)
		if !ok || len(fields) != 3 {
			return nil, nil, fmt.Errorf("git ls-tree: cannot read the entry %q", line)
		}
		mode, err := strconv.ParseUint(fields[0], 8, 32)
		if err != nil {
			return nil, nil, fmt.Errorf("git ls-tree: cannot read the mode of %q", line)
		}
		id, err := parseOID(fields[2])
		if err != nil {
			return nil, nil, err
		}
		parent, name := splitPath(path)
		if !validName(name) {
			return nil, nil, fmt.Errorf("the tree has an entry %q that cannot be a file name", path)
		}
		if parent != atPath {
			at, atPath = root.folder(parent), parent
		}
		if mode == uint64(modeDir) {
			trees = append(trees, id)
		}
		at.put(treeEntry(name, uint32(mode), id))
	}
	return root, trees, nil
}

// treeEntry makes an entry from a git tree entry, with default permission bits. Old
// trees have modes such as 100664, which git itself treats as 100644.
func treeEntry(name string, mode uint32, id oid) entry {
	switch {
	case mode == modeDir:
		return entry{name: name, mode: modeDir, perm: 0o755, dir: &dir{}}
	case mode == modeSub:
		return entry{name: name, mode: modeDir, perm: 0o755, dir: &dir{}, link: id}
	case mode == modeLink:
		return entry{name: name, mode: modeLink, perm: 0o777, oid: id}
	case mode&0o100 != 0:
		return entry{name: name, mode: modeExec, perm: 0o755, oid: id}
	}
	return entry{name: name, mode: modeFile, perm: 0o644, oid: id}
}
