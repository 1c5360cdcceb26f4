package worktree

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/clew-dev/clew/internal/gitdiff"
	"github.com/clew-dev/clew/internal/gitpath"
	"github.com/clew-dev/clew/internal/pathmatch"
)

// maxProtected is the number of protected files that a ProtectedError names.
const maxProtected = 10

// fetchedRef is the local ref of what the ref has that is pushed to.
const fetchedRef = "refs/clew-origin/published"

// ProtectedError is the error of a push that would change protected files. It is the cause of
// an error with the reason Protected.
type ProtectedError struct {
	// Paths are the first of them, in order.
	Paths []string
	// Count is how many there are.
	Count int
}

func (e *ProtectedError) Error() string { return fmt.Sprintf("%d protected files change", e.Count) }

// checkProtected fails if the commit changes protected files: since it left the history of
// what the task started from, or compared with the commit at, which the ref has. So it also
// finds what a merge or a push takes back of the changes of others.
func (c *pushing) checkProtected(at string) error {
	if len(c.push.ProtectedPaths) == 0 {
		return nil
	}
	selected, err := pathmatch.New(c.push.ProtectedPaths)
	if err != nil {
		return failIO(err, "read the protected paths")
	}
	base, err := c.r.mergeBase(c.ctx, c.push.Base, c.push.Commit)
	if err != nil {
		return err
	}
	found := map[string]bool{}
	if err := c.findProtected(base, selected, found); err != nil {
		return err
	}
	if at != "" {
		if err := c.have(at); err != nil {
			return err
		}
		if err := c.findProtected(at, selected, found); err != nil {
			return err
		}
	}
	if len(found) == 0 {
		return nil
	}
	paths := slices.Sorted(maps.Keys(found))
	return fail(Protected, &ProtectedError{Paths: paths[:min(len(paths), maxProtected)], Count: len(paths)},
		"%d files that are protected would change in %s of %s", len(paths), c.push.Ref, c.url)
}

// findProtected adds the protected files in which a tree differs from that of the commit. A
// file that takes the place of a folder which a pattern names counts as well, and so does a
// link or a submodule wherever a pattern may lead through it.
func (c *pushing) findProtected(from string, selected pathmatch.Set, found map[string]bool) error {
	out, err := c.r.git(c.ctx, gitCall{args: []string{"diff-tree", "-r", "-z", "--raw", "--abbrev=40", "--no-renames", "--end-of-options", from, c.push.Commit + "^{tree}"}})
	if err != nil {
		return c.r.failCorrupt(err, "compare %s with %s", c.push.Commit, from)
	}
	err = gitdiff.Each(bufio.NewReader(bytes.NewReader(out)), func(e gitdiff.Entry) error {
		if selected.Match(e.Path) || c.leadsTo(selected, e) {
			found[gitpath.Quote(e.Path)] = true
		}
		return nil
	})
	return failIO(err, "compare %s with %s", c.push.Commit, from)
}

// leadsTo reports whether an entry takes the place of a folder in which a pattern selects
// something.
func (c *pushing) leadsTo(selected pathmatch.Set, e gitdiff.Entry) bool {
	switch e.NewMode {
	case "000000": // deleted
		return false
	case "120000", "160000": // a link or a submodule
		return selected.LeadsTo(e.Path)
	}
	return slices.ContainsFunc(c.push.ProtectedPaths, func(p string) bool { return strings.HasPrefix(p, e.Path+"/") })
}

// have fetches the commit that the ref has, unless it is here. It returns errMoved if the ref
// has another one by now.
func (c *pushing) have(at string) error {
	if _, err := c.r.resolve(c.ctx, at); ReasonOf(err) != CheckpointNotFound {
		return err
	}
	_, _, err := c.run("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--end-of-options", c.url, "+"+c.push.Ref+":"+fetchedRef)
	if err != nil && ReasonOf(err) != RefNotFound {
		return err
	}
	if _, err = c.r.resolve(c.ctx, at); ReasonOf(err) == CheckpointNotFound {
		return errMoved
	}
	return err
}
