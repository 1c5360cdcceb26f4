// Package gitdiff reads what git diff-tree prints: the list of files that differ, how many
// lines of each, and their patches. It runs no git, keeps no more of a patch than it is told
// to, and takes any path and any content for data: nothing in them is mistaken for the end
// of a record.
package gitdiff

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Entry is one file that differs.
type Entry struct {
	// Status is git's letter: A (added), D (deleted), M (modified), T (its type changed),
	// R (renamed).
	Status byte
	// OldMode and NewMode are six octal digits, OldID and NewID object ids; zeroes where
	// the file does not exist.
	OldMode, NewMode string
	OldID, NewID     string
	// OldPath is the former path of a renamed file, and Path otherwise.
	OldPath, Path string
	// Counted is true once Counts has set Added and Removed, the numbers of lines. Both are
	// 0 for a binary file.
	Counted        bool
	Added, Removed int64
	Binary         bool
}

// Sections returns how many sections the patch of the file has: a file whose type changes is
// deleted, and added again.
func (e Entry) Sections() int {
	if e.Status == 'T' {
		return 2
	}
	return 1
}

// Each reads the records of diff-tree -r -z --raw --abbrev=40, and calls use with each. It
// stops before the output of another format, whose separator it consumes, or at an error.
func Each(in *bufio.Reader, use func(Entry) error) error {
	for {
		switch next, err := in.Peek(1); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case next[0] == 0:
			_, err := in.Discard(1)
			return err
		case next[0] != ':':
			return nil
		}
		e, err := readEntry(in)
		if err != nil {
			return err
		}
		if err := use(e); err != nil {
			return err
		}
	}
}

// readEntry reads ":oldmode newmode oldid newid status", and one or two paths.
func readEntry(in *bufio.Reader) (Entry, error) {
	head, err := field(in)
	if err != nil {
		return Entry{}, err
	}
	f := strings.Fields(strings.TrimPrefix(head, ":"))
	if len(f) != 5 {
		return Entry{}, fmt.Errorf("git printed %q instead of a changed file", head)
	}
	e := Entry{OldMode: f[0], NewMode: f[1], OldID: f[2], NewID: f[3], Status: f[4][0]}
	if e.OldPath, err = field(in); err != nil {
		return Entry{}, err
	}
	e.Path = e.OldPath
	if e.Status == 'R' {
		e.Path, err = field(in)
	}
	return e, err
}

// Counts reads the records of diff-tree -z --numstat, which follow those of --raw, into the
// same files in the same order.
func Counts(in *bufio.Reader, entries []Entry) error {
	for i := range entries {
		e := &entries[i]
		record, err := field(in)
		if err != nil {
			return err
		}
		added, rest, _ := strings.Cut(record, "\t")
		removed, path, found := strings.Cut(rest, "\t")
		if path == "" && found { // a renamed file
			if _, err := field(in); err != nil {
				return err
			}
			if path, err = field(in); err != nil {
				return err
			}
		}
		if path != e.Path {
			return fmt.Errorf("git counted the lines of %q instead of %q", path, e.Path)
		}
		e.Counted = true
		if added == "-" {
			e.Binary = true
			continue
		}
		if e.Added, err = strconv.ParseInt(added, 10, 64); err != nil {
			return fmt.Errorf("git printed %q instead of a number of lines", record)
		}
		if e.Removed, err = strconv.ParseInt(removed, 10, 64); err != nil {
			return fmt.Errorf("git printed %q instead of a number of lines", record)
		}
	}
	return nil
}

// maxField is the longest record that is accepted; a path in a git tree may be longer than
// one that a file system takes.
const maxField = 64 << 10

// field reads up to the next NUL.
func field(in *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		part, err := in.ReadSlice(0)
		b.Write(part)
		switch {
		case err == nil:
			return b.String()[:b.Len()-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return "", fmt.Errorf("git's list of changed files ends early: %w", noEOF(err))
		case b.Len() > maxField:
			return "", errors.New("git's list of changed files has a path that is too long")
		}
	}
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
