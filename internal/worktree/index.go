package worktree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/clew-dev/clew/internal/gitignore"
	"github.com/clew-dev/clew/internal/gitpath"
)

// errIndex means that an index is damaged or has an unsupported format.
var errIndex = errors.New("the index cannot be read")

// indexEntry is the entry of one path in the agent's index.
type indexEntry struct {
	path   string
	mode   uint32
	oid    oid
	size   uint32
	mtime  [2]uint32 // seconds, nanoseconds
	ino    uint32
	stage  int
	ignore bool // assume-unchanged or skip-worktree
}

const (
	indexFixed    = 62 // length of the part before the name
	indexExtended = 0x4000
	indexAssume   = 0x8000
	indexSkipTree = 0x4000
)

// parseIndex parses a git index of version 2, 3 or 4 as untrusted data. It returns
// errIndex for a split or sparse index.
func parseIndex(raw []byte) ([]indexEntry, error) {
	if len(raw) < 12+20 || string(raw[:4]) != "DIRC" {
		return nil, errIndex
	}
	version, count := binary.BigEndian.Uint32(raw[4:]), binary.BigEndian.Uint32(raw[8:])
	if version < 2 || version > 4 || uint64(count)*indexFixed > uint64(len(raw)) {
		return nil, errIndex
	}
	p := indexParser{rest: raw[12 : len(raw)-20], version: version}
	list := make([]indexEntry, 0, count)
	for range count {
		e, err := p.next()
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	for len(p.rest) >= 8 { // extensions
		name, size := string(p.rest[:4]), binary.BigEndian.Uint32(p.rest[4:])
		if name == "link" || name == "sdir" || uint64(size) > uint64(len(p.rest)-8) {
			return nil, errIndex
		}
		p.rest = p.rest[8+size:]
	}
	return list, nil
}

type indexParser struct {
	rest    []byte
	version uint32
	last    string
}

func (p *indexParser) next() (e indexEntry, err error) {
	b := p.rest
	if len(b) < indexFixed {
		return e, errIndex
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(b[i:]) }
	e.mtime, e.ino, e.mode, e.size = [2]uint32{word(8), word(12)}, word(20), word(24), word(36)
	copy(e.oid[:], b[40:60])
	flags := binary.BigEndian.Uint16(b[60:])
	e.stage, e.ignore = int(flags>>12&3), flags&indexAssume != 0
	fixed := indexFixed
	if flags&indexExtended != 0 {
		if len(b) < indexFixed+2 || p.version < 3 {
			return e, errIndex
		}
		e.ignore = e.ignore || binary.BigEndian.Uint16(b[62:])&indexSkipTree != 0
		fixed += 2
	}
	return p.name(e, b[fixed:], fixed)
}

// name reads the path. Version 4 of the format abbreviates it relative to the previous
// path.
func (p *indexParser) name(e indexEntry, b []byte, fixed int) (indexEntry, error) {
	prefix := ""
	if p.version == 4 {
		drop, n := indexVarint(b)
		if n == 0 || drop > uint64(len(p.last)) {
			return e, errIndex
		}
		prefix, b = p.last[:len(p.last)-int(drop)], b[n:]
	}
	end := bytes.IndexByte(b, 0)
	if end < 0 {
		return e, errIndex
	}
	e.path = prefix + string(b[:end])
	p.last = e.path
	skip := end + 1
	if p.version < 4 {
		skip = end + 8 - (fixed+end)%8
	}
	if skip > len(b) {
		return e, errIndex
	}
	p.rest = b[skip:]
	return e, nil
}

// indexVarint decodes a number in the offset encoding of git packs; n is its length, 0
// if it is invalid.
func indexVarint(b []byte) (value uint64, n int) {
	for i := 0; i < len(b) && i < 9; i++ {
		value = value<<7 | uint64(b[i]&0x7f)
		if b[i]&0x80 == 0 {
			return value, i + 1
		}
		value++
	}
	return 0, 0
}

// maxIndexBytes bounds the size of an index that is parsed.
const maxIndexBytes = 256 << 20

// agentIndex returns the agent's index as a tree, or nil if there is none or it
// cannot be parsed.
func (t *taking) agentIndex() *indexTree {
	git := t.snap.work.find(gitName)
	if git == nil || git.dir == nil {
		return nil
	}
	e := git.dir.find("index")
	if e == nil || e.dir != nil || e.skip != "" {
		return nil
	}
	if have := t.r.index; have != nil && have.oid == e.oid {
		return have
	}
	raw := e.data
	if raw == nil {
		work, err := openBeneath(t.r.cfg.Worktree)
		if err != nil {
			return nil
		}
		raw, err = work.readFile(gitName+"/index", maxIndexBytes)
		work.close()
		if err != nil {
			return nil
		}
	}
	list, err := parseIndex(raw)
	if err != nil {
		return nil
	}
	t.r.index = indexTreeOf(e.oid, list)
	return t.r.index
}

// indexTree is an index as a tree of folders.
type indexTree struct {
	oid        oid
	root       *indexFolder
	conflicted []string
}

type indexFolder struct {
	files   []indexEntry // their path is only the name
	folders map[string]*indexFolder
}

// indexTreeOf arranges the entries of an index, sorted by path, as a tree.
func indexTreeOf(id oid, list []indexEntry) *indexTree {
	t := &indexTree{oid: id, root: &indexFolder{}}
	at, atPath := t.root, ""
	for _, e := range list {
		if e.stage != 0 {
			if n := len(t.conflicted); n == 0 || t.conflicted[n-1] != e.path {
				t.conflicted = append(t.conflicted, e.path)
			}
		}
		parent, name := splitPath(e.path)
		if parent != atPath {
			at, atPath = t.root.folder(parent), parent
		}
		e.path = name
		at.files = append(at.files, e)
	}
	return t
}

// folder returns the folder at path below f, creating it if necessary.
func (f *indexFolder) folder(path string) *indexFolder {
	if path == "" {
		return f
	}
	for name := range strings.SplitSeq(path, "/") {
		next := f.folders[name]
		if next == nil {
			if f.folders == nil {
				f.folders = map[string]*indexFolder{}
			}
			next = &indexFolder{}
			f.folders[name] = next
		}
		f = next
	}
	return f
}

// find returns the entry with this name, or nil. Of a conflict, which has several
// stages, it returns one.
func (f *indexFolder) find(name string) *indexEntry {
	if f == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(f.files, name, func(e indexEntry, n string) int { return strings.Compare(e.path, n) })
	if !ok {
		return nil
	}
	return &f.files[i]
}

// dirtyFiles lists the differences between the worktree and the agent's index, as
// git status would, without staged changes. It also returns their total number.
func (t *taking) dirtyFiles() ([]DirtyFile, int) {
	index := t.agentIndex()
	if index == nil {
		return nil, 0
	}
	work, err := openBeneath(t.r.cfg.Worktree)
	if err != nil {
		return nil, 0
	}
	defer work.close()
	d := &dirtyFinder{work: work, max: t.r.cfg.MaxListed}
	for _, path := range index.conflicted {
		d.add(path, "Conflicted")
	}
	d.folder(t.snap.work, index.root, "", d.rules("", t.snap.work.find(".git"), "info/exclude", nil))
	slices.SortFunc(d.list, func(a, b DirtyFile) int { return strings.Compare(a.Path, b.Path) })
	for i := range d.list {
		d.list[i].Path = t.r.cfg.withoutSecrets(d.list[i].Path)
	}
	return d.list, d.count
}

// dirtyFinder collects the files that differ from the agent's index.
type dirtyFinder struct {
	work  *beneath
	max   int
	list  []DirtyFile
	count int
}

func (d *dirtyFinder) add(path, state string) {
	d.count++
	if len(d.list) < d.max {
		d.list = append(d.list, DirtyFile{Path: gitpath.Quote(path), State: state})
	}
}

// folder adds the differences between a scanned folder and that of the index.
func (d *dirtyFinder) folder(cur *dir, index *indexFolder, path string, ignore *gitignore.Rules) {
	ignore = d.rules(path, cur.find(".gitignore"), "", ignore)
	for i := range cur.entries {
		e := &cur.entries[i]
		if !e.stored() {
			continue
		}
		if x := index.find(e.name); e.dir == nil && x != nil && x.stage == 0 && x.matches(e) {
			continue
		}
		full := joinPath(path, e.name)
		if e.dir != nil {
			var sub *indexFolder
			if index != nil {
				sub = index.folders[e.name]
			}
			// A nested repository tracks its files itself.
			if (sub == nil && ignore.Match(full, true)) || e.dir.find(gitName) != nil {
				continue
			}
			d.folder(e.dir, sub, full, ignore)
			continue
		}
		x := index.find(e.name)
		switch {
		case x == nil && !ignore.Match(full, false):
			d.add(full, "Untracked")
		case x != nil && x.stage == 0 && !x.ignore && x.mode != modeSub && !x.matches(e):
			d.add(full, "Modified")
		}
	}
	d.deleted(cur, index, path)
}

// matches reports whether a file is unchanged according to the index.
func (x *indexEntry) matches(e *entry) bool {
	if x.mode != e.mode {
		return false
	}
	if x.oid == e.oid {
		return true
	}
	// The content may differ in line endings, which git converts when it adds a
	// file. Then equal attributes in the index show that it is the file git wrote
	// or read.
	return x.size != 0 && x.size == uint32(e.stat.size) && x.ino == uint32(e.stat.ino) &&
		int64(x.mtime[0])*1e9+int64(x.mtime[1]) == e.stat.mtime
}

// deleted adds the entries of the index that the folder lacks.
func (d *dirtyFinder) deleted(cur *dir, index *indexFolder, path string) {
	if index == nil {
		return
	}
	for i := range index.files {
		x := &index.files[i]
		if x.stage != 0 || x.ignore || x.mode == modeSub {
			continue
		}
		if e := cur.find(x.path); e == nil || e.dir != nil {
			d.add(joinPath(path, x.path), "Deleted")
		}
	}
	for name, sub := range index.folders {
		if e := cur.find(name); e == nil || e.dir == nil {
			d.deleted(nil, sub, joinPath(path, name))
		}
	}
}
