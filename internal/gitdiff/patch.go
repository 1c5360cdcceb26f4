package gitdiff

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// sectionStart begins each section of a patch. No line of a section does: lines of content
// begin with a space, +, - or a backslash, and those of a binary patch contain no space.
var sectionStart = []byte("diff --git ")

// Patches reads the patches of the files, in their order, from the output of diff-tree -p,
// and calls use with each. A patch of more than limit bytes is not kept: text is then nil
// and size its length. Patches stops at an error of use.
func Patches(in *bufio.Reader, entries []Entry, limit int, use func(i int, text []byte, size int64) error) error {
	r := patchReader{in: in, limit: limit}
	if err := r.next(); err != nil {
		return err
	}
	for i, e := range entries {
		text, size, err := r.sections(e.Sections())
		if err != nil {
			return fmt.Errorf("the patch of %q: %w", e.Path, err)
		}
		if err := use(i, text, size); err != nil {
			return err
		}
	}
	if !r.atEnd {
		return errors.New("git's patch has more files than its list")
	}
	return nil
}

// patchReader reads a patch line by line, one part ahead.
type patchReader struct {
	in    *bufio.Reader
	limit int
	// part is the line to be consumed next, or a part of one that is long; begins says
	// whether a line begins with it. atEnd is set when there is none.
	part   []byte
	begins bool
	atEnd  bool
	inside bool // the last part did not end its line
}

func (r *patchReader) next() error {
	part, err := r.in.ReadSlice('\n')
	if len(part) == 0 && errors.Is(err, io.EOF) {
		r.part, r.atEnd = nil, true
		return nil
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		return err
	}
	r.part, r.begins, r.inside = part, !r.inside, err != nil
	return nil
}

// sections reads n sections.
func (r *patchReader) sections(n int) (text []byte, size int64, err error) {
	for range n {
		if r.atEnd || !r.starts() {
			return nil, 0, fmt.Errorf("it is missing from git's output: %w", io.ErrUnexpectedEOF)
		}
		for first := true; !r.atEnd && (first || !r.starts()); first = false {
			if size += int64(len(r.part)); size <= int64(r.limit) {
				text = append(text, r.part...)
			}
			if err := r.next(); err != nil {
				return nil, 0, err
			}
		}
	}
	if size > int64(r.limit) {
		text = nil
	}
	return text, size, nil
}

// starts reports whether a section begins here.
func (r *patchReader) starts() bool { return r.begins && bytes.HasPrefix(r.part, sectionStart) }

// Hunk is a run of changed lines with the lines around it.
type Hunk struct {
	OldStart, OldLines, NewStart, NewLines int64
	// Section is what git prints after the numbers, usually the function.
	Section string
	// Lines begin with a space, + or -, or with a backslash for a missing newline. Bytes
	// that are not valid UTF-8 are replaced.
	Lines []string
}

var hunkHead = regexp.MustCompile(`^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)$`)

// Hunks returns the hunks of a patch of one file; none for a binary file.
func Hunks(patch []byte) ([]Hunk, error) {
	var hunks []Hunk
	var old, added int64 // lines of the last hunk that are still to come
	for line := range bytes.Lines(patch) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		if old == 0 && added == 0 && !bytes.HasPrefix(line, []byte(`\`)) {
			if m := hunkHead.FindSubmatch(line); m != nil {
				h, err := newHunk(m)
				if err != nil {
					return nil, err
				}
				hunks = append(hunks, h)
				old, added = h.OldLines, h.NewLines
			}
			continue
		}
		if len(hunks) == 0 {
			return nil, fmt.Errorf("the patch has the line %q before its first hunk", line)
		}
		h := &hunks[len(hunks)-1]
		h.Lines = append(h.Lines, strings.ToValidUTF8(string(line), "\uFFFD"))
		switch {
		case bytes.HasPrefix(line, []byte("-")):
			old--
		case bytes.HasPrefix(line, []byte("+")):
			added--
		case !bytes.HasPrefix(line, []byte(`\`)):
			old, added = old-1, added-1
		}
	}
	if old != 0 || added != 0 {
		return nil, fmt.Errorf("the patch ends in the middle of a hunk: %w", io.ErrUnexpectedEOF)
	}
	return hunks, nil
}

// newHunk returns the hunk that a match of hunkHead begins. A count that is left out is 1.
func newHunk(m [][]byte) (Hunk, error) {
	h := Hunk{OldLines: 1, NewLines: 1, Section: strings.ToValidUTF8(string(m[5]), "\uFFFD")}
	for i, to := range []*int64{&h.OldStart, &h.OldLines, &h.NewStart, &h.NewLines} {
		if len(m[i+1]) == 0 {
			continue
		}
		n, err := strconv.ParseInt(string(m[i+1]), 10, 64)
		if err != nil {
			return Hunk{}, fmt.Errorf("the patch has the hunk %q: %w", m[0], err)
		}
		*to = n
	}
	return h, nil
}
