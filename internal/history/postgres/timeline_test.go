package postgres_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

func event(task history.Task, n int64, at time.Time) history.Event {
	return history.Event{
		ID: history.EventID(task.UID, n), Task: task, Time: at.Truncate(time.Microsecond),
		Type: history.EventTypeTask, Reason: "TaskStarted", Actor: "clew", Message: fmt.Sprint(n), Attempt: 1,
	}
}

var _ = Describe("The timeline", func() {
	var store *postgres.Store
	task := taskNamed("a")
	var dsn string
	BeforeEach(func() {
		dsn = pg.Database(GinkgoTB())
		store = openAt(GinkgoTB(), dsn)
	})

	It("has each event once, the newest first, however often it is sent", func(ctx SpecContext) {
		want := []history.Event{event(task, 2, time.Now()), event(task, 1, time.Now().Add(-time.Second))}
		for range 3 {
			Expect(store.RecordEvents(ctx, want)).To(Succeed())
		}
		page, err := store.Timeline(ctx, history.TimelineQuery{Namespace: "team", Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		Expect(page).To(BeComparableTo(history.EventPage{Events: want}))
	})

	It("has what happened to all tasks of a contract, page by page, and to no other", func(ctx SpecContext) {
		start := time.Now().Add(-time.Hour)
		var want []string
		for n := range int64(12) {
			member, other := taskNamed(fmt.Sprintf("member-%d", n%3)), taskNamed("other")
			e, foreign := event(member, n, start.Add(time.Duration(n)*time.Second)), event(other, n, start.Add(time.Duration(n)*time.Second))
			Expect(store.RecordEvents(ctx, []history.Event{e})).To(Succeed())
			Expect(store.RecordEvents(ctx, []history.Event{foreign})).To(Succeed())
			Expect(store.KeepSpec(ctx, member.Key(), history.KeptSpec{Membership: history.Membership{Contract: "port"}})).To(Succeed())
			Expect(store.KeepSpec(ctx, other.Key(), history.KeptSpec{Membership: history.Membership{Contract: "harbour"}})).To(Succeed())
			want = append([]string{e.ID}, want...)
		}
		var seen []string
		query := history.TimelineQuery{Namespace: "team", Contract: "port", Limit: 5}
		for more := true; more; {
			page, err := store.Timeline(ctx, query)
			Expect(err).NotTo(HaveOccurred())
			for _, e := range page.Events {
				seen = append(seen, e.ID)
				query.Before = history.EventKey{Time: e.Time, ID: e.ID}
			}
			more = page.More
		}
		Expect(seen).To(Equal(want))
		query = history.TimelineQuery{Namespace: "others", Contract: "port", Limit: 5}
		Expect(store.Timeline(ctx, query)).To(HaveField("Events", BeEmpty()), "the contract of that name in another namespace")
	})

	It("has those of a contract that never began, too, until their histories are deleted", func(ctx SpecContext) {
		waits := event(taskNamed("waits"), 1, time.Now())
		waits.Contract = "port"
		Expect(store.RecordEvents(ctx, []history.Event{waits})).To(Succeed())
		gone := event(waits.Task, 2, time.Now()) // of somebody who does not know the contract
		Expect(store.RecordEvents(ctx, []history.Event{gone})).To(Succeed())
		ofContract := history.TimelineQuery{Namespace: "team", Contract: "port", Limit: 5}
		Expect(store.Timeline(ctx, ofContract)).To(HaveField("Events", ConsistOf(HaveField("ID", waits.ID), HaveField("ID", gone.ID))))
		entries := history.EntriesQuery{Namespace: history.Namespace{Key: "team"}, Contract: "port", Entries: []history.NewEntry{{Task: waits.Task.Key(), Event: waits.ID}}}
		Expect(store.Entries(ctx, entries)).To(ConsistOf(HaveField("ID", waits.ID)))
		entries.Contract = "another"
		Expect(store.Entries(ctx, entries)).To(BeEmpty())
	})

	It("has those of a contract that a former release has kept, once the store is cleaned", func(ctx SpecContext) {
		e := event(taskNamed("kept"), 1, time.Now())
		Expect(store.RecordEvents(ctx, []history.Event{e})).To(Succeed())
		Expect(connect(GinkgoTB(), dsn).Exec(ctx, `INSERT INTO task_specs (uid, namespace, spec, variables, fields, contract)
			VALUES ($1, $2, '{}', '{}', '{}', 'port')`, e.Task.UID, e.Task.Namespace)).Error().NotTo(HaveOccurred())
		Expect(store.Clean(ctx, postgres.MaintenanceOptions{})).To(Succeed())
		Expect(store.Timeline(ctx, history.TimelineQuery{Namespace: "team", Contract: "port", Limit: 5})).
			To(HaveField("Events", ConsistOf(HaveField("ID", e.ID))))
	})

	It("takes no event without an id", func(ctx SpecContext) {
		Expect(store.RecordEvents(ctx, []history.Event{{Task: task}})).NotTo(Succeed())
	})

	It("takes a batch of no events", func(ctx SpecContext) {
		Expect(store.RecordEvents(ctx, nil)).To(Succeed())
	})

	It("has pages that neither lose nor repeat an event, while others are added at the top", func(ctx SpecContext) {
		start := time.Now().Add(-time.Hour)
		var events []history.Event
		want := map[string]int{}
		for n := range int64(50) {
			// Some have the same time.
			e := event(task, n, start.Add(time.Duration(n/4)*time.Second))
			events, want[e.Message] = append(events, e), 1
		}
		Expect(store.RecordEvents(ctx, events)).To(Succeed())
		seen := map[string]int{}
		query := history.TimelineQuery{Namespace: "team", Name: "a", Limit: 7}
		for pages, more := 0, true; more; pages++ {
			page, err := store.Timeline(ctx, query)
			Expect(err).NotTo(HaveOccurred())
			Expect(page.Events).NotTo(BeEmpty())
			for _, e := range page.Events {
				seen[e.Message]++
			}
			Expect(store.RecordEvents(ctx, []history.Event{event(task, int64(1000+pages), time.Now())})).To(Succeed())
			last := page.Events[len(page.Events)-1]
			query.Before, more = history.EventKey{Time: last.Time, ID: last.ID}, page.More
		}
		Expect(seen).To(Equal(want), "how often each event was read")
	})

	When("a task has worked", func() {
		const (
			moved     = "rewind ConversationMoved the conversation continues from message 4, on branch-2 (Rewind)"
			drift     = "file DriftDetected 2 files"
			created   = "checkpoint CheckpointCreated checkpoint 1 (ToolCalls): 2 files changed, +3 -4 lines"
			files     = "file FilesChanged added a, modified b"
			ofAgent   = "chat AgentMessage done"
			ofUser    = "chat UserMessage do it now"
			ofManager = "task TaskStarted 1"
		)
		var start time.Time
		BeforeEach(func(ctx SpecContext) {
			w := begin(GinkgoTB(), store, task, 1)
			start = time.Now().Add(-time.Hour)
			Expect(store.RecordEvents(ctx, []history.Event{event(w.task, 1, start)})).To(Succeed())
			withFiles := checkpoint(1)
			withFiles.Checkpoint.Changes = []history.FileChange{{Path: "a", Action: "Added"}, {Path: "b", Action: "Modified"}}
			w.append(user("do  it\nnow"), call("x"), result("x"), agent("done"), withFiles,
				history.Record{Event: &history.DaemonEvent{Reason: "DriftDetected", Message: "2 files", Details: map[string]string{"type": "file"}}})
			created := event(w.task, 2, time.Now())
			created.Type, created.Reason, created.Checkpoint = history.EventTypeCheckpoint, "CheckpointCreated", 1
			Expect(store.RecordEvents(ctx, []history.Event{created})).To(Succeed())
			w.move("op", 1)
		})
		read := func(query history.TimelineQuery) []string {
			GinkgoHelper()
			query.Namespace, query.Limit = "team", 100
			page, err := store.Timeline(GinkgoTB().Context(), query)
			Expect(err).NotTo(HaveOccurred())
			var lines []string
			for _, e := range page.Events {
				lines = append(lines, e.Type+" "+e.Reason+" "+e.Message)
			}
			return lines
		}

		// Times within a batch may be equal to the microsecond, so the order is not compared.
		It("merges what the task, its daemon and the manager have recorded", func() {
			Expect(read(history.TimelineQuery{})).To(ConsistOf(moved, drift, created, files, ofAgent, ofUser, ofManager))
		})
		It("can be read for one task", func() {
			Expect(read(history.TimelineQuery{Name: "a"})).To(ConsistOf(moved, drift, created, files, ofAgent, ofUser, ofManager))
		})
		It("can be read by type", func() {
			Expect(read(history.TimelineQuery{Name: "a", Types: []string{"chat"}})).To(ConsistOf(ofAgent, ofUser))
		})
		It("has one entry for all files that changed up to a checkpoint", func() {
			Expect(read(history.TimelineQuery{Types: []string{"file"}})).To(ConsistOf(drift, files))
		})
		It("says only how many files changed, if their names are not wanted", func() {
			Expect(read(history.TimelineQuery{Types: []string{"file"}, WithoutFileNames: true})).To(ConsistOf(drift, MatchRegexp(`^file \w+ \d+ files? changed$`)))
		})
		It("can be read since a time", func() {
			Expect(read(history.TimelineQuery{Since: start.Add(time.Minute)})).To(ConsistOf(moved, drift, created, files, ofAgent, ofUser))
		})
		It("is not found for an unknown task", func(ctx SpecContext) {
			_, err := store.Timeline(ctx, history.TimelineQuery{Namespace: "team", Name: "unknown", Limit: 1})
			Expect(err).To(MatchError(history.ErrNotFound))
		})
		It("shows nothing to another namespace", func(ctx SpecContext) {
			Expect(store.Timeline(ctx, history.TimelineQuery{Namespace: "elsewhere", UID: task.UID, Limit: 1})).To(HaveField("Events", BeEmpty()))
		})
	})
})

var _ = Describe("A conversation that is read by its task's name", func() {
	var store *postgres.Store
	var w *writer
	BeforeEach(func() {
		store = open(GinkgoTB())
		begin(GinkgoTB(), store, history.Task{Namespace: "team", Name: "a", UID: "first life"}, 1).append(user("old"))
		w = begin(GinkgoTB(), store, taskNamed("a"), 1)
		for i := range 10 {
			w.append(user(fmt.Sprint(i)))
		}
		w.append(checkpoint(1), user("left"))
		w.move("op", 1)
	})
	beTexts := func(texts ...string) types.GomegaMatcher {
		return WithTransform(func(entries []history.Entry) (got []string) {
			for _, e := range entries {
				got = append(got, e.Message.Text)
			}
			return got
		}, Equal(texts))
	}

	It("is its active branch, a page at a time", func(ctx SpecContext) {
		Expect(store.TaskConversation(ctx, history.ConversationQuery{Namespace: "team", Name: "a", After: 2, Limit: 3})).To(And(
			HaveField("Entries", beTexts("2", "3", "4")), HaveField("Remaining", BeEquivalentTo(5)), HaveField("Branch", "branch-2")))
	})
	It("is the end of another branch, if that is asked for", func(ctx SpecContext) {
		Expect(store.TaskConversation(ctx, history.ConversationQuery{Namespace: "team", Name: "a", Branch: "main", Last: 2, Limit: 5})).To(And(
			HaveField("Entries", beTexts("9", "left")), HaveField("Remaining", BeEquivalentTo(0)), HaveField("Branch", "main")))
	})
	It("is that of an earlier task of the name, if its UID is given", func(ctx SpecContext) {
		Expect(store.TaskConversation(ctx, history.ConversationQuery{Namespace: "team", Name: "a", UID: "first life", Limit: 5})).To(
			HaveField("Entries", beTexts("old")))
	})
	DescribeTable("is not found", func(ctx SpecContext, query history.ConversationQuery) {
		_, err := store.TaskConversation(ctx, query)
		Expect(err).To(MatchError(history.ErrNotFound))
	},
		Entry("for an unknown task", history.ConversationQuery{Namespace: "team", Name: "unknown"}),
		Entry("on a branch that does not exist", history.ConversationQuery{Namespace: "team", Name: "a", Branch: "branch-9"}),
		Entry("on a branch whose name is invalid", history.ConversationQuery{Namespace: "team", Name: "a", Branch: "x"}),
		Entry("from another namespace", history.ConversationQuery{Namespace: "elsewhere", Name: "a", UID: taskNamed("a").UID}),
	)
})
