// Package gitignore decides which files git ignores, by the lines of .gitignore files. It
// reads no files: whoever uses it passes the text of each folder's file.
package gitignore

import (
	"bytes"
	"regexp"
	"strings"
	"unicode/utf8"
)

// File is a parsed .gitignore file. It does not change, and may apply in several folders.
type File struct {
	lines []line
	bytes int
	count int
	// doubtful is set if a line could not be read: what it says is not known.
	doubtful bool
}

type line struct {
	pattern *regexp.Regexp // against the path below the file's folder
	negated bool
	folders bool // matches folders only
}

// Rules are the .gitignore files that apply in a folder. Nil means that there are none. Rules
// do not change once they are made.
type Rules struct {
	outer *Rules
	base  string // the folder the patterns are relative to
	file  *File
	bytes int // total size of the patterns, outer folders included
	count int // total number of lines, outer folders included
	// doubtful is set if a file that applies here could not be read as a whole.
	doubtful bool
}

// MaxBytes and maxLines bound the patterns that apply in one folder, including those of its
// outer folders. Agents write them, and a pattern takes a hundred times its length in
// memory. Where they are exceeded, or a line cannot be read, nothing counts as ignored: a
// line that is left out might say so of a file that the others ignore.
const (
	MaxBytes     = 64 << 10
	maxLines     = 2000
	maxLineBytes = 1024
)

// Parse parses the text of a .gitignore file.
func Parse(text []byte) *File {
	f := &File{bytes: len(text), count: bytes.Count(text, []byte("\n"))}
	if f.bytes > MaxBytes || f.count > maxLines {
		f.doubtful = true
		return f
	}
	for text := range bytes.Lines(text) {
		l, state := parse(strings.TrimRight(string(text), "\r\n"))
		switch state {
		case usable:
			f.lines = append(f.lines, l)
		case unreadable:
			f.doubtful = true
		}
	}
	return f
}

// Unreadable is a file that could not be read.
func Unreadable() *File { return &File{doubtful: true} }

// With returns the rules that apply in the folder base, given by its path, that has this
// file. r are those of the outer folder.
func (r *Rules) With(base string, f *File) *Rules {
	rules := &Rules{outer: r, base: base, file: f, bytes: f.bytes, count: f.count, doubtful: f.doubtful}
	if r != nil {
		rules.bytes, rules.count, rules.doubtful = rules.bytes+r.bytes, rules.count+r.count, rules.doubtful || r.doubtful
	}
	if rules.bytes > MaxBytes || rules.count > maxLines {
		return &Rules{doubtful: true}
	}
	return rules
}

// Match reports whether a file or folder is ignored. The last line that matches
// decides, and the lines of inner files come after those of outer ones.
func (r *Rules) Match(path string, folder bool) bool {
	if r != nil && r.doubtful {
		return false
	}
	for ; r != nil; r = r.outer {
		rel := path
		if r.base != "" {
			rel = strings.TrimPrefix(path, r.base+"/")
		}
		for i := len(r.file.lines) - 1; i >= 0; i-- {
			if l := &r.file.lines[i]; (folder || !l.folders) && l.pattern.MatchString(rel) {
				return !l.negated
			}
		}
	}
	return false
}

// state says what a line of a .gitignore is.
type state int

const (
	usable state = iota
	empty
	unreadable
)

// parse parses one line of a .gitignore.
func parse(text string) (l line, s state) {
	if strings.HasPrefix(text, "#") {
		return l, empty
	}
	if len(text) > maxLineBytes {
		return l, unreadable
	}
	for strings.HasSuffix(text, " ") && !strings.HasSuffix(text, `\ `) {
		text = text[:len(text)-1]
	}
	if rest, found := strings.CutPrefix(text, "!"); found {
		l.negated, text = true, rest
	}
	if rest, found := strings.CutSuffix(text, "/"); found {
		l.folders, text = true, rest
	}
	if text == "" {
		return l, empty
	}
	anchored := strings.Contains(text, "/")
	text = strings.TrimPrefix(text, "/")
	expr := globExpr(text)
	if !anchored {
		expr = "(?:.*/)?" + expr
	}
	pattern, err := regexp.Compile(`(?s)\A` + expr + `\z`)
	if err != nil {
		return l, unreadable
	}
	l.pattern = pattern
	return l, usable
}

// globExpr translates a .gitignore pattern to a regular expression.
func globExpr(glob string) string {
	var b strings.Builder
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case strings.HasPrefix(glob[i:], "**/") && (i == 0 || glob[i-1] == '/'):
			b.WriteString("(?:.*/)?")
			i += 2
		case glob[i:] == "**" && i > 0 && glob[i-1] == '/':
			b.WriteString(".+")
			i++
		case c == '*':
			b.WriteString("[^/]*")
		case c == '?':
			b.WriteString("[^/]")
		case c == '[':
			class, length := classExpr(glob[i:])
			b.WriteString(class)
			i += length - 1
		case c == '\\' && i+1 < len(glob):
			i++
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		case c >= utf8.RuneSelf:
			_, size := utf8.DecodeRuneInString(glob[i:])
			if size == 1 {
				b.WriteByte('.') // an invalid UTF-8 byte is a character of its own
			} else {
				b.WriteString(glob[i : i+size])
			}
			i += size - 1
		default:
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		}
	}
	return b.String()
}

// classExpr translates the class of characters that a text begins with, and returns how many
// bytes of it belong to the class. A bracket that is never closed stands for itself.
func classExpr(glob string) (expr string, length int) {
	i := 1
	negated := i < len(glob) && (glob[i] == '!' || glob[i] == '^')
	if negated {
		i++
	}
	start := i
	for ; i < len(glob); i++ {
		switch {
		case glob[i] == ']' && i > start:
			inner := glob[start:i]
			if spansSlash(inner) {
				return "[", i + 1 // no class of git's matches a slash: this does not compile
			}
			inner = strings.NewReplacer(`\`, `\\`, "[:", "[:", "[", `\[`).Replace(inner)
			if strings.HasPrefix(inner, "]") {
				inner = `\]` + inner[1:]
			}
			if strings.HasPrefix(inner, "^") {
				inner = `\^` + inner[1:]
			}
			if negated {
				return "[^/" + inner + "]", i + 1
			}
			return "[" + inner + "]", i + 1
		case strings.HasPrefix(glob[i:], "[:"):
			if end := strings.Index(glob[i:], ":]"); end > 0 {
				i += end + 1
			}
		}
	}
	return `\[`, 1
}

// spansSlash reports whether a class contains a slash, alone or in a range.
func spansSlash(class string) bool {
	for i := 0; i+2 < len(class); i++ {
		if class[i+1] == '-' && class[i] < '/' && class[i+2] > '/' {
			return true
		}
	}
	return strings.Contains(class, "/")
}
