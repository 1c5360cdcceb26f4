package checkpoint_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/worktree"
)

// broken is a volume whose second and third checkpoint cannot be read.
type broken struct {
	store
	away bool // the gitstore becomes unreachable during a push
	gone bool
}

var errPush = errors.New("the remote end hung up")

func (b *broken) CheckSendable(_ context.Context, ids, _ []string) error {
	if slices.Contains(ids, "c2") || slices.Contains(ids, "c3") {
		return &worktree.Error{Reason: worktree.CheckpointCorrupted, Message: "an object is damaged"}
	}
	return nil
}

func (b *broken) RemoteRefs(context.Context, worktree.Remote, string) (map[string]string, error) {
	if b.gone {
		return nil, &worktree.Error{Reason: worktree.Unreachable, Message: "down"}
	}
	return nil, nil
}

func (b *broken) Push(ctx context.Context, m worktree.Remote, updates ...worktree.RefUpdate) error {
	b.gone = b.away
	for _, u := range updates {
		if b.gone || slices.Contains([]string{"c2", "c3"}, u.Source) {
			return errPush
		}
	}
	return b.store.Push(ctx, m, updates...)
}

func TestADamagedCheckpointIsGivenUpAndTheNextOneBeginsAnew(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &broken{}
	taker := waiting(t, repo, 3)
	g.Expect(taker.Journal.Update(func(s *journal.State) error {
		for i := range s.Pending {
			s.Pending[i].Code = []string{"c1", "c2", "c3"}[i]
		}
		s.Latest, s.Parent, s.LastNumber = &s.Pending[2], "c3", 3
		return nil
	})).To(gomega.Succeed())

	repo.away = true
	g.Expect(taker.Push(t.Context())).To(gomega.MatchError(errPush))
	g.Expect(taker.Journal.State().Pending).To(gomega.HaveLen(3), "nothing is given up while the gitstore cannot be reached")

	repo.away, repo.gone = false, false
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	state := taker.Journal.State()
	g.Expect(state.Pending).To(gomega.BeEmpty())
	g.Expect(state.Lost).To(gomega.Equal([]int64{2, 3}))
	g.Expect(state.Parent).To(gomega.BeEmpty(), "the next checkpoint has no parent")
	g.Expect(repo.pushes).To(gomega.HaveLen(1), "the first one arrives")
	g.Expect(taker.MissingInGitstore(1)).To(gomega.BeFalse())
	g.Expect(taker.MissingInGitstore(3)).To(gomega.BeTrue())
}
