package checkpoint_test

import (
	"context"
	"testing"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/worktree"
)

// kept is a gitstore that can be put back to an older copy, and a volume.
type kept struct {
	notebook
	volume, gitstore map[string]string
	// down is what every push fails with.
	down error
	// refused is a ref that may not be pushed.
	refused string
}

func (k *kept) PushRefs(_ context.Context, _ worktree.Remote, updates ...worktree.RefUpdate) (made []string, err error) {
	if k.down != nil {
		return nil, k.down
	}
	for _, u := range updates {
		if u.Name == k.refused {
			return nil, &worktree.Error{Reason: worktree.Rejected, Message: "it is not an ancestor"}
		}
	}
	for _, u := range updates {
		if _, ok := k.gitstore[u.Name]; !ok {
			made = append(made, u.Name)
		}
		k.gitstore[u.Name] = u.Source
	}
	return made, nil
}

func (k *kept) Refs(context.Context, string) (map[string]string, error) { return k.volume, nil }

func (k *kept) RemoteRefs(context.Context, worktree.Remote, string) (map[string]string, error) {
	return k.gitstore, nil
}

// take makes checkpoints on the volume, which wait for the gitstore.
func (k *kept) take(g *gomega.WithT, taker *checkpoint.Taker, numbers ...int64) {
	for _, n := range numbers {
		k.volume[worktree.CodeRef("uid", n)], k.volume[worktree.StateRef("uid", n)] = "c", "s"
		g.Expect(taker.Journal.Update(func(s *journal.State) error {
			s.LastNumber = n
			s.Pending = append(s.Pending, journal.Point{Number: n, Code: "c", State: "s"})
			return nil
		})).To(gomega.Succeed())
	}
}

// putBack leaves the gitstore with the checkpoints up to a number.
func (k *kept) putBack(through int64) {
	k.gitstore = map[string]string{}
	for n := range through {
		k.gitstore[worktree.CodeRef("uid", n+1)], k.gitstore[worktree.StateRef("uid", n+1)] = "c", "s"
	}
}

// anew is the Taker of the next daemon.
func anew(t *checkpoint.Taker) *checkpoint.Taker {
	return &checkpoint.Taker{Repo: t.Repo, Journal: t.Journal, Spool: t.Spool, Remote: t.Remote, TaskUID: t.TaskUID, Attempt: t.Attempt}
}

func TestAnOlderGitstoreGetsWhatItLostWithTheNextPush(t *testing.T) {
	for name, restarted := range map[string]bool{"in one process": false, "though the daemon was killed before": true} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			repo := &kept{volume: map[string]string{}, gitstore: map[string]string{}}
			taker := waiting(t, repo, 0)
			repo.take(g, taker, 1, 2, 3, 4)
			g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
			repo.putBack(1)
			if restarted {
				taker = anew(taker)
			}
			repo.take(g, taker, 5)
			g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
			g.Expect(repo.gitstore).To(gomega.Equal(repo.volume))
			g.Expect(taker.Pending()).To(gomega.BeFalse())
		})
	}
}

// Its refs are written before the journal: a kill, or a full volume, leaves them.
func TestWhatTheJournalDoesNotKnowIsNeverPushed(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &kept{volume: map[string]string{}, gitstore: map[string]string{}}
	taker := waiting(t, repo, 0)
	repo.take(g, taker, 1, 2, 3)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	repo.putBack(1)
	repo.take(g, taker, 4)
	repo.volume[worktree.CodeRef("uid", 5)], repo.volume[worktree.StateRef("uid", 5)] = "cut", "cut"
	taker = anew(taker)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.gitstore).To(gomega.HaveLen(8))
	g.Expect(repo.gitstore).NotTo(gomega.HaveKey(worktree.CodeRef("uid", 5)))
	repo.take(g, taker, 5) // it gets the number, and another tree
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.gitstore).To(gomega.Equal(repo.volume))
}

func TestWhatIsGivenUpIsNotPushedToAnOlderGitstore(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &kept{volume: map[string]string{}, gitstore: map[string]string{}}
	taker := waiting(t, repo, 0)
	repo.take(g, taker, 1, 2, 3)
	g.Expect(taker.Journal.Update(func(s *journal.State) error { s.Lose(2); return nil })).To(gomega.Succeed())
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	repo.putBack(0)
	repo.take(g, taker, 4)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.gitstore).To(gomega.HaveLen(6))
	g.Expect(repo.gitstore).NotTo(gomega.HaveKey(worktree.CodeRef("uid", 2)))
}

func TestACheckpointThatCannotBeSentAgainHoldsBackNoOther(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &kept{volume: map[string]string{}, gitstore: map[string]string{}}
	taker := waiting(t, repo, 0)
	repo.take(g, taker, 1, 2)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	repo.putBack(1)
	repo.take(g, taker, 3)
	repo.down = errPush // checkpoint 2 cannot be read on the volume any more
	g.Expect(taker.Push(t.Context())).To(gomega.MatchError(errPush))
	repo.down = nil
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.gitstore).To(gomega.Equal(repo.volume))
}

func TestACheckpointThatIsRefusedWhenItComesAgainHoldsBackNoOther(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &kept{volume: map[string]string{}, gitstore: map[string]string{}}
	taker := waiting(t, repo, 0)
	repo.take(g, taker, 1, 2)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	repo.refused = worktree.CodeRef("uid", 2) // the gitstore has another commit there
	repo.take(g, taker, 3)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.gitstore).To(gomega.HaveKey(worktree.CodeRef("uid", 3)))
}
