package gateway_test

import (
	"context"
	"errors"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/podidentity"
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

// continuing stands in for a cluster in which every Task says that it continues the history of formers,
// newest first.
type continuing struct{ formers []string }

func (continuing) CheckTask(context.Context, podidentity.Identity) error          { return nil }
func (continuing) Contract(context.Context, podidentity.Identity) (string, error) { return "", nil }

func (continuing) Inherits(context.Context, podidentity.Identity) (bool, error) { return false, nil }
func (continuing) Source(context.Context, podidentity.Identity) (string, error) { return "", nil }
func (continuing) SupervisorTools(context.Context, podidentity.Identity) ([]v1alpha1.AgentTool, bool, error) {
	return nil, false, nil
}
func (c continuing) Adopted(context.Context, podidentity.Identity) ([]string, error) {
	return c.formers, nil
}

var _ = Describe("A task whose adoption an older copy of the history store does not know", func() {
	former, task := history.Task{Namespace: "team", Name: "a", UID: "former"}, history.Task{Namespace: "team", Name: "a", UID: "uid-of-a"}
	var (
		f     *fixture
		code  *adoptingCode
		tasks *continuing
		store *postgres.Store
	)
	BeforeEach(func(ctx SpecContext) {
		dsn := pg.Database(GinkgoTB())
		code, tasks = &adoptingCode{}, &continuing{[]string{former.UID}}
		f = serveAt(dsn, func(o *gateway.Options) { o.Code, o.Tasks = code, tasks })
		store = openStore(dsn)
		Expect(store.Begin(ctx, former, 1, nil, history.BeginOptions{})).Error().NotTo(HaveOccurred())
		Expect(store.Append(ctx, former, 1, []history.Record{{Sequence: 1, Attempt: 1, Time: time.Now(), Checkpoint: &history.Checkpoint{
			Number: 1, Attempt: 1, Commit: "c1", Tree: "t1",
		}}})).Error().NotTo(HaveOccurred())
	})

	It("has that history again when it begins, though its manager has recorded since what it did", func(ctx SpecContext) {
		published := func(of history.Task, commit string) history.Event {
			return history.Event{ID: of.UID + "/1", Task: of, Time: time.Now(), Type: "task", Transition: 1, Reason: "TaskPublished",
				Publication: &history.Publication{Ref: "refs/heads/work", Commit: commit, Number: 1}}
		}
		Expect(store.RecordEvents(ctx, []history.Event{published(former, "c1"), published(task, "c2")})).To(Succeed())
		for range 2 {
			Expect(f.begin("a2")).To(SatisfyAll(HaveField("LastSequence", int64(1)), HaveField("LatestCheckpoint.Number", int64(1))))
		}
		Expect(code.asked).To(Equal([]gitstoreapi.TaskAdoption{{Namespace: "team", UID: task.UID, Former: former.UID}}))
		Expect(store.Begin(ctx, former, 9, nil, history.BeginOptions{})).Error().To(MatchError(history.ErrFenced))
		Expect(store.Publication(ctx, task.Key(), "refs/heads/work")).To(HaveField("Commit", "c2"), "its own is newer")
	})

	It("does not begin while that history is being deleted, and begins anew after that", func(ctx SpecContext) {
		Expect(store.ClaimDeletion(ctx, former.UID)).To(BeEmpty())
		_, err := f.tryBegin("a2", nil)
		Expect(err).To(beRefused(connect.CodeUnavailable))
		Expect(err).To(MatchError(ContainSubstring("it is being deleted")))
		Expect(store.DeleteTask(ctx, former.UID)).Error().NotTo(HaveOccurred())
		Expect(f.begin("a2").GetLastSequence()).To(BeZero())
	})

	It("has that history again which a former task had adopted, of which the copy does not know either", func(ctx SpecContext) {
		tasks.formers = []string{"second", "between", former.UID, "unknown"}
		for range 2 {
			Expect(f.begin("a2")).To(SatisfyAll(HaveField("LastSequence", int64(1)), HaveField("LatestCheckpoint.Number", int64(1))))
		}
		Expect(store.FormerTasks(ctx, task.UID)).To(HaveExactElements(HaveField("UID", former.UID), HaveField("UID", "between"), HaveField("UID", "second")))
		for _, uid := range tasks.formers[:3] {
			writer := history.Task{Namespace: task.Namespace, Name: task.Name, UID: uid}
			Expect(store.Begin(ctx, writer, 9, nil, history.BeginOptions{})).Error().To(MatchError(history.ErrFenced))
		}
	})

	It("is kept from its history by none that another namespace has imported under a former UID", func(ctx SpecContext) {
		tasks.formers = []string{"second", "between", former.UID}
		importInto(ctx, store, "evil", "between")
		Expect(f.begin("a2")).To(SatisfyAll(HaveField("LastSequence", int64(1)), HaveField("LatestCheckpoint.Number", int64(1))))
		Expect(store.FormerTasks(ctx, task.UID)).To(HaveExactElements(HaveField("UID", former.UID), HaveField("UID", "second")))
	})

	It("begins anew if only another namespace has a history under a former UID", func(ctx SpecContext) {
		Expect(store.DeleteTask(ctx, former.UID)).Error().NotTo(HaveOccurred())
		tasks.formers = []string{"second", "between"}
		importInto(ctx, store, "evil", "between")
		Expect(f.begin("a2").GetLastSequence()).To(BeZero())
	})

	It("does not begin while the history of an earlier former one is being deleted", func(ctx SpecContext) {
		tasks.formers = []string{"between", former.UID}
		Expect(store.ClaimDeletion(ctx, former.UID)).To(BeEmpty())
		_, err := f.tryBegin("a2", nil)
		Expect(err).To(SatisfyAll(beRefused(connect.CodeUnavailable), MatchError(ContainSubstring("it is being deleted"))))

		By("having the former one's of which the copy knows being deleted, too")
		between := history.Task{Namespace: "team", Name: "a", UID: "between"}
		Expect(store.Begin(ctx, between, 1, nil, history.BeginOptions{})).Error().NotTo(HaveOccurred())
		Expect(store.ClaimDeletion(ctx, between.UID)).To(BeEmpty())
		_, err = f.tryBegin("a2", nil)
		Expect(err).To(beRefused(connect.CodeUnavailable))
		for _, uid := range tasks.formers {
			Expect(store.DeleteTask(ctx, uid)).Error().NotTo(HaveOccurred())
		}
		Expect(f.begin("a2").GetLastSequence()).To(BeZero())
	})
})

// importInto imports a history of a task with a UID, which another store has, into a namespace.
func importInto(ctx context.Context, store *postgres.Store, namespace, uid string) {
	GinkgoHelper()
	elsewhere := openStore(pg.Database(GinkgoTB()))
	Expect(elsewhere.Begin(ctx, history.Task{Namespace: namespace, Name: "x", UID: uid}, 1, nil, history.BeginOptions{})).Error().NotTo(HaveOccurred())
	var lines []history.ExportLine
	Expect(elsewhere.Export(ctx, namespace, "x", uid, func(line history.ExportLine) error {
		lines = append(lines, line)
		return nil
	})).To(Succeed())
	Expect(store.Import(ctx, namespace, "mallory", func(yield func(history.ExportLine, error) bool) {
		for _, line := range lines {
			if !yield(line, nil) {
				return
			}
		}
	})).Error().NotTo(HaveOccurred())
}
