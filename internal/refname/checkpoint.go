package refname

import (
	"fmt"
	"path"
	"strings"
)

// Checkpoints is the prefix of the refs of all checkpoints.
const Checkpoints = "refs/clew/"

// OfTask returns the prefix of the refs of a task's checkpoints.
func OfTask(taskUID string) string { return Checkpoints + taskUID + "/" }

// Code returns the ref of the commit with a checkpoint's files.
func Code(taskUID string, number int64) string {
	return fmt.Sprintf("%scode/%d", OfTask(taskUID), number)
}

// State returns the ref of the commit with the agent's state at a checkpoint.
func State(taskUID string, number int64) string {
	return fmt.Sprintf("%sstate/%d", OfTask(taskUID), number)
}

// Heads returns the prefix of the refs of the agent's own commits.
func Heads(taskUID string) string { return OfTask(taskUID) + "head/" }

// Head returns the ref of a commit that HEAD of the agent's repository was at some checkpoint.
// It is named after the commit: many checkpoints share one.
func Head(taskUID, commit string) string { return Heads(taskUID) + commit }

// Live returns the ref of a task's files as they were when somebody last asked for them
// while its agent worked. Unlike a checkpoint's it moves.
func Live(taskUID string) string { return OfTask(taskUID) + "live" }

// AllDisplaced is the prefix of the refs of branches that had to make room.
const AllDisplaced = "refs/clew-displaced/"

// Displaced returns the prefix of the refs of the branches that tasks with a name in a namespace,
// given by its UID, had, and that had to make room for those of a task in a namespace that was made
// anew, whose UID comes next.
func Displaced(namespaceUID, task string) string {
	return AllDisplaced + namespaceUID + "/" + task + "/"
}

// DisplacedOf returns the prefix under which earlier versions put a task's share of such branches.
func DisplacedOf(taskUID string) string { return AllDisplaced + taskUID + "/" }

// IsState reports whether ref has the form that State returns.
func IsState(ref string) bool {
	return strings.HasPrefix(ref, Checkpoints) && path.Base(path.Dir(ref)) == "state"
}

// IsCode reports whether ref has the form that Code or Head returns: a commit with files, which
// whoever may read code may read.
func IsCode(ref string) bool {
	kind := path.Base(path.Dir(ref))
	return strings.HasPrefix(ref, Checkpoints) && (kind == "code" || kind == "head")
}
