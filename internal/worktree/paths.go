package worktree

import (
	"encoding/hex"
	"fmt"
	"strings"
)

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
