package plan

import (
	"strconv"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// ForkFrom says in words what a Fork asks for: its source, the moment and whether the conversation is
// included, as its spec names them. Two Forks that ask for the same have the same words: they are kept
// in the history of each task that a Fork makes, and compared years later. Changed words here make
// every Fork that is applied again start its tasks anew.
func ForkFrom(f *v1alpha1.ForkSpec) string {
	from := "task " + f.SourceRef.Name
	if f.TaskUID != "" {
		from += " with UID " + f.TaskUID
	}
	switch at := f.Point(); {
	case at == nil:
		from += " at its latest checkpoint"
	case at.CheckpointRef != nil:
		from += " at Checkpoint " + at.CheckpointRef.Name
	case at.CheckpointNumber != nil:
		from += " at checkpoint " + strconv.FormatInt(*at.CheckpointNumber, 10)
	case at.Message != nil:
		from += " at message " + strconv.FormatInt(*at.Message, 10)
	case at.Time != nil:
		from += " at " + at.Time.UTC().Format(time.RFC3339)
	}
	if f.Conversation == v1alpha1.ConversationExclude {
		from += ", without its conversation"
	}
	return from
}

// SameFork reports whether a task that was made for a Fork of a name, which asked for what from says,
// may go on with the work of a former one: not if that was made for a Fork of another name, or for one
// that asked for something else. What a former one asked for is not known if an older manager made it.
func SameFork(name, from string, former history.Start) bool {
	return name == former.Fork && (former.From == "" || from == "" || from == former.From)
}
