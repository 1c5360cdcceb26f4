package worktree

import (
	"encoding/json"
	"slices"

	"github.com/clew-dev/clew/internal/gitpath"
)

// commitState sends the state tree to git and commits it: the agent's repository
// and session state as data, and the attributes of the worktree that git does not
// store.
func (t *taking) commitState() {
	r, im := t.r, t.im
	view := stateView(t.snap, r.pristine)
	changes := diffTrees(t.stateBase, view)
	for i := range changes {
		if needsContent(&changes[i]) {
			t.sendState(&changes[i])
		}
	}
	entries := t.describe(view)
	im.commit(t.state, 2, t.req.Time, t.req.Message)
	im.printf("from %s\n", r.pristine.Commit)
	if t.stateBase == nil {
		im.printf("deleteall\n")
	} else {
		im.modify(modeDir, r.base.stateTree, "")
	}
	t.write(changes)
	im.modify(modeFile, entries, stateEntries)
	im.modify(modeFile, t.meta, stateMeta)
	im.endCommit()
	t.stateTree = im.treeOf(2)
	t.result.State = im.markOf(2).String()
}

// sendState sends a file of the state tree from its real path.
func (t *taking) sendState(c *treeChange) {
	path, home, err := realPath(c.path)
	if err != nil {
		t.err = failIO(err, "read %s", gitpath.Quote(c.path))
		return
	}
	root := t.r.cfg.Worktree
	if home {
		root = t.r.cfg.Home
	}
	t.send(c.new, path, root)
}

// describe sends entries.json and meta.json and fills in the rest of the result. It
// returns the blob of entries.json.
func (t *taking) describe(view *dir) (entries oid) {
	r, res := t.r, &t.result
	attrs := attributes{Version: 1, Worktree: attributesOf(t.snap.work, r.pristine)}
	skipped := attrs.Worktree.Skipped
	if t.snap.home != nil {
		attrs.Home = attributesOf(t.snap.home, nil)
		for _, s := range attrs.Home.Skipped {
			s.Path = gitpath.Quote(joinPath(r.cfg.Home, mustUnquote(s.Path)))
			skipped = append(slices.Clip(skipped), s)
		}
	}
	for i := range skipped {
		skipped[i].Path = r.cfg.withoutSecrets(skipped[i].Path)
	}
	sortSkipped(skipped)
	t.snap.work.walkFiles("", func(_ string, e *entry) {
		res.TotalFiles++
		res.TotalBytes += e.stat.size
	})
	view.walkFiles("", func(string, *entry) { res.StateFiles++ })
	res.SkippedCount, res.Skipped = len(skipped), head(skipped, r.cfg.MaxListed)
	res.Agent.Dirty, res.Agent.DirtyCount = t.dirtyFiles()
	m := Meta{
		Version: 1, Number: t.req.Number, Code: res.Code, Tree: res.Tree, Parent: res.Parent,
		FilesChanged: res.FilesChanged, LinesAdded: res.LinesAdded, LinesRemoved: res.LinesRemoved,
		Agent: res.Agent, Origin: r.pristine.Origin,
		Skipped: res.Skipped, SkippedCount: res.SkippedCount, TotalFiles: res.TotalFiles, TotalBytes: res.TotalBytes,
		Annotations: t.req.Annotations,
	}
	t.meta = t.sendJSON(m)
	return t.sendJSON(attrs)
}

func (t *taking) sendJSON(v any) oid {
	text, err := encodeJSON(v)
	if err != nil && t.err == nil {
		t.err = failIO(err, "describe checkpoint %d", t.req.Number)
	}
	return t.im.blob(text)
}

// head returns at most the first n elements of list.
func head[T any](list []T, n int) []T { return list[:min(len(list), n)] }

// mustUnquote reverses gitpath.Quote for a path that gitpath.Quote returned.
func mustUnquote(path string) string {
	if raw, err := gitpath.Unquote(path); err == nil {
		return raw
	}
	return path
}

