package gitstore

import (
	"bufio"
	"errors"

	"github.com/clew-dev/clew/internal/gitdiff"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// fileKey identifies a file of a difference.
type fileKey struct{ oldPath, path string }

func keyOf(e gitdiff.Entry) fileKey { return fileKey{e.OldPath, e.Path} }

// addContent adds the content of the files in the given form. It returns fewer files if the
// page becomes too large, but at least one.
func (d *differ) addContent(entries []gitdiff.Entry, files []gitstoreapi.DiffFile, format gitstoreapi.DiffFormat) ([]gitstoreapi.DiffFile, error) {
	wanted := map[fileKey]int{}
	for i, e := range entries {
		if size := max(files[i].OldBytes, files[i].NewBytes); size > maxContentBytes {
			files[i].Cut = size
		} else {
			wanted[keyOf(e)] = i
		}
	}
	done := make([]bool, len(files))
	add := func(i int, text []byte, size int64) error {
		done[i] = true
		return setContent(&files[i], text, size, format)
	}
	if err := d.patches(entries, wanted, add); err != nil {
		return nil, err
	}
	for i, e := range entries {
		if _, ok := wanted[keyOf(e)]; !ok || done[i] {
			continue
		}
		if d.full && i > 0 {
			return files[:i], nil
		}
		// Among the files of one page git may pair renamed files otherwise than among all.
		if err := d.patches([]gitdiff.Entry{e}, map[fileKey]int{keyOf(e): i}, add); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// setContent sets the content of a file. A patch that was left out has a size only.
func setContent(f *gitstoreapi.DiffFile, patch []byte, size int64, format gitstoreapi.DiffFormat) error {
	switch {
	case int64(len(patch)) != size:
		f.Cut = size
	case format == gitstoreapi.DiffPatch:
		f.Patch = patch
	default:
		hunks, err := gitdiff.Hunks(patch)
		if err != nil {
			return err
		}
		for _, h := range hunks {
			f.Hunks = append(f.Hunks, gitstoreapi.DiffHunk(h))
		}
	}
	return nil
}

// patches makes git print the patches of the entries, and passes those that are wanted to
// add. It sets d.full if it ended early because they exceed the size of a page.
func (d *differ) patches(entries []gitdiff.Entry, wanted map[fileKey]int, add func(i int, text []byte, size int64) error) error {
	args := append([]string{"--raw", "--patch", "--binary", "--full-index", "--unified=3"}, d.renameArgs()...)
	if len(entries) == 1 && d.renames {
		args = append(args, "--find-renames=1%") // they are known to be a pair
	}
	args = append(args, "--end-of-options", d.from, d.to, "--")
	asked := 0
	for _, e := range entries {
		if _, ok := wanted[keyOf(e)]; !ok {
			continue
		}
		asked++
		if args = append(args, e.Path); e.OldPath != e.Path {
			args = append(args, e.OldPath)
		}
	}
	if asked == 0 {
		return nil
	}
	var total int64
	err := d.diffTree(func(in *bufio.Reader) error {
		var listed []gitdiff.Entry
		if err := gitdiff.Each(in, func(e gitdiff.Entry) error { listed = append(listed, e); return nil }); err != nil {
			return err
		}
		return gitdiff.Patches(in, listed, maxPatchBytes, func(n int, text []byte, size int64) error {
			i, ok := wanted[keyOf(listed[n])]
			if !ok {
				return nil // a folder took the place of a file, or the other way around
			}
			if total += int64(len(text)); total > maxPageBytes && total > int64(len(text)) {
				return errPageFull
			}
			return add(i, text, size)
		})
	}, args...)
	if errors.Is(err, errPageFull) {
		d.full = true
		return nil
	}
	return err
}
