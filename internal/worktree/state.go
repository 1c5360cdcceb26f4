package worktree

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/internal/gitpath"
)

// Names in the state tree.
const (
	stateGit     = "git"
	stateNested  = "nested"
	stateHome    = "home"
	stateEntries = "entries.json"
	stateMeta    = "meta.json"
)

// gitName is the name of the agent's own repository in the worktree.
const gitName = ".git"

// stateView returns the state tree of a snapshot: copies of the entries, with encoded
// names. Files of the pristine repository are left out.
func stateView(snap *snapshot, p *pristine) *dir {
	root := &dir{}
	if snap.work != nil {
		addHidden(root, snap.work, "", p)
	}
	if snap.home != nil {
		if home := viewOf(snap.home, "", nil); len(home.entries) > 0 {
			root.put(entry{name: stateHome, mode: modeDir, dir: home})
		}
	}
	return root
}

// addHidden adds everything below d whose name git rejects.
func addHidden(root, d *dir, path string, p *pristine) {
	for i := range d.entries {
		e := &d.entries[i]
		if e.gone || e.skip != "" {
			continue
		}
		if !e.hidden {
			if e.dir != nil {
				addHidden(root, e.dir, joinPath(path, e.name), p)
			}
			continue
		}
		full := joinPath(path, e.name)
		parent, name := statePlace(full, e.mode == modeLink)
		root.folder(parent).put(viewEntry(e, name, full, p))
	}
}

// statePlace returns the place in the state tree of the .git at path.
func statePlace(path string, link bool) (parent, name string) {
	if path == gitName {
		return "", stateGit
	}
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = encodeName(parts[i], link && i == len(parts)-1)
	}
	return splitPath(stateNested + "/" + strings.Join(parts, "/"))
}

// viewOf returns the view of a folder in the state tree.
func viewOf(d *dir, path string, p *pristine) *dir {
	out := &dir{}
	for i := range d.entries {
		e := &d.entries[i]
		full := joinPath(path, e.name)
		if e.gone || e.skip != "" || p.holds(full, e.oid) {
			continue
		}
		out.put(viewEntry(e, encodeName(e.name, e.mode == modeLink), full, p))
	}
	return out
}

// viewEntry returns the view of an entry, under the given name.
func viewEntry(e *entry, name, path string, p *pristine) entry {
	v := entry{name: name, mode: e.mode, oid: e.oid, data: e.data, origin: e}
	if e.dir != nil {
		v.dir = viewOf(e.dir, path, p)
	}
	return v
}

// realPath converts a path in the state tree to a path below the worktree or, if
// home is true, below the agent's home.
func realPath(path string) (real string, home bool, err error) {
	top, rest, _ := strings.Cut(path, "/")
	parts := strings.Split(rest, "/")
	for i := range parts {
		if rest == "" {
			break
		}
		if parts[i], err = decodeName(parts[i]); err != nil {
			return "", false, err
		}
	}
	rest = strings.Join(parts, "/")
	switch top {
	case stateGit:
		return joinPath(gitName, rest), false, nil
	case stateNested:
		return rest, false, nil
	case stateHome:
		return rest, true, nil
	}
	return "", false, fmt.Errorf("the state tree has an unknown entry %q", top)
}