// count fills in the changes of the result. Lines are counted only in the files that
// are listed.
func (t *taking) count(changes []treeChange) {
	res := &t.result
	var listed []treeChange
	for _, c := range changes {
		if c.new != nil && c.new.gone {
			c.new = nil
		}
		if c.new == nil && c.old == nil {
			continue
		}
		res.FilesChanged++
		if len(listed) < t.r.cfg.MaxListed {
			listed = append(listed, c)
			res.Files = append(res.Files, describeChange(&c))
		}
	}
	t.countLines(listed)
	for i := range res.Files {
		f := &res.Files[i]
		if f.Binary {
			res.BinaryFiles++
		}
		res.LinesAdded += f.Added
		res.LinesRemoved += f.Removed
	}
	sortChanges(res.Files)
}

// countLines counts the changed lines of the listed changes, except in large files.
// Content that is not in memory is requested from git: new content up to keepBytes
// in total.
func (t *taking) countLines(listed []treeChange) {
	var requests []blobRequest
	var ids []oid
	budget := int64(keepBytes)
	for i := range listed {
		c := &listed[i]
		if !countable(c) {
			continue
		}
		fresh := c.new == nil || c.new.dir != nil || c.new.data != nil || c.new.oid == emptyBlob
		if !fresh {
			if budget -= c.new.stat.size; budget < 0 {
				continue
			}
			requests, ids = append(requests, blobRequest{i, false}), append(ids, c.new.oid)
		}
		if c.old != nil && c.old.dir == nil {
			requests, ids = append(requests, blobRequest{i, true}), append(ids, c.old.oid)
		} else if fresh {
			t.result.Files[i].countLines(nil, c.newContent())
		}
	}
	var content []byte // of the last new side received
	t.im.catBlobs(ids, maxCountedBytes, func(n int, answer []byte) {
		a := requests[n]
		c := &listed[a.change]
		if !a.old {
			if content = answer; answer != nil && (c.old == nil || c.old.dir != nil) {
				t.result.Files[a.change].countLines(nil, answer)
			}
			return
		}
		if n == 0 || requests[n-1].change != a.change {
			content = c.newContent()
		} else if content == nil {
			return
		}
		if answer != nil {
			t.result.Files[a.change].countLines(answer, content)
		}
	})
}

// blobRequest is one side of a change whose content is requested from git.
type blobRequest struct {
	change int
	old    bool
}

// countable reports whether the content of a change differs and is small enough for its
// lines to be counted.
func countable(c *treeChange) bool {
	if c.old != nil && c.new != nil && c.old.gitOID() == c.new.gitOID() {
		return false
	}
	for _, e := range []*entry{c.old, c.new} {
		if e != nil && e.dir == nil && max(e.stat.size, int64(len(e.data))) > maxCountedBytes {
			return false
		}
	}
	return true
}

func (c *treeChange) newContent() []byte {
	if c.new == nil {
		return nil
	}
	return c.new.data
}

// countLines sets the counts of f from the old and new content.
func (f *FileChange) countLines(old, new []byte) {
	if isBinary(old) || isBinary(new) {
		f.Binary = true
		return
	}
	f.Added, f.Removed = countLines(old, new)
}

// describeChange converts a change, without line counts.
func describeChange(c *treeChange) FileChange {
	f := FileChange{Path: gitpath.Quote(c.path), Action: Modified}
	switch {
	case c.old == nil:
		f.Action = Added
	case c.new == nil:
		f.Action = Deleted
	}
	side := c.new
	if side == nil {
		side = c.old
	}
	f.Mode = modeText(side.gitMode())
	return f
}

// modeText formats a mode as six octal digits.
func modeText(mode uint32) string {
	const digits = "01234567"
	var b [6]byte
	for i := range b {
		b[i] = digits[mode>>(15-3*i)&7]
	}
	return string(b[:])
}

// parseMeta parses a meta.json.
func parseMeta(text []byte) (Meta, error) {
	var m Meta
	err := json.Unmarshal(text, &m)
	return m, err
}
