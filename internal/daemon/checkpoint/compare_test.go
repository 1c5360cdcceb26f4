package checkpoint_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// kept is a volume, and a gitstore that can be restored from an older copy.
type kept struct {
	notebook
	volume, gitstore map[string]string
	// down makes the gitstore unreachable, unheard loses its answers.
	down, unheard bool
	// refused is a ref that may not be pushed, damaged a commit that cannot be read.
	refused, damaged string
	// asked counts the requests for what it has.
	asked int
}

func newKept() *kept { return &kept{volume: map[string]string{}, gitstore: map[string]string{}} }

func (k *kept) Push(_ context.Context, _ worktree.Remote, updates ...worktree.RefUpdate) error {
	for _, u := range updates {
		switch {
		case k.down, u.Source == k.damaged:
			return errPush
		case u.Name == k.refused:
			return &worktree.Error{Reason: worktree.Rejected, Message: "it is not an ancestor"}
		}
	}
	for _, u := range updates {
		k.gitstore[u.Name] = u.Source
	}
	if k.unheard {
		return errPush
	}
	return nil
}

func (k *kept) CheckSendable(_ context.Context, ids, _ []string) error {
	if slices.Contains(ids, k.damaged) {
		return &worktree.Error{Reason: worktree.CheckpointCorrupted, Message: "an object is damaged"}
	}
	return nil
}

func (k *kept) Refs(context.Context, string) (map[string]string, error) { return k.volume, nil }

func (k *kept) DeleteRefs(_ context.Context, refs ...string) error {
	for _, ref := range refs {
		delete(k.volume, ref)
	}
	return nil
}

func (k *kept) RemoteRefs(context.Context, worktree.Remote, string) (map[string]string, error) {
	if k.down {
		return nil, errPush
	}
	k.asked++
	return k.gitstore, nil
}

// take makes checkpoints on the volume that are pending.
func (k *kept) take(g *gomega.WithT, taker *checkpoint.Taker, numbers ...int64) {
	for _, n := range numbers {
		point := journal.Point{Number: n, Code: fmt.Sprint("c", n), State: fmt.Sprint("s", n)}
		hold(k.volume, point)
		g.Expect(taker.Journal.Update(func(s *journal.State) error {
			s.LastNumber = n
			s.Pending = append(s.Pending, point)
			return nil
		})).To(gomega.Succeed())
	}
}

// hold puts a checkpoint's refs where they belong.
func hold(refs map[string]string, p journal.Point) {
	refs[refname.Code("uid", p.Number)], refs[refname.State("uid", p.Number)] = p.Code, p.State
}

// putBack leaves the gitstore with the checkpoints up to a number.
func (k *kept) putBack(through int64) {
	k.gitstore = map[string]string{}
	for n := int64(1); n <= through; n++ {
		hold(k.gitstore, journal.Point{Number: n, Code: fmt.Sprint("c", n), State: fmt.Sprint("s", n)})
	}
}

// anew returns the Taker of the next daemon.
func anew(t *checkpoint.Taker) *checkpoint.Taker {
	return &checkpoint.Taker{Repo: t.Repo, Journal: t.Journal, Spool: t.Spool, Remote: t.Remote, TaskUID: t.TaskUID, Attempt: t.Attempt}
}

