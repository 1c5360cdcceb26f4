// Package pathmatch selects files of a worktree: by their paths, by folders, and by glob
// patterns. It is what a user may write wherever Clew takes paths, so that a preview, a
// rewind and a diff agree about them.
//
// A pattern names
//
//   - a file, as src/main.go;
//   - a folder, as src or src/, with everything below it;
//   - files and folders by *, ? and [abc] within one name, and ** for any number of folders,
//     as **/*_test.go.
//
// A path that is equal to a pattern matches it, even if the pattern could also be read as a
// glob: app/[id]/page.tsx selects that file.
package pathmatch

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/clew-dev/clew/internal/clip"
)

// Bounds of what one request may name. The API's schema repeats them.
const (
	// MaxPatterns is the number of patterns.
	MaxPatterns = 100
	// MaxBytes is the length of one pattern.
	MaxBytes = 1024
	// maxAllBytes is the length of all patterns: the time to match a path grows with it, and
	// patterns come from users of a shared server.
	maxAllBytes = 8 << 10
)

// Everything is the pattern that selects every file.
const Everything = "**"

// Set is a list of patterns. The zero value matches every path.
type Set struct{ patterns []pattern }

// pattern is one pattern, without a trailing slash.
type pattern struct {
	text string
	// glob is the pattern as a glob, and below the one for everything in it; empty if it is a
	// plain path.
	glob, below string
}

// New returns the set of the given patterns. The error is a sentence about the first that is
// not valid, and what to write instead.
func New(patterns []string) (Set, error) {
	if len(patterns) > MaxPatterns {
		return Set{}, fmt.Errorf("%d paths are named, and at most %d may be: name a folder, or a pattern such as src/**/*.go", len(patterns), MaxPatterns)
	}
	var s Set
	bytes := 0
	for _, text := range patterns {
		if err := check(text); err != nil {
			return Set{}, fmt.Errorf("the path %q %w", clip.Marked(text, 100), err)
		}
		if bytes += len(text); bytes > maxAllBytes {
			return Set{}, fmt.Errorf("the paths are longer than %d bytes in all: name a folder, or a pattern such as src/**/*.go", maxAllBytes)
		}
		s.patterns = append(s.patterns, newPattern(strings.TrimSuffix(text, "/")))
	}
	return s, nil
}

func newPattern(text string) pattern {
	p := pattern{text: text}
	if strings.ContainsAny(text, `*?[\`) {
		p.glob = strings.NewReplacer(`\{`, `\{`, `\}`, `\}`, "{", `\{`, "}", `\}`).Replace(text) // alternatives could take exponential time
		p.below = p.glob + "/**"
	}
	return p
}

// check returns what is wrong with a pattern, worded to follow the pattern.
func check(text string) error {
	switch {
	case text == "":
		return errors.New("is empty: name a file, a folder or a pattern, relative to the worktree")
	case len(text) > MaxBytes:
		return fmt.Errorf("is longer than %d bytes", MaxBytes)
	case !utf8.ValidString(text), strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("contains a control character, or is not valid UTF-8")
	case strings.HasPrefix(text, "/"):
		return errors.New("begins with a slash: name it relative to the worktree")
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(text, "/"), "/") {
		switch {
		case part == "..":
			return errors.New("leaves the worktree: leave .. out")
		case part == "" || part == ".":
			return errors.New("has an empty part: leave . and // out")
		case strings.EqualFold(part, ".git"):
			return errors.New("is part of a git repository, whose own files cannot be selected")
		}
	}
	if !doublestar.ValidatePattern(text) {
		return errors.New("is not a valid pattern: close its brackets, or write \\ before them")
	}
	return nil
}

// All reports whether the set matches every path because it names none.
func (s Set) All() bool { return len(s.patterns) == 0 }

// Match reports whether the set selects a file or folder, given by its path relative to the
// worktree, with slashes.
func (s Set) Match(path string) bool {
	if s.All() {
		return true
	}
	for _, p := range s.patterns {
		if p.match(path) {
			return true
		}
	}
	return false
}

// LeadsTo reports whether the set may select something below a path, if that is a folder: what
// is changed through a link at that path is changed in what the set selects.
func (s Set) LeadsTo(path string) bool {
	for _, p := range s.patterns {
		if p.leadsTo(path) {
			return true
		}
	}
	return false
}

// leadsTo reports whether the parts of the path match the first parts of the pattern.
func (p pattern) leadsTo(path string) bool {
	if strings.HasPrefix(p.text, path+"/") {
		return true
	}
	parts, names := strings.Split(p.glob, "/"), strings.Split(path, "/")
	for i, part := range parts {
		if part == "**" {
			return true
		}
		if i == len(names) {
			return true
		}
		// A part that is no pattern of its own, such as one of [a/b], may match anything.
		if ok, err := doublestar.Match(part, names[i]); err == nil && !ok {
			return false
		}
	}
	return false
}

// match reports whether the pattern selects the path, or a folder that the path is in.
func (p pattern) match(path string) bool {
	if path == p.text || strings.HasPrefix(path, p.text+"/") {
		return true
	}
	// The patterns were validated, so that matching returns no error.
	return p.glob != "" && (doublestar.MatchUnvalidated(p.glob, path) || doublestar.MatchUnvalidated(p.below, path))
}
