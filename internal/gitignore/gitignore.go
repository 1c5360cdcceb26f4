// Package gitignore decides which files git ignores, by the lines of .gitignore files. It
// reads no files: whoever uses it passes the text of each folder's file.
package gitignore

import (
	"bytes"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Rules are the lines of the .gitignore files that apply in a folder. Nil means that there
// are none. Rules do not change once they are made.
type Rules struct {
	outer *Rules
	base  string // the folder the patterns are relative to
	lines []line
	bytes int // total size of the patterns, outer folders included
	count int // total number of lines, outer folders included
}

type line struct {
	pattern *regexp.Regexp // against the path below base
	negated bool
	folders bool // matches folders only
}

// MaxBytes and maxLines bound the patterns that apply in one folder, including those of its
// outer folders. Agents write them, and a pattern takes a hundred times its length in
// memory. A file that exceeds the bounds is not applied: what it ignores counts as not
// ignored.
const (
	MaxBytes = 64 << 10
	maxLines = 2000
)

// With returns the rules that apply in the folder base, given by its path, whose file has
// this text. r are those of the outer folder.
func (r *Rules) With(base string, text []byte) *Rules {
	rules := &Rules{outer: r, base: base, bytes: len(text), count: bytes.Count(text, []byte("\n"))}
	if r != nil {
		rules.bytes, rules.count = rules.bytes+r.bytes, rules.count+r.count
	}
	if rules.bytes > MaxBytes || rules.count > maxLines {
		return r
	}
	for text := range bytes.Lines(text) {
		if l, ok := parse(strings.TrimRight(string(text), "\r\n")); ok {
			rules.lines = append(rules.lines, l)
		}
	}
	return rules
}

// Match reports whether a file or folder is ignored. The last line that matches
// decides, and the lines of inner files come after those of outer ones.
func (r *Rules) Match(path string, folder bool) bool {
	for ; r != nil; r = r.outer {
		rel := path
		if r.base != "" {
			rel = strings.TrimPrefix(path, r.base+"/")
		}
		for i := len(r.lines) - 1; i >= 0; i-- {
			if l := &r.lines[i]; (folder || !l.folders) && l.pattern.MatchString(rel) {
				return !l.negated
			}
		}
	}
	return false
}

// parse parses one line of a .gitignore; ok is false if it has no usable pattern.
func parse(text string) (l line, ok bool) {
	if strings.HasPrefix(text, "#") {
		return l, false
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
	if text == "" || len(text) > 1024 {
		return l, false
	}
	anchored := strings.Contains(text, "/")
	text = strings.TrimPrefix(text, "/")
	expr := globExpr(text)
	if !anchored {
		expr = "(?:.*/)?" + expr
	}
	pattern, err := regexp.Compile(`(?s)\A` + expr + `\z`)
	l.pattern = pattern
	return l, err == nil
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
			if end := strings.IndexByte(glob[i+1:], ']'); end > 0 {
				class := strings.ReplaceAll(glob[i+1:i+1+end], `\`, `\\`)
				if rest, found := strings.CutPrefix(class, "!"); found {
					class = "^" + rest
				}
				b.WriteString("[" + class + "]")
				i += end + 1
				continue
			}
			b.WriteString(`\[`)
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
