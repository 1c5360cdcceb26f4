package gitstore

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

// Command is one ref update that a pusher requests. Old and New are object ids in hex;
// all zeroes mean that the ref does not exist (Old) or shall be deleted (New). Old is only
// the pusher's claim; git checks it when it takes the ref's lock.
type Command struct {
	Old, New, Ref string
}

const (
	checkpointRefs = refname.Checkpoints
	branchRefs     = refname.Branches

	maxRefBytes     = 1024
	maxRefComponent = 200
	maxRefDepth     = 16
	// A branch costs the volume a file, and a folder for each part of its name. A
	// daemon creates one per rewind, and pushes the refs of up to a hundred checkpoints
	// at once.
	maxRefsPerPush     = 512
	maxBranchesPerPush = 32
	maxBranchesPerTask = 500
)

// checkpointRest matches what follows refs/clew/<task UID>/ in the name of a checkpoint's
// ref. Ten digits may exceed 2^31-1, which is checked separately.
var checkpointRest = regexp.MustCompile(`^(?:code|state)/([1-9][0-9]{0,9})$`)

// checkCommands returns a refusal if one of the commands is not allowed to the task.
// A task may create refs/clew/<its UID>/{code,state}/<number>, once, and
// refs/clew/<its UID>/head/<commit> for that commit, and create
// or move refs/clew/<its UID>/live and refs/heads/clew/<its name>/<branch>; it may delete
// nothing.
func checkCommands(task Task, commands []Command) *gitstoreapi.Refusal {
	if made := newBranches(commands); len(commands) > maxRefsPerPush || made > maxBranchesPerPush {
		return gitstoreapi.New(gitstoreapi.RefNotAllowed, "the push updates %d refs and creates %d branches; one push may update at most %d and create at most %d: split it into several pushes",
			len(commands), made, maxRefsPerPush, maxBranchesPerPush)
	}
	for _, command := range commands {
		if refused := checkCommand(task, command); refused != nil {
			return refused
		}
	}
	return nil
}

// newBranches returns how many branches the commands create.
func newBranches(commands []Command) int {
	n := 0
	for _, c := range commands {
		if isZero(c.Old) && !isZero(c.New) && strings.HasPrefix(c.Ref, branchRefs) {
			n++
		}
	}
	return n
}

// checkCommand returns a refusal if the command is not allowed to the task.
func checkCommand(task Task, command Command) *gitstoreapi.Refusal {
	if problem := refNameProblem(command.Ref); problem != "" {
		return gitstoreapi.New(gitstoreapi.RefNotAllowed, "the ref name %q %s; choose another name", clip.Marked(command.Ref, maxShown), problem)
	}
	if isZero(command.New) {
		return gitstoreapi.New(gitstoreapi.DeleteNotAllowed, "%s cannot be deleted by a push; checkpoints are deleted with the history of their task", command.Ref)
	}
	if command.Ref == refname.Live(task.UID) {
		return nil
	}
	if id, ok := strings.CutPrefix(command.Ref, refname.Heads(task.UID)); ok {
		return checkHead(command, id)
	}
	if rest, ok := strings.CutPrefix(command.Ref, refname.OfTask(task.UID)); ok {
		return checkCheckpoint(command, rest)
	}
	if rest, ok := strings.CutPrefix(command.Ref, refname.BranchesOf(task.Name)); ok && rest != "" {
		return nil
	}
	if strings.HasPrefix(command.Ref, checkpointRefs) || strings.HasPrefix(command.Ref, branchRefs) {
		return gitstoreapi.New(gitstoreapi.RefNotAllowed, "%s belongs to another task; the task %s may write only below %s%s/ and %s%s/",
			command.Ref, task.Name, checkpointRefs, task.UID, branchRefs, task.Name)
	}
	return gitstoreapi.New(gitstoreapi.RefNotAllowed, "%s is not a ref that a task may write; the task %s may write only below %s%s/ and %s%s/",
		command.Ref, task.Name, checkpointRefs, task.UID, branchRefs, task.Name)
}

// checkHead returns a refusal if the ref of one of the agent's own commits names another one.
func checkHead(command Command, id string) *gitstoreapi.Refusal {
	if !isObjectID(id) || command.New != id {
		return gitstoreapi.New(gitstoreapi.RefNotAllowed, "%s cannot be %s: the ref of an agent's commit is named after the commit", command.Ref, shortID(command.New))
	}
	return nil
}

// checkCheckpoint returns a refusal if a checkpoint's ref is malformed, or already has
// another value.
func checkCheckpoint(command Command, rest string) *gitstoreapi.Refusal {
	match := checkpointRest.FindStringSubmatch(rest)
	if match == nil || len(match[1]) == 10 && match[1] > "2147483647" {
		return gitstoreapi.New(gitstoreapi.RefNotAllowed, "%s is not the ref of a checkpoint; those end in code/<number> or state/<number>, with a number from 1 to 2147483647", command.Ref)
	}
	if !isZero(command.Old) && command.Old != command.New {
		return gitstoreapi.New(gitstoreapi.RefImmutable, "%s is already %s and cannot become %s: a checkpoint never changes; take a new one",
			command.Ref, shortID(command.Old), shortID(command.New))
	}
	return nil
}

// refNameProblem returns what is wrong with a full ref name, worded to follow "the ref name
// ...", or "" if it is valid. It is stricter than git check-ref-format: a name must also not
// look like an option, nor cause trouble on file systems and terminals.
func refNameProblem(ref string) string {
	switch {
	case len(ref) > maxRefBytes:
		return "is too long"
	case !utf8.ValidString(ref):
		return "is not valid UTF-8"
	case strings.ContainsFunc(ref, forbiddenInRef):
		return `contains a space, a control character or one of ~^:?*[\`
	case strings.Contains(ref, ".."), strings.Contains(ref, "@{"):
		return `contains ".." or "@{"`
	}
	components := strings.Split(ref, "/")
	if len(components) > maxRefDepth {
		return "has too many parts"
	}
	for _, component := range components {
		if problem := refComponentProblem(component); problem != "" {
			return problem
		}
	}
	return ""
}

// refComponentProblem is refNameProblem for one part of a name.
func refComponentProblem(component string) string {
	switch {
	case component == "":
		return "has an empty part"
	case len(component) > maxRefComponent:
		return "has a part that is too long"
	case strings.HasPrefix(component, "-"), strings.HasPrefix(component, "."):
		return `has a part that begins with "-" or "."`
	case strings.HasSuffix(component, "."), strings.HasSuffix(strings.ToLower(component), ".lock"):
		return `has a part that ends in "." or ".lock"`
	case component == "@":
		return `has the part "@"`
	}
	return ""
}

// forbiddenInRef reports whether a character must not occur in a ref name.
func forbiddenInRef(r rune) bool {
	// U+0080 to U+009F are control characters for terminals, U+2028 and U+2029
	// line breaks, U+202A to U+202E and U+2066 to U+2069 change the direction
	// of what is printed.
	return r <= ' ' || r >= 0x7f && r <= 0xa0 || strings.ContainsRune(`~^:?*[\`, r) ||
		r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

// isZero reports whether an object id is all zeroes.
func isZero(id string) bool {
	return strings.Trim(id, "0") == ""
}

// shortID abbreviates an object id for messages.
func shortID(id string) string {
	return id[:min(len(id), 12)]
}

// maxShown is how many bytes of a name a refusal quotes.
const maxShown = 120
