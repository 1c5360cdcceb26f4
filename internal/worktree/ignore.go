package worktree

import "github.com/clew-dev/clew/internal/gitignore"

// rules adds the patterns of the ignore file e in the folder base to the outer
// ones. If below is set, e is a folder and the file is at that path in it.
func (d *dirtyFinder) rules(base string, e *entry, below string, outer *gitignore.Rules) *gitignore.Rules {
	if e == nil || e.skip != "" || (e.dir != nil) != (below != "") {
		return outer
	}
	text := e.data
	if text == nil {
		var err error
		if text, err = d.work.readFile(joinPath(joinPath(base, e.name), below), gitignore.MaxBytes); err != nil {
			return outer
		}
	}
	return outer.With(base, gitignore.Parse(text))
}
