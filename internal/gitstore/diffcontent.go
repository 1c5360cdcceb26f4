package gitstore

import (
	"bufio"
	"bytes"
	"errors"

	"github.com/clew-dev/clew/internal/gitdiff"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// content is the patch of a file; text is nil if it is too large, with its size.
type content struct {
	text []byte
	size int64
}

// addContent adds the content of the files in the given form. It returns fewer files if the
// page becomes too large, but at least one.
func (d *differ) addContent(entries []gitdiff.Entry, files []gitstoreapi.DiffFile, format gitstoreapi.DiffFormat) ([]gitstoreapi.DiffFile, error) {
	var renamed, others []gitdiff.Entry
	for i, e := range entries {
		switch size := max(files[i].OldBytes, files[i].NewBytes); {
		case size > maxContentBytes:
			files[i].Cut = size
		case e.Status == 'R':
			renamed = append(renamed, e)
		default:
			others = append(others, e)
		}
	}
	found, err := d.contents(others, renamed)
	if err != nil {
		return nil, err
	}
	total := 0
	for i, e := range entries {
		if files[i].Cut > 0 {
			continue
		}
		c, ok := found[keyOf(e)]
		if total += len(c.text); i > 0 && (!ok || total > maxPageBytes) {
			return files[:i], nil
		}
		if err := setContent(&files[i], c, format); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// fileKey identifies a file of a difference.
type fileKey struct{ oldPath, path string }

func keyOf(e gitdiff.Entry) fileKey { return fileKey{e.OldPath, e.Path} }

// contents returns the patches of files, in three runs of git at most. Of each run it keeps as
// much as a page may have.
func (d *differ) contents(others, renamed []gitdiff.Entry) (map[fileKey]content, error) {
	found, err := d.patches(others, "--no-renames")
	if err != nil {
		return nil, err
	}
	pairs, err := d.patches(renamed, "--find-renames", "-l0")
	if err != nil {
		return nil, err
	}
	// Among the files of one page git may pair renamed files otherwise than among all. The
	// file is then deleted and added again.
	var apart []gitdiff.Entry
	for _, e := range renamed {
		if c, ok := pairs[keyOf(e)]; ok {
			found[keyOf(e)] = c
			continue
		}
		apart = append(apart, gitdiff.Entry{Path: e.OldPath, OldPath: e.OldPath}, gitdiff.Entry{Path: e.Path, OldPath: e.Path})
	}
	sides, err := d.patches(apart, "--no-renames")
	for i := 0; i+1 < len(apart); i += 2 {
		before, ok1 := sides[keyOf(apart[i])]
		after, ok2 := sides[keyOf(apart[i+1])]
		if ok1 && ok2 {
			found[fileKey{apart[i].Path, apart[i+1].Path}] = content{append(before.text[:len(before.text):len(before.text)], after.text...), before.size + after.size}
		}
	}
	return found, err
}

// patches returns the patches that git prints for the entries, up to the size of a page.
func (d *differ) patches(entries []gitdiff.Entry, how ...string) (map[fileKey]content, error) {
	found := map[fileKey]content{}
	if len(entries) == 0 {
		return found, nil
	}
	args := append([]string{"--raw", "--patch", "--binary", "--full-index", "--unified=3"}, how...)
	args = append(args, "--end-of-options", d.from, d.to, "--")
	for _, e := range entries {
		if args = append(args, e.Path); e.OldPath != e.Path {
			args = append(args, e.OldPath)
		}
	}
	total := 0
	err := d.diffTree(func(in *bufio.Reader) error {
		var listed []gitdiff.Entry
		if err := gitdiff.Each(in, func(e gitdiff.Entry) error { listed = append(listed, e); return nil }); err != nil {
			return err
		}
		return gitdiff.Patches(in, listed, maxPatchBytes, func(n int, text []byte, size int64) error {
			if total += len(text); total > maxPageBytes && len(found) > 0 {
				return errEnough
			}
			found[keyOf(listed[n])] = content{text, size}
			return nil
		})
	}, args...)
	if errors.Is(err, errEnough) {
		err = nil
	}
	return found, err
}

// setContent sets the content of a file.
func setContent(f *gitstoreapi.DiffFile, c content, format gitstoreapi.DiffFormat) error {
	switch {
	case int64(len(c.text)) != c.size, format == gitstoreapi.DiffHunks && bytes.Count(c.text, []byte("\n")) > maxHunkLines:
		f.Cut = c.size
	case format == gitstoreapi.DiffPatch:
		f.Patch = c.text
	default:
		hunks, err := gitdiff.Hunks(c.text)
		if err != nil {
			return err
		}
		for _, h := range hunks {
			f.Hunks = append(f.Hunks, gitstoreapi.DiffHunk(h))
		}
	}
	return nil
}
