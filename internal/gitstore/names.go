package gitstore

import "regexp"

// pattern is what a text of at most so many bytes looks like. A limit within the
// expression would take milliseconds to compile, at each start of the hook.
type pattern struct {
	*regexp.Regexp
	most int
}

// MatchString reports whether a text has the form and is not too long.
func (p pattern) MatchString(text string) bool {
	return len(text) <= p.most && p.Regexp.MatchString(text)
}

// The names that appear in URLs and in paths. None can leave its folder.
var (
	namespaceName  = pattern{regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`), 63}
	repositoryName = pattern{regexp.MustCompile(`^r-[a-z0-9]([-a-z0-9]*[a-z0-9])?$`), 64}
	taskUID        = pattern{regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9]*$`), 64}
	taskName       = pattern{regexp.MustCompile(`^[a-z0-9][-.a-z0-9]*$`), 253}
	objectID       = pattern{regexp.MustCompile(`^[0-9a-f]*$`), 40}
)

// isObjectID reports whether a text is the id of an object in full.
func isObjectID(text string) bool { return len(text) == objectID.most && objectID.MatchString(text) }

var (
	urlPath  = regexp.MustCompile(`^/([^/]*)/([^/]*)\.git/(info/refs|git-upload-pack|git-receive-pack)$`)
	taskPath = regexp.MustCompile(`^/([^/]*)/tasks/([^/]*)$`)
)

// parsePath understands the path of a URL of a repository. These are all that is
// served of repositories: the three of the smart protocol. The names are checked here
// once and for all.
func parsePath(path string) (namespace, repository, operation string, ok bool) {
	match := urlPath.FindStringSubmatch(path)
	if match == nil || !namespaceName.MatchString(match[1]) || !repositoryName.MatchString(match[2]) {
		return "", "", "", false
	}
	return match[1], match[2], match[3], true
}

// parseTaskPath understands the path at which what a task has stored is deleted.
func parseTaskPath(path string) (namespace, uid string, ok bool) {
	match := taskPath.FindStringSubmatch(path)
	if match == nil || !namespaceName.MatchString(match[1]) || !taskUID.MatchString(match[2]) {
		return "", "", false
	}
	return match[1], match[2], true
}
