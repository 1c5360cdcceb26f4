package gateway_test

import (
	"context"
	"errors"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// adoptingCode is a gitstore that notes what it is asked to adopt.
type adoptingCode struct {
	down bool
	// refuse is what it answers to adoptions; nil for none.
	refuse error
	// asked is what it was asked to adopt, and has what it still has of that.
	asked, has []gitstoreapi.TaskAdoption
}

func (c *adoptingCode) LackingAdoptions(_ context.Context, known []gitstoreapi.TaskAdoption) (lacking []gitstoreapi.TaskAdoption, err error) {
	if c.down {
		return nil, errors.New("the gitstore is down")
	}
	for _, a := range known {
		if !slices.Contains(c.has, a) {
			lacking = append(lacking, a)
		}
	}
	return lacking, nil
}

func (c *adoptingCode) AdoptTask(_ context.Context, a gitstoreapi.TaskAdoption) (gitstoreapi.Adoption, error) {
	if c.refuse != nil {
		return gitstoreapi.Adoption{}, c.refuse
	}
	c.asked, c.has = append(c.asked, a), append(c.has, a)
	return gitstoreapi.Adoption{}, nil
}

var _ = Describe("A task that adopts the history of a former one", func() {
	It("begins once the gitstore has its checkpoints under its own UID", func(ctx SpecContext) {
		dsn, code := pg.Database(GinkgoTB()), &adoptingCode{down: true}
		f := serveAt(dsn, func(o *gateway.Options) { o.Code = code })
		store := openStore(dsn)
		former, task := history.Task{Namespace: "team", Name: "a", UID: "former"}, history.Task{Namespace: "team", Name: "a", UID: "uid-of-a"}
		Expect(store.Begin(ctx, former, 1, nil, history.BeginOptions{})).Error().NotTo(HaveOccurred())
		Expect(store.Adopt(ctx, task, "former")).To(Succeed())

		_, err := f.tryBegin("a2", nil)
		Expect(err).To(beRefused(connect.CodeUnavailable))
		code.down = false
		code.refuse = gitstoreapi.New(gitstoreapi.QuotaExceeded, "ask for a larger one")
		_, err = f.tryBegin("a2", nil)
		Expect(err).To(SatisfyAll(beRefused(connect.CodeUnavailable), MatchError(ContainSubstring("QuotaExceeded: ask for a larger one"))))
		code.refuse = nil
		for range 2 {
			Expect(f.begin("a2").GetAttempt()).To(BeEquivalentTo(2))
		}
		adoption := gitstoreapi.TaskAdoption{Namespace: "team", UID: "uid-of-a", Former: "former"}
		Expect(code.asked).To(Equal([]gitstoreapi.TaskAdoption{adoption}))

		By("restoring the gitstore from a copy that is older than that")
		code.has = nil
		Expect(f.begin("a2").GetAttempt()).To(BeEquivalentTo(2))
		Expect(code.asked).To(Equal([]gitstoreapi.TaskAdoption{adoption, adoption}))
	})

	It("takes no checkpoint for the object that stands for one of the former task's, and does for the next of its name", func(ctx SpecContext) {
		dsn := pg.Database(GinkgoTB())
		f := serveAt(dsn, often)
		store := openStore(dsn)
		former, task := history.Task{Namespace: "team", Name: "a", UID: "former"}, history.Task{Namespace: "team", Name: "a", UID: "uid-of-a"}
		Expect(store.Begin(ctx, former, 1, nil, history.BeginOptions{})).Error().NotTo(HaveOccurred())
		Expect(store.Append(ctx, former, 1, []history.Record{{Sequence: 1, Attempt: 1, Time: time.Now(), Checkpoint: &history.Checkpoint{
			Number: 1, Attempt: 1, Commit: "c1", Tree: "t1", RequestedByName: "release", RequestedByUID: "former-object",
		}}})).Error().NotTo(HaveOccurred())
		Expect(store.Adopt(ctx, task, "former")).To(Succeed())
		f.begin("a2")

		f.board.Set(request("a", "release"))
		commands, _ := f.commands(f.ctx, "a2")
		f.board.Set(request("a", "later"))
		expectCommand(commands, "later")
		Expect(store.ClaimCheckpoint(ctx, task.Key(), "release", "uid-release")).To(BeEquivalentTo(1))
		f.board.Set(request("a", "latest"))
		expectCommand(commands, "latest")

		By("deleting the object, and applying another one of its name")
		f.board.Remove(request("a", "release"))
		again := request("a", "release")
		again.UID = "uid-again"
		f.board.Set(again)
		Expect(next(commands, "the request of the other object").GetUid()).To(Equal("uid-again"))
	})
})