func TestAnOlderGitstoreGetsWhatItLost(t *testing.T) {
	for name, next := range map[string]func(g *gomega.WithT, repo *kept, taker *checkpoint.Taker) *checkpoint.Taker{
		"when it was last asked a minute ago": func(_ *gomega.WithT, _ *kept, taker *checkpoint.Taker) *checkpoint.Taker {
			time.Sleep(time.Minute) // by synctest's clock: the interval itself is tested
			return taker
		},
		"with the first push of a daemon": func(_ *gomega.WithT, _ *kept, taker *checkpoint.Taker) *checkpoint.Taker {
			return anew(taker)
		},
		"when it could not be reached meanwhile": func(g *gomega.WithT, repo *kept, taker *checkpoint.Taker) *checkpoint.Taker {
			repo.down = true
			g.Expect(taker.Push(context.Background())).To(gomega.MatchError(errPush))
			repo.down = false
			return taker
		},
		"when its answer to a push was lost": func(g *gomega.WithT, repo *kept, taker *checkpoint.Taker) *checkpoint.Taker {
			repo.unheard = true
			g.Expect(taker.Push(context.Background())).To(gomega.MatchError(errPush))
			repo.unheard = false
			return taker
		},
		"when the daemon was killed before it heard the answer": func(g *gomega.WithT, repo *kept, taker *checkpoint.Taker) *checkpoint.Taker {
			repo.unheard = true
			g.Expect(taker.Push(context.Background())).To(gomega.MatchError(errPush))
			repo.unheard = false
			return anew(taker)
		},
		"with the last checkpoint of an attempt": func(g *gomega.WithT, _ *kept, taker *checkpoint.Taker) *checkpoint.Taker {
			g.Expect(taker.Journal.Update(func(s *journal.State) error {
				s.Final = &journal.Final{Attempt: 1, Number: 5}
				return nil
			})).To(gomega.Succeed())
			return taker
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, repo := gomega.NewWithT(t), newKept()
				taker := waiting(t, repo, 0)
				repo.take(g, taker, 1, 2, 3, 4)
				g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
				repo.putBack(1)
				repo.take(g, taker, 5)
				taker = next(g, repo, taker)
				g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
				g.Expect(repo.gitstore).To(gomega.Equal(repo.volume))
				g.Expect(taker.Pending()).To(gomega.BeFalse())
			})
		})
	}
}

func TestAnOlderGitstoreGetsWhatItLostAlthoughItRefusesACheckpointForGood(t *testing.T) {
	g, repo := gomega.NewWithT(t), newKept()
	repo.refused = refname.Code("uid", 3)
	taker := waiting(t, repo, 0)
	repo.take(g, taker, 1, 2, 3, 4)
	var refused *checkpoint.RefusedError
	g.Expect(taker.Push(t.Context())).To(gomega.BeAssignableToTypeOf(refused))
	repo.putBack(1)
	repo.take(g, taker, 5)
	g.Expect(taker.Push(t.Context())).To(gomega.BeAssignableToTypeOf(refused))
	for _, n := range []int64{1, 2, 4, 5} {
		g.Expect(repo.gitstore).To(gomega.HaveKey(refname.Code("uid", n)))
	}
}

func TestTheGitstoreIsNotAskedWithEveryPush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, repo := gomega.NewWithT(t), newKept()
		taker := waiting(t, repo, 0)
		for n := range int64(12) {
			repo.take(g, taker, n+1)
			g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
			g.Expect(taker.Push(t.Context())).To(gomega.Succeed(), "nothing is to be pushed")
			time.Sleep(10 * time.Second) // by synctest's clock: the interval itself is tested
		}
		g.Expect(repo.asked).To(gomega.Equal(2))
	})
}

// A daemon is killed after it found out what the gitstore lacks, or during the push.
func TestWhatAnOlderGitstoreLacksIsPushedByTheNextDaemon(t *testing.T) {
	g, repo := gomega.NewWithT(t), newKept()
	taker := waiting(t, repo, 0)
	repo.take(g, taker, 1, 2, 3)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	repo.putBack(1)
	repo.take(g, taker, 4)
	repo.refused = refname.Code("uid", 2)
	g.Expect(anew(taker).Push(t.Context())).NotTo(gomega.Succeed())
	g.Expect(taker.MissingInGitstore(2)).To(gomega.BeTrue())
	repo.refused = ""
	g.Expect(anew(taker).Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.gitstore).To(gomega.Equal(repo.volume))
}

