package checkpoint_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/worktree"
)

// store accepts pushes, as the gitstore does.
type store struct {
	notebook
	pushes [][]string
	// answer returns the answer to a push of some refs; nil accepts all.
	answer func(refs []string) error
}

func (s *store) Push(_ context.Context, _ worktree.Remote, updates ...worktree.RefUpdate) error {
	var refs []string
	for _, u := range updates {
		refs = append(refs, u.Name)
	}
	if s.answer != nil {
		if err := s.answer(refs); err != nil {
			return err
		}
	}
	s.pushes = append(s.pushes, refs)
	return nil
}

// waiting returns a Taker with pending checkpoints.
func waiting(t *testing.T, repo checkpoint.Repo, count int) *checkpoint.Taker {
	t.Helper()
	g := gomega.NewWithT(t)
	dir := t.TempDir()
	j, err := journal.Open(filepath.Join(dir, "journal.json"), nil)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	s, err := spool.Open(filepath.Join(dir, "spool"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { s.Close() })
	g.Expect(j.Update(func(state *journal.State) error {
		for i := range count {
			state.Pending = append(state.Pending, journal.Point{Number: int64(i + 1), Code: "c", State: "s"})
		}
		return nil
	})).To(gomega.Succeed())
	return &checkpoint.Taker{
		Repo: repo, Journal: j, Spool: s, TaskUID: "uid", Attempt: 1,
		Remote: func() (worktree.Remote, error) { return worktree.Remote{}, nil },
	}
}

func TestManyCheckpointsArePushedInSlicesOldestFirst(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &store{}
	taker := waiting(t, repo, 250)
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.pushes).To(gomega.HaveLen(3))
	g.Expect(repo.pushes[0]).To(gomega.HaveLen(200), "a code and a state ref for each of a hundred checkpoints")
	g.Expect(repo.pushes[0][0]).To(gomega.Equal("refs/clew/uid/code/1"))
	g.Expect(repo.pushes[2][99]).To(gomega.Equal("refs/clew/uid/state/250"))
	g.Expect(taker.Pending()).To(gomega.BeFalse())
}

func TestWhatArrivedBeforeTheGitstoreBrokeOffIsDurable(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &store{}
	repo.answer = func([]string) error {
		if len(repo.pushes) == 2 {
			return printed("remote: clew: QuotaExceeded: the quota is used up")
		}
		return nil
	}
	taker := waiting(t, repo, 250)
	var refused *checkpoint.RefusedError
	err := taker.Push(t.Context())
	g.Expect(errors.As(err, &refused)).To(gomega.BeTrue(), "%v", err)
	g.Expect(refused.Retryable).To(gomega.BeTrue())
	pending := taker.Journal.State().Pending
	g.Expect(pending).To(gomega.HaveLen(50))
	g.Expect(pending[0].Number).To(gomega.BeEquivalentTo(201))
}

func TestOneCheckpointThatIsRefusedForGoodHoldsBackNoSlice(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &store{}
	repo.answer = func(refs []string) error {
		for _, ref := range refs {
			if ref == "refs/clew/uid/code/7" {
				return printed("remote: clew: PushTooLarge: the push is larger than the gitstore takes at once")
			}
		}
		return nil
	}
	taker := waiting(t, repo, 150)
	var refused *checkpoint.RefusedError
	err := taker.Push(t.Context())
	g.Expect(errors.As(err, &refused)).To(gomega.BeTrue(), "%v", err)
	g.Expect(refused.Checkpoints).To(gomega.HaveLen(1))
	pending := taker.Journal.State().Pending
	g.Expect(pending).To(gomega.HaveLen(1))
	g.Expect(pending[0].Number).To(gomega.BeEquivalentTo(7))
}

// The branch that keeps what a rewind discards is nowhere else once the volume is gone.
func TestABranchIsGivenUpOnlyIfItIsRefusedForGood(t *testing.T) {
	branch := worktree.RefUpdate{Source: "c", Name: "refs/heads/clew/fix/before"}
	for said, kept := range map[string]bool{
		"remote: clew: VolumeFull: no space is left":          true,
		"remote: clew: QuotaExceeded: the quota is used up":   true,
		"remote: clew: Unavailable: too much is going on":     true,
		"remote: clew: RefNotAllowed: no such branch, please": false,
	} {
		t.Run(said, func(t *testing.T) {
			g := gomega.NewWithT(t)
			repo := &store{}
			refuses := true
			repo.answer = func(refs []string) error {
				if refuses && slices.Contains(refs, branch.Name) {
					return printed(said)
				}
				return nil
			}
			taker := waiting(t, repo, 2)
			err := taker.Push(t.Context(), branch)
			if !kept {
				g.Expect(err).NotTo(gomega.HaveOccurred())
				g.Expect(taker.Pending()).To(gomega.BeFalse(), "it holds back no checkpoint")
				return
			}
			g.Expect(err).To(gomega.HaveOccurred())
			refuses = false
			g.Expect(taker.Push(t.Context(), branch)).To(gomega.Succeed())
			g.Expect(slices.Concat(repo.pushes...)).To(gomega.ContainElement(branch.Name))
			g.Expect(taker.Pending()).To(gomega.BeFalse())
		})
	}
}
