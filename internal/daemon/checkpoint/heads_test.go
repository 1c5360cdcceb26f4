package checkpoint_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/worktree"
)

// committing is a store of checkpoints whose agent commits.
type committing struct {
	*store
	stored []string
	// fails returns the error of storing a commit; nil stores all.
	fails func(commit string) error
	// damaged is a commit of which the volume has lost something.
	damaged string
	here    map[string]string
}

func (c *committing) StoreHead(_ context.Context, r worktree.HeadRequest) error {
	c.stored = append(c.stored, r.Commit)
	if c.fails != nil {
		return c.fails(r.Commit)
	}
	return nil
}

func (c *committing) CheckSendable(_ context.Context, ids, _ []string) error {
	if slices.Contains(ids, c.damaged) {
		return &worktree.Error{Reason: worktree.CheckpointCorrupted, Message: "an object is damaged"}
	}
	return nil
}

func (c *committing) Refs(context.Context, string) (map[string]string, error) { return c.here, nil }

// withHeads returns a Taker with pending checkpoints whose agent's HEAD was at these commits.
func withHeads(t *testing.T, repo checkpoint.Repo, heads ...string) *checkpoint.Taker {
	t.Helper()
	taker := waiting(t, repo, 0)
	gomega.NewWithT(t).Expect(taker.Journal.Update(func(s *journal.State) error {
		for i, head := range heads {
			s.Pending = append(s.Pending, journal.Point{Number: int64(i + 1), Code: "c", State: "s", Head: head})
		}
		return nil
	})).To(gomega.Succeed())
	return taker
}

// hasHead reports whether a push has the ref of one of the agent's commits.
func hasHead(refs []string) bool {
	return slices.ContainsFunc(refs, func(ref string) bool { return strings.HasPrefix(ref, "refs/clew/uid/head/") })
}

// events lists the reasons of the events that a Taker has recorded.
func events(g *gomega.WithT, taker *checkpoint.Taker) (reasons []string) {
	records, err := taker.Spool.Read(0, 1000, 1<<20)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	for _, r := range records {
		if e := r.GetEvent(); e != nil {
			reasons = append(reasons, e.GetReason())
		}
	}
	return reasons
}

func TestTheAgentsCommitsGoWithTheirCheckpoints(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &committing{store: &store{}}
	taker := withHeads(t, repo, "h1", "h1", "", "h2")
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.pushes).To(gomega.HaveLen(1))
	g.Expect(repo.pushes[0][8:]).To(gomega.Equal([]string{"refs/clew/uid/head/h1", "refs/clew/uid/head/h2"}))

	g.Expect(taker.Journal.Update(func(s *journal.State) error {
		s.Pending = []journal.Point{{Number: 5, Code: "c", State: "s", Head: "h2"}}
		return nil
	})).To(gomega.Succeed())
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.pushes[1]).To(gomega.HaveLen(2), "the gitstore has that commit")
	g.Expect(repo.stored).To(gomega.Equal([]string{"h1", "h2"}))
}

func TestACommitThatCannotBeStoredHoldsBackNoCheckpoint(t *testing.T) {
	for name, fails := range map[string]error{
		"for good":    &worktree.Error{Reason: worktree.HeadNotStored, Message: "it holds a secret"},
		"for now":     &worktree.Error{Reason: worktree.GitFailed, Message: "git failed"},
		"within time": context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			repo := &committing{store: &store{}, fails: func(string) error { return fails }}
			taker := withHeads(t, repo, "h1", "h1")
			g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
			g.Expect(taker.Pending()).To(gomega.BeFalse())
			g.Expect(hasHead(slices.Concat(repo.pushes...))).To(gomega.BeFalse())
			g.Expect(repo.stored).To(gomega.HaveLen(1))
			g.Expect(events(g, taker)).To(gomega.Equal([]string{v1alpha1.EventHeadNotStored}), "once for each commit")
			records, err := taker.Spool.Read(0, 100, 1<<20)
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(records[len(records)-1].GetCheckpoint().GetDurable()).To(gomega.BeTrue(), "whoever has that the last checkpoint is durable has all records")
		})
	}
}

// TestACommitThatTheGitstoreRefusesHoldsBackNoCheckpoint: one of an earlier release takes none.
func TestACommitThatTheGitstoreRefusesHoldsBackNoCheckpoint(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &committing{store: &store{}}
	repo.answer = func(refs []string) error {
		if hasHead(refs) {
			return printed("remote: clew: RefNotAllowed: refs/clew/uid/head/h1 is not the ref of a checkpoint")
		}
		return nil
	}
	taker := withHeads(t, repo, "h1", "h1", "h2")
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(taker.Pending()).To(gomega.BeFalse())
}

func TestACommitIsNotBlamedForItsCheckpoint(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &committing{store: &store{}}
	refuses := true
	repo.answer = func(refs []string) error {
		if refuses && slices.Contains(refs, "refs/clew/uid/code/1") {
			return printed("remote: clew: PushTooLarge: the push is larger than the gitstore takes at once")
		}
		return nil
	}
	taker := withHeads(t, repo, "h1")
	var refused *checkpoint.RefusedError
	g.Expect(errors.As(taker.Push(t.Context()), &refused)).To(gomega.BeTrue())
	refuses = false
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(hasHead(repo.pushes[0])).To(gomega.BeTrue())
}

func TestADamagedCommitHoldsBackNoCheckpoint(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &committing{store: &store{}, damaged: "h1"}
	repo.answer = func(refs []string) error {
		if slices.Contains(refs, "refs/clew/uid/head/h1") {
			return errPush
		}
		return nil
	}
	taker := withHeads(t, repo, "h1", "h2")
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(repo.pushes).To(gomega.HaveLen(1))
	g.Expect(repo.pushes[0]).To(gomega.ContainElement("refs/clew/uid/head/h2"))
	g.Expect(events(g, taker)).To(gomega.HaveLen(1))
}

func TestAnOlderGitstoreGetsTheCommitsThatItLost(t *testing.T) {
	g := gomega.NewWithT(t)
	repo := &committing{store: &store{}, here: map[string]string{"refs/clew/uid/head/h1": "h1", "refs/clew/uid/head/h2": "h2"}}
	taker := withHeads(t, repo, "h2")
	g.Expect(taker.Push(t.Context())).To(gomega.Succeed())
	g.Expect(slices.Concat(repo.pushes...)).To(gomega.ContainElements("refs/clew/uid/head/h1", "refs/clew/uid/head/h2"))
}
