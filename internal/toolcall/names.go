package toolcall

import "strings"

// ObjectName returns the name of the Task, or of the Fork, that a supervisor's agent makes under a short
// name.
func ObjectName(supervisor, name string) string { return supervisor + "-" + name }

// ShortName returns the name by which a supervisor's agent knows a Task.
func ShortName(supervisor, object string) string {
	return strings.TrimPrefix(object, supervisor+"-")
}

// ObjectNames returns the names of the Tasks that a supervisor's agent may mean by a name, the first one
// that is its child: the whole name of a Task, or the short name of one that it has made.
func ObjectNames(supervisor, name string) []string {
	return []string{name, ObjectName(supervisor, name)}
}
