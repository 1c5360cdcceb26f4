package worktree

import (
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/gitpath"
)

// expandPaths replaces each pattern in paths by the paths that it matches; a path
// without a pattern is kept. names lists the names in a folder, or only those of
// folders, and returns none for a folder that does not exist.
func expandPaths(paths []string, names func(folder string, folders bool) ([]string, error)) ([]string, error) {
	var out []string
	for _, p := range paths {
		found, err := expandPath("", p, names)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// expandPath is expandPaths for one path below folder.
func expandPath(folder, pattern string, names func(string, bool) ([]string, error)) ([]string, error) {
	if !strings.ContainsAny(pattern, `*?[\`) {
		return []string{joinPath(folder, pattern)}, nil
	}
	first, rest, more := strings.Cut(pattern, "/")
	matching := []string{first}
	if strings.ContainsAny(first, `*?[\`) {
		all, err := names(folder, more)
		if err != nil {
			return nil, err
		}
		matching = slices.DeleteFunc(all, func(name string) bool {
			ok, err := path.Match(first, name)
			return !ok || err != nil
		})
	}
	var out []string
	for _, name := range matching {
		full := joinPath(folder, name)
		if !more {
			out = append(out, full)
			continue
		}
		below, err := expandPath(full, rest, names)
		if err != nil {
			return nil, err
		}
		out = append(out, below...)
	}
	return out, nil
}

// names lists the names in a folder below b, or only those of folders. It returns
// none if the folder does not exist or cannot be read.
func (b *beneath) names(folder string, folders bool) ([]string, error) {
	fd, err := b.openFolder(folder)
	if vanished(err) || skipFor(err) != "" {
		return nil, nil
	}
	if err != nil {
		return nil, failIO(err, "list %s in %s", gitpath.Quote(folder), b.path)
	}
	f := os.NewFile(uintptr(fd), folder)
	defer f.Close()
	all, err := f.Readdirnames(-1)
	if err != nil {
		return nil, failIO(err, "list %s in %s", gitpath.Quote(folder), b.path)
	}
	if !folders {
		return all, nil
	}
	return slices.DeleteFunc(all, func(name string) bool {
		st, err := b.lstat(joinPath(folder, name))
		return err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR
	}), nil
}

// names lists the names in a folder of a tree, or only those of folders. It returns
// none if the folder does not exist.
func (d *dir) names(folder string, folders bool) ([]string, error) {
	if folder != "" {
		e := d.lookup(folder)
		if e == nil {
			return nil, nil
		}
		d = e.dir
	}
	if d == nil {
		return nil, nil
	}
	var out []string
	for i := range d.entries {
		if d.entries[i].dir != nil || !folders {
			out = append(out, d.entries[i].name)
		}
	}
	return out, nil
}
