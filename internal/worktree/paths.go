package worktree

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

// quotePath returns path as git displays it: unchanged, or in double quotes with C
// escapes if it is not valid UTF-8, contains control characters or begins with a
// quote. The result is always valid UTF-8; unquotePath reverses it.
func quotePath(path string) string {
	if !needsQuotes(path) {
		return path
	}
	return cQuote(path)
}

func needsQuotes(path string) bool {
	if strings.HasPrefix(path, `"`) || !utf8.ValidString(path) {
		return true
	}
	for i := 0; i < len(path); i++ {
		if path[i] < 0x20 || path[i] == 0x7f {
			return true
		}
	}
	return false
}

// cQuote puts path in double quotes with the escapes that git fast-import reads.
func cQuote(path string) string {
	var b strings.Builder
	b.Grow(len(path) + 8)
	b.WriteByte('"')
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < 0x20 || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// unquotePath reverses quotePath. It fails for text that quotePath cannot return.
func unquotePath(text string) (string, error) {
	if !strings.HasPrefix(text, `"`) {
		return text, nil
	}
	if len(text) < 2 || !strings.HasSuffix(text, `"`) {
		return "", fmt.Errorf("the quoted path %s has no closing quote", text)
	}
	in := text[1 : len(text)-1]
	var b strings.Builder
	for i := 0; i < len(in); i++ {
		if in[i] != '\\' {
			b.WriteByte(in[i])
			continue
		}
		rest := in[i+1:]
		switch {
		case rest != "" && (rest[0] == '"' || rest[0] == '\\'):
			b.WriteByte(rest[0])
			i++
		case rest != "" && rest[0] == 'n':
			b.WriteByte('\n')
			i++
		case rest != "" && rest[0] == 't':
			b.WriteByte('\t')
			i++
		case len(rest) >= 3 && rest[0] >= '0' && rest[0] <= '3' && isOctal(rest[1]) && isOctal(rest[2]):
			b.WriteByte((rest[0]-'0')<<6 | (rest[1]-'0')<<3 | (rest[2] - '0'))
			i += 3
		default:
			return "", fmt.Errorf("the quoted path %s has an unknown escape", text)
		}
	}
	return b.String(), nil
}

func isOctal(c byte) bool { return c >= '0' && c <= '7' }

// gitRefuses reports whether git would reject a tree entry with this name: .git in
// any case, the spellings that other file systems treat as .git, and a symbolic
// link called .gitmodules. Such entries are stored in the state tree, under an
// encoded name.
func gitRefuses(name string, link bool) bool {
	if len(name) < 4 {
		return false
	}
	// Fast path for almost every name: a spelling of .git begins with one of these
	// bytes or contains a backslash.
	if name[0] != '.' && name[0] != 'g' && name[0] != 'G' && name[0] < 0x80 && !strings.Contains(name, `\`) {
		return false
	}
	if link && strings.EqualFold(name, ".gitmodules") {
		return true
	}
	for _, part := range strings.Split(name, `\`) {
		if isDotGit(part) {
			return true
		}
	}
	return isDotGit(dropIgnorable(name))
}

// isDotGit reports whether NTFS may treat name as .git.
func isDotGit(name string) bool {
	if len(name) < 4 {
		return false
	}
	var rest string
	switch {
	case strings.EqualFold(name[:4], ".git"):
		rest = name[4:]
	case len(name) >= 5 && strings.EqualFold(name[:5], "git~1"):
		rest = name[5:]
	default:
		return false
	}
	for i := 0; i < len(rest); i++ {
		if rest[i] == ':' {
			return true
		}
		if rest[i] != ' ' && rest[i] != '.' {
			return false
		}
	}
	return true
}

// dropIgnorable removes the code points that HFS+ ignores in names.
func dropIgnorable(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
			return -1
		}
		return r
	}, name)
}

// encodeName makes a name suitable for the state tree: a name that git rejects or
// that looks encoded becomes "%" followed by its bytes in hexadecimal.
func encodeName(name string, link bool) string {
	if name[0] != '%' && !gitRefuses(name, link) {
		return name
	}
	return "%" + hex.EncodeToString([]byte(name))
}

// decodeName reverses encodeName. It fails if the result is not a valid file name.
func decodeName(name string) (string, error) {
	if !strings.HasPrefix(name, "%") {
		return name, nil
	}
	raw, err := hex.DecodeString(name[1:])
	if err != nil || !validName(string(raw)) {
		return "", fmt.Errorf("the state tree has an entry %q that is not an encoded name", name)
	}
	return string(raw), nil
}

// validName reports whether name can be the name of one file in a folder.
func validName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// joinPath joins two slash-separated paths, either of which may be empty.
func joinPath(dir, name string) string {
	if dir == "" {
		return name
	}
	if name == "" {
		return dir
	}
	return dir + "/" + name
}

// splitPath splits a path into its parent folder ("" for the root) and name.
func splitPath(path string) (dir, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}
