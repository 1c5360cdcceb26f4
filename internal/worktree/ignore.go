package worktree

import (
	"bytes"
	"regexp"
	"strings"
	"unicode/utf8"
)

// ignoreRules are the lines of the .gitignore files that apply in a folder. They
// only serve to list untracked files; a checkpoint includes ignored files.
type ignoreRules struct {
	outer *ignoreRules
	base  string // the folder the patterns are relative to
	lines []ignoreLine
	bytes int // total size of the patterns, outer folders included
	count int // total number of lines, outer folders included
}

type ignoreLine struct {
	pattern *regexp.Regexp // against the path below base
	negated bool
	folders bool // matches folders only
}

// maxIgnoreBytes and maxIgnoreLines bound the patterns that apply in one folder,
// including those of its outer folders. The agent writes them, and a pattern takes
// a hundred times its length in memory. Files that exceed the bounds are not
// applied: what they ignore is listed as untracked.
const (
	maxIgnoreBytes = 64 << 10
	maxIgnoreLines = 2000
)

// rules adds the patterns of the ignore file e in the folder base to the outer
// ones. If below is set, e is a folder and the file is at that path in it.
func (d *dirtyFinder) rules(base string, e *entry, below string, outer *ignoreRules) *ignoreRules {
	if e == nil || e.skip != "" || (e.dir != nil) != (below != "") {
		return outer
	}
	text := e.data
	if text == nil {
		var err error
		if text, err = d.work.readFile(joinPath(joinPath(base, e.name), below), maxIgnoreBytes); err != nil {
			return outer
		}
	}
	r := &ignoreRules{outer: outer, base: base, bytes: len(text), count: bytes.Count(text, []byte("\n"))}
	if outer != nil {
		r.bytes, r.count = r.bytes+outer.bytes, r.count+outer.count
	}
	if r.bytes > maxIgnoreBytes || r.count > maxIgnoreLines {
		return outer
	}
	for line := range bytes.Lines(text) {
		if l, ok := parseIgnore(strings.TrimRight(string(line), "\r\n")); ok {
			r.lines = append(r.lines, l)
		}
	}
	return r
}

// match reports whether a file or folder is ignored. The last line that matches
// decides, and the lines of inner files come after those of outer ones.
func (r *ignoreRules) match(path string, folder bool) bool {
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

// parseIgnore parses one line of a .gitignore; ok is false if it has no usable pattern.
func parseIgnore(line string) (l ignoreLine, ok bool) {
	if strings.HasPrefix(line, "#") {
		return l, false
	}
	for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
		line = line[:len(line)-1]
	}
	if rest, found := strings.CutPrefix(line, "!"); found {
		l.negated, line = true, rest
	}
	if rest, found := strings.CutSuffix(line, "/"); found {
		l.folders, line = true, rest
	}
	if line == "" || len(line) > 1024 {
		return l, false
	}
	anchored := strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	expr := globExpr(line)
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
