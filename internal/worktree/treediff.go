package worktree

// treeChange is one path that differs between two trees: a file, a link or a
// submodule that is not checked out. Replacing a folder by a file, or the reverse,
// is several changes.
type treeChange struct {
	path     string
	old, new *entry
}

// diffTrees lists the differences between the stored entries of two trees, in the
// order of their names. An empty folder of new becomes a submodule if old has a
// submodule there that is not checked out.
func diffTrees(old, new *dir) []treeChange {
	var d treeDiffer
	d.folders(old, new, "")
	return d.changes
}

type treeDiffer struct{ changes []treeChange }

// folders compares two folders, either of which may be nil.
func (t *treeDiffer) folders(old, new *dir, path string) {
	var a, b []entry
	if old != nil {
		a = old.entries
	}
	if new != nil {
		b = new.entries
	}
	for len(a) > 0 || len(b) > 0 {
		var x, y *entry
		switch {
		case len(b) == 0 || (len(a) > 0 && a[0].name < b[0].name):
			x, a = &a[0], a[1:]
		case len(a) == 0 || b[0].name < a[0].name:
			y, b = &b[0], b[1:]
		default:
			x, y, a, b = &a[0], &b[0], a[1:], b[1:]
		}
		if x != nil && !x.stored() {
			x = nil
		}
		if y != nil && !y.stored() {
			y = nil
		}
		t.entries(x, y, path)
	}
}

// entries compares the old entry x with the new entry y; either may be nil.
func (t *treeDiffer) entries(x, y *entry, path string) {
	if x == nil && y == nil {
		return
	}
	if x != nil && y != nil && x.isSubmodule() && y.dir != nil && !y.dir.hasStored() {
		y.link = x.link
		return
	}
	if y != nil && y.dir != nil && (x == nil || !x.isSubmodule()) && !y.isSubmodule() {
		y.link = noOID
	}
	var oldDir, newDir *dir
	var oldFile, newFile *entry
	if x != nil {
		if oldDir = x.dir; oldDir == nil || x.isSubmodule() {
			oldDir, oldFile = nil, x
		}
	}
	if y != nil {
		if newDir = y.dir; newDir == nil || y.isSubmodule() {
			newDir, newFile = nil, y
		}
	}
	name := pick(x, y).name
	if oldFile != nil || newFile != nil {
		if oldFile == nil || newFile == nil || !sameContent(oldFile, newFile) {
			t.changes = append(t.changes, treeChange{path: joinPath(path, name), old: oldFile, new: newFile})
		}
	}
	if oldDir != nil || newDir != nil {
		t.folders(oldDir, newDir, joinPath(path, name))
	}
}

// pick returns the first of two entries that is not nil.
func pick(x, y *entry) *entry {
	if x != nil {
		return x
	}
	return y
}

// sameContent reports whether two entries that are not folders are equal for git.
func sameContent(a, b *entry) bool {
	return a.gitMode() == b.gitMode() && a.gitOID() == b.gitOID()
}

// gitMode returns the mode in a git tree of an entry that is not a folder.
func (e *entry) gitMode() uint32 {
	if e.dir != nil {
		return modeSub
	}
	return e.mode
}

// gitOID returns the object id in a git tree of an entry that is not a folder.
func (e *entry) gitOID() oid {
	if e.dir != nil {
		return e.link
	}
	return e.oid
}
