package conversationsnapshot

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// slow is a store that reads a conversation only if it gets more than a turn.
type slow struct {
	Store
	turns []time.Duration
	takes time.Duration
}

func (s *slow) Snapshot(ctx context.Context, _ history.Key, _ history.SnapshotQuery) (history.Snapshot, error) {
	until, _ := ctx.Deadline()
	turn := time.Until(until).Round(10 * time.Millisecond)
	s.turns = append(s.turns, turn)
	if turn < s.takes {
		<-ctx.Done()
		return history.Snapshot{}, ctx.Err()
	}
	return history.Snapshot{Digest: "d"}, nil
}

// TestASnapshotThatIsLongHasTurns: each takes twice as long as the one before, and it rests in between.
func TestASnapshotThatIsLongHasTurns(t *testing.T) {
	g := gomega.NewWithT(t)
	store := &slow{takes: 150 * time.Millisecond}
	r := &Reconciler{Store: store, Turn: 50 * time.Millisecond}
	long, short := &v1alpha1.ConversationSnapshot{}, &v1alpha1.ConversationSnapshot{}
	long.UID, short.UID = "long", "short"
	for range 2 {
		_, err := r.read(t.Context(), long, "task", history.SnapshotQuery{})
		turn := tooLong{}
		g.Expect(errors.As(err, &turn)).To(gomega.BeTrue(), "%v", err)
	}
	found, err := r.read(t.Context(), long, "task", history.SnapshotQuery{})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(found.Digest).To(gomega.Equal("d"))
	g.Expect(store.turns).To(gomega.Equal([]time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond}))
	_, _ = r.read(t.Context(), short, "task", history.SnapshotQuery{})
	g.Expect(store.turns[3]).To(gomega.Equal(50*time.Millisecond), "others have turns of their own")
	g.Expect(tooLong{time.Minute}.Error()).To(gomega.ContainSubstring("could not be read in 1m0s: they are read again, with more time, in 9m0s"))
}
