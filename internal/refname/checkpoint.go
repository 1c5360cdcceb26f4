package refname

import (
	"fmt"
	"path"
	"strings"
)

// Checkpoints is the prefix of the refs of all checkpoints.
const Checkpoints = "refs/clew/"

// OfTask is the prefix of the refs of a task's checkpoints.
func OfTask(taskUID string) string { return Checkpoints + taskUID + "/" }

// Code is the ref of the commit that holds a checkpoint's files.
func Code(taskUID string, number int64) string {
	return fmt.Sprintf("%scode/%d", OfTask(taskUID), number)
}

// State is the ref of the commit that holds the agent's state of a checkpoint.
func State(taskUID string, number int64) string {
	return fmt.Sprintf("%sstate/%d", OfTask(taskUID), number)
}

// IsState reports whether a ref is one that State returns.
func IsState(ref string) bool {
	return strings.HasPrefix(ref, Checkpoints) && path.Base(path.Dir(ref)) == "state"
}
