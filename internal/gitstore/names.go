package gitstore

import "regexp"

// pattern matches texts of at most most bytes. A length limit within the expression would
// take milliseconds to compile, at each start of the hook.
type pattern struct {
	*regexp.Regexp
	maxBytes int
}

// MatchString reports whether a text matches the expression and is not too long.
func (p pattern) MatchString(text string) bool {
	return len(text) <= p.maxBytes && p.Regexp.MatchString(text)
}

// Patterns of the names that appear in URLs and in file paths. None of them lets a name
// escape its folder.
var (
	namespaceName  = pattern{regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`), 63}
	repositoryName = pattern{regexp.MustCompile(`^r-[a-z0-9]([-a-z0-9]*[a-z0-9])?$`), 64}
	taskUID        = pattern{regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9]*$`), 64}
	taskName       = pattern{regexp.MustCompile(`^[a-z0-9][-.a-z0-9]*$`), 253}
	objectID       = pattern{regexp.MustCompile(`^[0-9a-f]*$`), 40}
)

// isObjectID reports whether a text is a full object id.
func isObjectID(text string) bool {
	return len(text) == objectID.maxBytes && objectID.MatchString(text)
}

var (
	urlPath  = regexp.MustCompile(`^/([^/]*)/([^/]*)\.git/(info/refs|git-upload-pack|git-receive-pack)$`)
	taskPath = regexp.MustCompile(`^/([^/]*)/tasks/([^/]*?)(?:/(branch|checkpoints|diff|verify|adopt|formers))?$`)
)

// parsePath parses the URL path of a repository's operation. Only the three operations of
// the smart protocol exist. The names are validated here and nowhere else.
func parsePath(path string) (namespace, repository, operation string, ok bool) {
	match := urlPath.FindStringSubmatch(path)
	if match == nil || !namespaceName.MatchString(match[1]) || !repositoryName.MatchString(match[2]) {
		return "", "", "", false
	}
	return match[1], match[2], match[3], true
}

// parseTaskPath parses the URL path of an operation on what a task has stored: "branch",
// "checkpoints", "diff", "verify", "adopt", "formers", or "" for its deletion.
func parseTaskPath(path string) (namespace, uid, operation string, ok bool) {
	match := taskPath.FindStringSubmatch(path)
	if match == nil || !namespaceName.MatchString(match[1]) || !taskUID.MatchString(match[2]) {
		return "", "", "", false
	}
	return match[1], match[2], match[3], true
}
