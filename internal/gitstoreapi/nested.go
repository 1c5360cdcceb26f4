package gitstoreapi

import (
	"encoding/hex"
	"strings"

	"github.com/clew-dev/clew/internal/gitpath"
)

// nestedTrailer precedes the path of a nested repository in the message of a commit.
const nestedTrailer = "Nested-Repository: "

// WithNested returns the message of a commit that holds files as they are at this moment: the
// text, and the folders of nested repositories, of which git itself stores nothing.
func WithNested(text string, folders []string) string {
	if len(folders) == 0 {
		return text
	}
	lines := []string{text, ""}
	for _, folder := range folders {
		lines = append(lines, nestedTrailer+gitpath.Quote(folder))
	}
	return strings.Join(lines, "\n")
}

// NestedIn returns the folders that the message of a commit names.
func NestedIn(message string) []string {
	var folders []string
	for line := range strings.Lines(message) {
		quoted, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), nestedTrailer)
		if !ok {
			continue
		}
		if folder, err := gitpath.Unquote(quoted); err == nil {
			folders = append(folders, folder)
		}
	}
	return folders
}

// NestedFolder returns the folder of the nested repository that has a file, given by its path in
// the part "nested" of a state commit. There, a name that git refuses is a % with its bytes in
// hexadecimal digits.
func NestedFolder(path string) (folder string, ok bool) {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if digits, encoded := strings.CutPrefix(part, "%"); encoded {
			name, err := hex.DecodeString(digits)
			if err != nil {
				return "", false
			}
			parts[i] = string(name)
		}
		if parts[i] == ".git" {
			return strings.Join(parts[:i], "/"), i > 0
		}
	}
	return "", false
}