// fromState adds the content of a state tree to the trees of the worktree and the home.
func fromState(state, work, home *dir) error {
	for i := range state.entries {
		e := &state.entries[i]
		var err error
		switch e.name {
		case stateGit:
			work.put(entry{name: gitName, mode: e.mode, perm: e.perm, oid: e.oid, hidden: true})
			if e.dir != nil {
				git := work.find(gitName)
				git.dir = &dir{}
				err = decodeInto(git.dir, e.dir, false)
			}
		case stateNested:
			err = decodeInto(work, e.dir, true)
		case stateHome:
			err = decodeInto(home, e.dir, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// decodeInto copies a folder of the state tree to out, with real names. In the
// nested part, folders contain hidden names at some depth.
func decodeInto(out, d *dir, nested bool) error {
	if d == nil {
		return fmt.Errorf("the state tree has a file where a folder must be")
	}
	for i := range d.entries {
		e := &d.entries[i]
		name, err := decodeName(e.name)
		if err != nil {
			return err
		}
		hidden := nested && gitRefuses(name, e.mode == modeLink)
		to := out.find(name)
		if to == nil || (to.dir == nil) != (e.dir == nil) {
			to = out.put(entry{name: name, mode: e.mode, perm: e.perm, oid: e.oid, hidden: hidden})
		}
		if e.dir == nil {
			continue
		}
		if to.dir == nil {
			to.dir = &dir{}
		}
		if err := decodeInto(to.dir, e.dir, nested && !hidden); err != nil {
			return err
		}
	}
	return nil
}

// attributes is entries.json in the state tree: what git does not store.
type attributes struct {
	Version  int             `json:"version"`
	Worktree *areaAttributes `json:"worktree"`
	Home     *areaAttributes `json:"home,omitempty"`
}

// areaAttributes are the attributes of one tree. Permission bits are octal. Those
// that are most common for a kind of entry are given once; Modes lists the others
// by path.
type areaAttributes struct {
	File    string            `json:"file"`
	Exec    string            `json:"exec"`
	Dir     string            `json:"dir"`
	Object  string            `json:"object"` // files in an object store of git
	Modes   map[string]string `json:"modes,omitempty"`
	Empty   []string          `json:"empty,omitempty"`
	Skipped []Skipped         `json:"skipped,omitempty"`
	// Pipes has the permission bits of the named pipes, which are in Skipped as well, by
	// path. Earlier versions of the daemon did not write it.
	Pipes map[string]string `json:"pipes"`
}

// Kinds of entries, each with common permission bits.
const (
	kindFile = iota
	kindExec
	kindDir
	kindObject
	kinds
)

var ordinaryPerm = [kinds]uint32{0o644, 0o755, 0o755, 0o444}

func kindOf(e *entry, inStore bool) int {
	switch {
	case e.dir != nil:
		return kindDir
	case inStore:
		return kindObject
	case e.mode == modeExec:
		return kindExec
	}
	return kindFile
}

// inObjectStore reports whether a path of a real tree is in the object store of a
// repository.
func inObjectStore(path string) bool {
	_, rel, ok := strings.Cut("/"+path, "/"+gitName+"/")
	return ok && inStore(rel)
}

// attributesOf collects the attributes of a scanned tree.
func attributesOf(root *dir, p *pristine) *areaAttributes {
	var count [kinds]map[uint32]int
	for k := range count {
		count[k] = map[uint32]int{ordinaryPerm[k]: 0}
	}
	eachReal(root, "", p, func(_ string, e *entry, kind int) {
		if e.mode != modeLink {
			count[kind][e.perm]++
		}
	})
	var common [kinds]uint32
	for k := range count {
		common[k] = ordinaryPerm[k]
		for perm, n := range count[k] {
			if best := count[k][common[k]]; n > best || (n == best && perm < common[k]) {
				common[k] = perm
			}
		}
	}
	a := &areaAttributes{
		File: octal(common[kindFile]), Exec: octal(common[kindExec]), Dir: octal(common[kindDir]), Object: octal(common[kindObject]),
		Modes: map[string]string{}, Pipes: map[string]string{},
	}
	eachReal(root, "", p, func(parent string, e *entry, kind int) {
		if e.mode != modeLink && e.perm != common[kind] {
			a.Modes[gitpath.Quote(joinPath(parent, e.name))] = octal(e.perm)
		}
	})
	a.Empty = emptyFolders(root, "", p, nil)
	a.Skipped = skippedIn(root, "")
	a.listPipes(root, "")
	return a
}

// listPipes lists the named pipes below d, except in object stores, where a restore writes
// the origin's objects whatever the checkpoint has there.
func (a *areaAttributes) listPipes(d *dir, path string) {
	for i := range d.entries {
		e := &d.entries[i]
		full := joinPath(path, e.name)
		switch {
		case e.isPipe() && !e.gone && !inObjectStore(full):
			a.Pipes[gitpath.Quote(full)] = octal(e.perm)
		case e.dir != nil && e.skip == "":
			a.listPipes(e.dir, full)
		}
	}
}

// eachReal calls f for every entry that a checkpoint contains, folders included, with
// the path of its parent folder and its kind.
func eachReal(d *dir, path string, p *pristine, f func(parent string, e *entry, kind int)) {
	if d == nil {
		return
	}
	store := inObjectStore(path + "/")
	for i := range d.entries {
		e := &d.entries[i]
		if e.gone || e.skip != "" || (store && p.holds(joinPath(path, e.name), e.oid)) {
			continue
		}
		if e.dir == nil || !e.dir.partial {
			f(path, e, kindOf(e, store))
		}
		if e.dir != nil {
			eachReal(e.dir, joinPath(path, e.name), p, f)
		}
	}
}

// emptyFolders appends to list the folders without a captured file below them.
func emptyFolders(d *dir, path string, p *pristine, list []string) []string {
	for i := range d.entries {
		e := &d.entries[i]
		if e.dir == nil || e.skip != "" || e.gone {
			continue
		}
		full := joinPath(path, e.name)
		before := len(list)
		list = emptyFolders(e.dir, full, p, list)
		if len(list) == before && !e.dir.partial && !impliesFolder(e.dir, full, p) {
			list = append(list, gitpath.Quote(full))
		}
	}
	return list
}

// impliesFolder reports whether a file in d, at any depth, is captured.
func impliesFolder(d *dir, path string, p *pristine) bool {
	for i := range d.entries {
		e := &d.entries[i]
		if e.skip != "" || e.gone {
			continue
		}
		if e.dir != nil {
			if impliesFolder(e.dir, joinPath(path, e.name), p) {
				return true
			}
		} else if p == nil || !p.holds(joinPath(path, e.name), e.oid) {
			return true
		}
	}
	return false
}

// skippedIn lists the skipped files below d.
func skippedIn(d *dir, path string) []Skipped {
	var list []Skipped
	for i := range d.entries {
		e := &d.entries[i]
		switch {
		case e.skip != "":
			if e.skip != skipExcluded && e.skip != skipTransient {
				list = append(list, Skipped{Path: gitpath.Quote(joinPath(path, e.name)), Reason: e.skip, Bytes: e.stat.size})
			}
		case e.dir != nil:
			list = append(list, skippedIn(e.dir, joinPath(path, e.name))...)
		}
	}
	return list
}

func octal(perm uint32) string { return fmt.Sprintf("%04o", perm) }

// apply adds the permission bits, empty folders and named pipes to a tree that was read
// from commits.
func (a *areaAttributes) apply(root *dir) error {
	if a == nil {
		return nil
	}
	for _, quoted := range a.Empty {
		path, err := gitpath.Unquote(quoted)
		if err != nil || !validPath(path) {
			return fmt.Errorf("%s lists %q, which is not a path", stateEntries, quoted)
		}
		root.hiddenFolder(path)
	}
	if err := a.addPipes(root); err != nil {
		return err
	}
	var common [kinds]uint32
	for k, text := range []string{a.File, a.Exec, a.Dir, a.Object} {
		perm, err := parsePerm(text)
		if err != nil {
			return err
		}
		common[k] = perm
	}
	eachReal(root, "", nil, func(_ string, e *entry, kind int) {
		if e.mode != modeLink {
			e.perm = common[kind]
		}
	})
	for quoted, text := range a.Modes {
		path, err := gitpath.Unquote(quoted)
		if err != nil {
			return err
		}
		perm, err := parsePerm(text)
		if err != nil {
			return err
		}
		if e := root.lookup(path); e != nil {
			e.perm = perm
		}
	}
	return nil
}

// addPipes adds the named pipes to a tree that was read from commits.
func (a *areaAttributes) addPipes(root *dir) error {
	for quoted, text := range a.Pipes {
		path, err := gitpath.Unquote(quoted)
		if err != nil || !validPath(path) {
			return fmt.Errorf("%s lists %q, which is not a path", stateEntries, quoted)
		}
		perm, err := parsePerm(text)
		if err != nil {
			return err
		}
		parent, name := splitPath(path)
		root.hiddenFolder(parent).put(entry{name: name, perm: perm, hidden: gitRefuses(name, false), skip: SkipFifo})
	}
	return nil
}

// hiddenFolder returns the folder at path, creating it if it does not exist and marking
// names that git rejects as hidden.
func (d *dir) hiddenFolder(path string) *dir {
	if path == "" {
		return d
	}
	name, rest, _ := strings.Cut(path, "/")
	e := d.find(name)
	if e == nil || e.dir == nil {
		e = d.put(entry{name: name, mode: modeDir, perm: 0o755, dir: &dir{}, hidden: gitRefuses(name, false)})
	}
	return e.dir.hiddenFolder(rest)
}

func validPath(path string) bool {
	return path != "" && !slices.ContainsFunc(strings.Split(path, "/"), func(name string) bool { return !validName(name) })
}

func parsePerm(text string) (uint32, error) {
	perm, err := strconv.ParseUint(text, 8, 32)
	if err != nil || perm > 0o7777 {
		return 0, fmt.Errorf("%s has the permission bits %q, which are not octal digits", stateEntries, text)
	}
	return uint32(perm), nil
}

// encodeJSON encodes v deterministically: equal values give equal bytes.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	err := enc.Encode(v)
	return b.Bytes(), err
}

// sortSkipped orders skipped files by path.
func sortSkipped(list []Skipped) {
	slices.SortFunc(list, func(a, b Skipped) int { return cmp.Compare(a.Path, b.Path) })
}
