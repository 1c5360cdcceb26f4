package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
)

// SpecUnknown is what blocks a Fork of a task that is gone while the history store cannot be
// asked for its spec.
func SpecUnknown(f *v1alpha1.ForkSpec) *Blocker {
	return &Blocker{v1alpha1.ReasonHistoryUnavailable, fmt.Sprintf(
		"there is no task %s in this namespace any more, and the history store cannot be reached, which knows its spec: it is forked when it can", f.SourceRef.Name)}
}

// ForkGone returns what blocks the Fork of a task that is gone, of whose spec this is kept;
// nil if nothing does.
func ForkGone(f *v1alpha1.ForkSpec, kept history.KeptSpec) *Blocker {
	name := f.SourceRef.Name
	switch {
	case kept.Spec == "":
		return &Blocker{v1alpha1.ReasonSpecNotKept, fmt.Sprintf(
			"task %s is gone, and its spec is not kept, since it was larger than 128 KiB, the histories of the namespace had reached their limit, it ended before specs were kept with the history, or the history store was restored from an older copy: apply a Task with startFrom, which has a spec of its own", name)}
	case len(kept.Fields) > 0:
		return &Blocker{v1alpha1.ReasonSpecNotKept, fmt.Sprintf(
			"task %s is gone, and of its spec, what may be secret is not kept: %s: apply a Task with startFrom, which has a spec of its own", name, listed(kept.Fields))}
	}
	var missing, variants []string
	for _, v := range f.Variants {
		lacks := slices.DeleteFunc(slices.Clone(kept.Variables), func(variable string) bool { return sets(v.Template, variable) })
		if len(lacks) > 0 {
			missing, variants = append(missing, lacks...), append(variants, v.Name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return &Blocker{v1alpha1.ReasonValuesNotKept, fmt.Sprintf(
		"task %s is gone, and values of environment variables that may be secret are not kept: %s: apply a new Fork that sets them in template.env of %s, best with valueFrom",
		name, listed(slices.Compact(missing)), strings.Join(variants, ", "))}
}

// sets reports whether a variant sets an environment variable.
func sets(t *v1alpha1.VariantTemplate, variable string) bool {
	return t != nil && slices.ContainsFunc(t.Env, func(e corev1.EnvVar) bool { return e.Name == variable })
}

// maxNameBytes bounds a name that a message lists.
const maxNameBytes = 200

// listed lists the first names for a message.
func listed(names []string) string {
	var first []string
	for _, name := range names[:min(len(names), maxNamed)] {
		first = append(first, clip.Marked(name, maxNameBytes))
	}
	text := strings.Join(first, ", ")
	if more := len(names) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
