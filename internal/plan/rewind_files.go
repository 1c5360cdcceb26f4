package plan

import (
	"fmt"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/pathmatch"
)

// filesBlocker returns why a rewind to a commit or of paths is not possible; nil if it is. The
// API refuses most of these, but cannot know whether a pattern is valid.
func filesBlocker(r *v1alpha1.Rewind) *Blocker {
	if r.To.Commit != "" && r.Scope != v1alpha1.RewindCode {
		return &Blocker{v1alpha1.ReasonInvalidOperation, "a commit holds only files: set rewind.scope to Code, and request the rewind again"}
	}
	if len(r.Paths) > 0 && r.Scope != v1alpha1.RewindCode {
		return &Blocker{v1alpha1.ReasonInvalidOperation,
			"rewind.paths selects files: set rewind.scope to Code, or leave paths out, and request the rewind again"}
	}
	if _, err := pathmatch.New(r.Paths); err != nil {
		return &Blocker{v1alpha1.ReasonPathNotFound, fmt.Sprintf("rewind.paths cannot be used: %v; request the rewind again", err)}
	}
	return nil
}

// rewound describes a complete rewind, whose request may no longer be in the spec.
func rewound(r *v1alpha1.Rewind, op *v1alpha1.OperationStatus) string {
	switch {
	case slices.Equal(op.Paths, []string{pathmatch.Everything}):
		return "the files were rewound to " + destination(op)
	case len(op.Paths) > 0:
		return fmt.Sprintf("%s rewound to %s", selection(op.Paths), destination(op))
	case r == nil || r.ID != op.ID:
	case r.To.Commit != "":
		return "the files were rewound to " + destination(op)
	case scopeOf(r, op) == v1alpha1.RewindConversation && r.To.NamesCheckpoint():
		return fmt.Sprintf("the conversation was rewound to checkpoint %d", op.ToCheckpoint)
	case scopeOf(r, op) == v1alpha1.RewindConversation:
		return fmt.Sprintf("the conversation was rewound to message %d", op.ToPosition)
	}
	return "the task was rewound to " + destination(op)
}

// selection names the paths of a rewind, with the verb that follows.
func selection(paths []string) string {
	first := fmt.Sprintf("%q", clip.Marked(paths[0], 100))
	if len(paths) == 1 {
		return fmt.Sprintf("the path %s was", first)
	}
	return fmt.Sprintf("the path %s and %d more were", first, len(paths)-1)
}
