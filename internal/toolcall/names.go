package toolcall

import (
	"regexp"
	"strings"
)

// objectName is the form of the names of objects. What has another one is the name of none, and no path to
// one either.
var objectName = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)

// ObjectName returns the name of the Task, or of the Fork, that a supervisor's agent makes under a short
// name.
func ObjectName(supervisor, name string) string { return supervisor + "-" + name }

// ObjectNames returns the names of the Tasks that a supervisor's agent may mean by a name, of which it means
// the first one that is its child: the whole name of a Task, or the short name of one that it has made. It
// returns none if nothing can have the name.
func ObjectNames(supervisor, name string) []string {
	if !objectName.MatchString(name) {
		return nil
	}
	return []string{name, ObjectName(supervisor, name)}
}

// ShortName returns the shortest name by which a supervisor's agent means a child: without that of the
// supervisor, unless it would mean another one by that. isChild reports whether there is a child with the
// name of an object.
func ShortName(supervisor, object string, isChild func(object string) bool) string {
	short, ok := strings.CutPrefix(object, supervisor+"-")
	if !ok || short == Self || isChild(short) {
		return object
	}
	return short
}