// A checkpoint's refs are written before the journal: a kill, or a full volume, leaves them
// behind.
func TestWhatTheJournalDoesNotKnowIsNeverPushed(t *testing.T) {
	g, repo := gomega.NewWithT(t), newKept()
	taker := waiting(t, repo, 0)
	repo.take(g, taker, 1, 2, 3)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	repo.putBack(1)
	repo.take(g, taker, 4)
	hold(repo.volume, journal.Point{Number: 5, Code: "cut", State: "cut"})
	taker = anew(taker)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.gitstore).To(gomega.HaveLen(8))
	g.Expect(repo.gitstore).NotTo(gomega.HaveKey(refname.Code("uid", 5)))
	repo.take(g, taker, 5) // it gets the number, and another tree
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.gitstore).To(gomega.Equal(repo.volume))
}

// Volume and history went back to before checkpoint 2, and the gitstore was unreachable
// when the workspace was prepared.
func TestNumbersGoOnAfterWhatOnlyTheGitstoreHas(t *testing.T) {
	g, repo := gomega.NewWithT(t), newKept()
	taker := waiting(t, repo, 0)
	repo.putBack(4)
	repo.refused = refname.Code("uid", 2)
	repo.take(g, taker, 1, 2)
	var refused *checkpoint.RefusedError
	g.Expect(taker.Push(t.Context())).To(gomega.BeAssignableToTypeOf(refused))
	next, err := taker.Take(t.Context(), checkpoint.Request{Trigger: "Interval"})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(next.Number).To(gomega.BeEquivalentTo(5))
}

// A kill interrupted checkpoint 3; then it turns out that the gitstore has another one of
// that number. The gitstore is restored to before that.
func TestWhatAKillCutIsNoCheckpointWhenItsNumberIsPassedOver(t *testing.T) {
	g, repo := gomega.NewWithT(t), newKept()
	taker := waiting(t, repo, 0)
	repo.take(g, taker, 1)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	hold(repo.volume, journal.Point{Number: 3, Code: "cut", State: "cut"})
	repo.putBack(4)
	repo.take(g, taker, 2)
	taker = anew(taker)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(taker.Journal.State().LastNumber).To(gomega.BeEquivalentTo(4))
	g.Expect(taker.OnVolume(t.Context())).To(gomega.HaveLen(2))
	repo.putBack(2)
	repo.take(g, taker, 5)
	g.Expect(anew(taker).Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.gitstore).NotTo(gomega.HaveKey(refname.Code("uid", 3)))
	g.Expect(repo.gitstore).To(gomega.HaveKey(refname.Code("uid", 5)))
}

func TestWhatIsGivenUpIsNotPushedToAnOlderGitstore(t *testing.T) {
	g, repo := gomega.NewWithT(t), newKept()
	taker := waiting(t, repo, 0)
	repo.take(g, taker, 1, 2, 3)
	g.Expect(taker.Journal.Update(func(s *journal.State) error { s.GiveUp(2); return nil })).To(gomega.Succeed())
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	repo.putBack(0)
	repo.take(g, taker, 4)
	g.Expect(anew(taker).Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.gitstore).To(gomega.HaveLen(6))
	g.Expect(repo.gitstore).NotTo(gomega.HaveKey(refname.Code("uid", 2)))
}

func TestACheckpointThatCannotBeSentAgainHoldsBackNoOther(t *testing.T) {
	g, repo := gomega.NewWithT(t), newKept()
	taker := waiting(t, repo, 0)
	repo.take(g, taker, 1, 2)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	repo.putBack(1)
	repo.take(g, taker, 3)
	repo.damaged = "c2"
	g.Expect(anew(taker).Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.gitstore).To(gomega.HaveKey(refname.Code("uid", 3)))
	g.Expect(taker.Journal.State().Lost).To(gomega.Equal([]int64{2}))
}

func TestACheckpointThatIsRefusedWhenItComesAgainHoldsBackNoOther(t *testing.T) {
	g, repo := gomega.NewWithT(t), newKept()
	taker := waiting(t, repo, 0)
	repo.take(g, taker, 1, 2)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	repo.putBack(1)
	repo.refused = refname.Code("uid", 2)
	repo.take(g, taker, 3)
	var refused *checkpoint.RefusedError
	g.Expect(anew(taker).Push(t.Context())).To(gomega.BeAssignableToTypeOf(refused))
	g.Expect(repo.gitstore).To(gomega.HaveKey(refname.Code("uid", 3)))
}
