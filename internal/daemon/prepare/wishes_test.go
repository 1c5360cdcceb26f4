package prepare_test

import (
	"testing"

	"github.com/clew-dev/clew/internal/daemon/journal"
)

// What was called in a conversation that is taken back is called anew after it, and not the same call.
func TestARewindOfTheConversationForgetsWhatItsCallsWished(t *testing.T) {
	t.Parallel()
	for scope, kept := range map[string]bool{"Both": false, "Conversation": false, "Code": true} {
		t.Run(scope, func(t *testing.T) {
			w := three(t)
			editJournal(t, w, func(s *journal.State) { s.KeepWish(journal.Wish{Digest: "d", ID: "one"}) })
			w.Prepare(2, rewindTo(1, scope, "Discard"))
			editJournal(t, w, func(s *journal.State) { expect(t, "the wish is kept", len(s.Wishes) == 1, kept) })
		})
	}
}
