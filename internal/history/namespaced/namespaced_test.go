package namespaced_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/namespaced"
	"github.com/clew-dev/clew/internal/namespaceid"
)

// looks are the ways to look at the history of the task fix of a namespace. Each returns how much
// it found.
func looks(name string) map[string]func(context.Context, *namespaced.Store) (int, error) {
	old := history.Key{Namespace: name, UID: "old"}
	return map[string]func(context.Context, *namespaced.Store) (int, error){
		"list": func(ctx context.Context, s *namespaced.Store) (int, error) {
			page, err := s.Tasks(ctx, history.TaskQuery{Namespace: name, Limit: 10})
			return len(page.Tasks), err
		},
		"named": func(ctx context.Context, s *namespaced.Store) (int, error) {
			found, err := s.TasksNamed(ctx, name, "fix")
			return len(found), err
		},
		"search": func(ctx context.Context, s *namespaced.Store) (int, error) {
			page, err := s.Search(ctx, history.SearchQuery{Namespace: name, Text: secret, Limit: 10})
			return len(page.Hits), err
		},
		"timeline of the namespace": func(ctx context.Context, s *namespaced.Store) (int, error) {
			page, err := s.Timeline(ctx, history.TimelineQuery{Namespace: name, Limit: 10})
			return len(page.Events), err
		},
		"new entries": func(ctx context.Context, s *namespaced.Store) (int, error) {
			now, err := s.Namespace(ctx, name)
			if err != nil {
				return 0, err
			}
			events, err := s.Entries(ctx, history.EntriesQuery{Namespace: now, Entries: []history.NewEntry{{Task: old, Checkpoint: 1}}})
			return len(events), err
		},
		"timeline of the UID": func(ctx context.Context, s *namespaced.Store) (int, error) {
			page, err := s.Timeline(ctx, history.TimelineQuery{Namespace: name, Name: "fix", UID: "old", Limit: 10})
			return len(page.Events), err
		},
		"conversation": func(ctx context.Context, s *namespaced.Store) (int, error) {
			page, err := s.TaskConversation(ctx, history.ConversationQuery{Namespace: name, Name: "fix", Limit: 10})
			return len(page.Entries), err
		},
		"conversation of the UID": func(ctx context.Context, s *namespaced.Store) (int, error) {
			page, err := s.TaskConversation(ctx, history.ConversationQuery{Namespace: name, UID: "old", Limit: 10})
			return len(page.Entries), err
		},
		"long text": func(ctx context.Context, s *namespaced.Store) (int, error) {
			whole := longText("old")
			text, err := s.Text(ctx, name, &conversation.Pieces{Hashes: [][]byte{conversation.PieceHash(whole)}, Bytes: int64(len(whole))})
			return len(text), err
		},
		"checkpoint": func(ctx context.Context, s *namespaced.Store) (int, error) {
			c, err := s.Checkpoint(ctx, old, 1)
			return int(c.Number), err
		},
		"checkpoints": func(ctx context.Context, s *namespaced.Store) (int, error) {
			found, err := s.CheckpointsBefore(ctx, old, 0, 10)
			return len(found), err
		},
		"rewind": func(ctx context.Context, s *namespaced.Store) (int, error) {
			found, err := s.Operations(ctx, old, []string{"Rewind/r/done"})
			return len(found), err
		},
		"snapshot": func(ctx context.Context, s *namespaced.Store) (int, error) {
			snapshot, err := s.Snapshot(ctx, old, history.SnapshotQuery{Checkpoint: 1})
			return int(snapshot.Position.Position), err
		},
		"publication": func(ctx context.Context, s *namespaced.Store) (int, error) {
			found, err := s.Publication(ctx, old, "refs/heads/work")
			return len(found.Commit), err
		},
		"last spec": func(ctx context.Context, s *namespaced.Store) (int, error) {
			kept, err := s.KeptSpec(ctx, old)
			return len(kept.Spec), err
		},
		"export": func(ctx context.Context, s *namespaced.Store) (int, error) {
			count := 0
			err := s.Export(ctx, name, "fix", "", func(history.ExportLine) error { count++; return nil })
			return count, err
		},
	}
}

// deeds are what a task of the new namespace may try to do with the old one's history.
func deeds(name string) map[string]func(context.Context, *namespaced.Store) error {
	old, now := task(name, "fix", "old"), task(name, "fix", "new")
	return map[string]func(context.Context, *namespaced.Store) error{
		"adopt": func(ctx context.Context, s *namespaced.Store) error { return s.Adopt(ctx, now, "old") },
		"fork": func(ctx context.Context, s *namespaced.Store) error {
			from := &history.Source{TaskUID: "old", Checkpoint: 1, IncludeConversation: true}
			_, err := s.Begin(ctx, task(name, "fork", "fork"), 1, from, history.BeginOptions{})
			return err
		},
		"begin": func(ctx context.Context, s *namespaced.Store) error {
			_, err := s.Begin(ctx, old, 9, nil, history.BeginOptions{})
			return err
		},
		"append": func(ctx context.Context, s *namespaced.Store) error {
			record := history.Record{Sequence: 6, Attempt: 1, Time: time.Now(), Message: &conversation.Message{Role: conversation.RoleUser, Text: "hello"}}
			_, err := s.Append(ctx, old, 1, []history.Record{record})
			return err
		},
		"rewind": func(ctx context.Context, s *namespaced.Store) error {
			_, err := s.MoveConversation(ctx, old, 1, history.MoveOperation{ID: "Rewind/x", Checkpoint: 1})
			return err
		},
		"report": func(ctx context.Context, s *namespaced.Store) error {
			return s.Report(ctx, old, 1, &history.Problem{Reason: "R", Message: "m"})
		},
		"verdict": func(ctx context.Context, s *namespaced.Store) error {
			_, err := s.RecordVerdicts(ctx, old.Key(), []history.Verdict{{Number: 1, Damage: "broken"}}, nil)
			return err
		},
		"damage": func(ctx context.Context, s *namespaced.Store) error {
			return s.ReportDamage(ctx, old.Key(), 1, "broken")
		},
	}
}

var _ = Describe("A namespace that is made anew", func() {
	var w *world
	BeforeEach(func(ctx SpecContext) { w = newWorld(ctx) })

	It("sees and takes nothing of what the old one has left, until that is granted", func(ctx SpecContext) {
		former := create(ctx, "team-a")
		work(ctx, w.store(), task("team-a", "fix", "old"))
		Expect(w.keyed.Index(ctx)).Error().NotTo(HaveOccurred())
		for what, look := range looks("team-a") {
			Expect(look(ctx, w.store())).To(BeNumerically(">", 0), "%s, for the namespace that it belongs to", what)
		}

		uid := remake(ctx, "team-a")
		store := w.store()
		for what, look := range looks("team-a") {
			found, err := look(ctx, store)
			if err != nil {
				Expect(err).To(Or(MatchError(history.ErrNotFound), MatchError(history.ErrCorrupted)), what)
			}
			Expect(found).To(BeZero(), what)
		}
		for what, do := range deeds("team-a") {
			Expect(do(ctx, store)).To(MatchError(history.ErrNotFound), what)
		}
		Expect(store.TaskState(ctx, "old")).To(HaveField("Namespace", Not(Equal("team-a"))))
		Expect(store.Adoption(ctx, task("team-a", "fix", "new"))).To(Equal(history.Adoption{}))

		By("telling the tenant that there is one, and administrators which grant gives it")
		Expect(store.EarlierNamespace(ctx, "team-a", "fix")).To(BeTrue())
		Expect(store.EarlierNamespace(ctx, "team-a", "other")).To(BeFalse())
		Expect(store.EarlierNamespace(ctx, "team-a", "fix")).To(BeTrue())
		Expect(w.log).To(HaveExactElements(ContainSubstring("{namespace: team-a, uid: "+former+"}")), "once, though it asks again and again")

		By("joining both after the grant, once")
		work(ctx, store, task("team-a", "own", "own"))
		Expect(w.keyed.Index(ctx)).Error().NotTo(HaveOccurred())
		for range 2 {
			w.grant(ctx, "team-a="+former)
		}
		store = w.store()
		for what, look := range looks("team-a") {
			Expect(look(ctx, store)).To(BeNumerically(">", 0), what)
		}
		page, err := store.Search(ctx, history.SearchQuery{Namespace: "team-a", Text: secret, Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Hits).To(ConsistOf(HaveField("Task", task("team-a", "fix", "old")), HaveField("Task", task("team-a", "own", "own"))))
		own := longText("own")
		Expect(store.Text(ctx, "team-a", &conversation.Pieces{Hashes: [][]byte{conversation.PieceHash(own)}, Bytes: int64(len(own))})).To(Equal(own))
		Expect(store.Snapshot(ctx, task("team-a", "own", "own").Key(), history.SnapshotQuery{Checkpoint: 2})).To(HaveField("Position.Position", int64(2)))
		Expect(store.EarlierNamespace(ctx, "team-a", "fix")).To(BeFalse())

		By("letting work go on with both")
		Expect(store.Adoption(ctx, task("team-a", "fix", "new"))).To(Equal(history.Adoption{Former: "old"}))
		Expect(store.Adopt(ctx, task("team-a", "fix", "new"), "old")).To(Succeed())
		Expect(store.Begin(ctx, task("team-a", "fix", "new"), 2, nil, history.BeginOptions{})).To(HaveField("CheckpointCount", int64(2)))
		Expect(store.Begin(ctx, task("team-a", "own", "own"), 2, nil, history.BeginOptions{})).To(HaveField("CheckpointCount", int64(2)))

		By("giving nothing to the next one that is made anew, though the grant is still configured")
		third := remake(ctx, "team-a")
		w.grant(ctx, "team-a="+former)
		Expect(strings.Join(w.log, "\n")).To(ContainSubstring("have been given to the namespace with UID " + uid))
		Expect(w.store().Tasks(ctx, history.TaskQuery{Namespace: "team-a", Limit: 10})).To(HaveField("Tasks", BeEmpty()))
		w.grant(ctx, "team-a="+uid)
		Expect(w.store().TasksNamed(ctx, "team-a", "own")).To(HaveLen(1))
		Expect(third).NotTo(Equal(uid))
	})

	It("shows none of its entries to whoever has followed the timelines of the old one", func(ctx SpecContext) {
		entries := func(of history.Namespace, uid string) ([]history.Event, error) {
			task := history.Key{Namespace: "team-h", UID: uid}
			return w.store().Entries(ctx, history.EntriesQuery{Namespace: of, Entries: []history.NewEntry{{Task: task, Checkpoint: 1}}})
		}
		former := create(ctx, "team-h")
		work(ctx, w.store(), task("team-h", "fix", "old"))
		first, err := w.store().Namespace(ctx, "team-h")
		Expect(err).NotTo(HaveOccurred())
		Expect(first).To(Equal(history.Namespace{Name: "team-h", UID: former, Key: "team-h"}))
		Expect(entries(first, "old")).To(HaveExactElements(HaveField("Task", task("team-h", "fix", "old"))))

		uid := remake(ctx, "team-h")
		work(ctx, w.store(), task("team-h", "fix", "new"))
		second, err := w.store().Namespace(ctx, "team-h")
		Expect(err).NotTo(HaveOccurred())
		Expect(second).To(Equal(history.Namespace{Name: "team-h", UID: uid, Key: "team-h@" + uid}))
		Expect(entries(second, "new")).To(HaveLen(1))
		for _, told := range []string{"new", "old"} {
			_, err = entries(first, told)
			Expect(err).To(MatchError(history.ErrNotFound), told)
		}

		By("giving it the histories of the old one, and with these the key")
		w.grant(ctx, "team-h="+former)
		granted, err := w.store().Namespace(ctx, "team-h")
		Expect(err).NotTo(HaveOccurred())
		Expect(granted).To(Equal(history.Namespace{Name: "team-h", UID: uid, Key: first.Key}))
		Expect(entries(granted, "new")).To(HaveLen(1))
		Expect(entries(first, "new")).Error().To(MatchError(history.ErrNotFound))
		Expect(entries(second, "new")).Error().To(MatchError(history.ErrNotFound), "it has more to list now")
	})

	It("has the code of what is granted before it has the histories", func(ctx SpecContext) {
		former := create(ctx, "team-f")
		work(ctx, w.store(), task("team-f", "fix", "old"))
		uid := remake(ctx, "team-f")
		work(ctx, w.store(), task("team-f", "own", "own"))
		own := map[string]string{"team-f@" + former: "team-f", "team-f@" + uid: "team-f@" + uid}
		joined := map[string]string{"team-f@" + former: "team-f", "team-f@" + uid: "team-f"}
		w.grant(ctx)
		Expect(w.code.keys).To(Equal(own), "what is told without a grant")

		w.code.down = true
		w.grant(ctx, "team-f="+former)
		Expect(w.store().TasksNamed(ctx, "team-f", "fix")).To(BeEmpty(), "while the gitstore is down")
		w.code.down = false
		w.grant(ctx, "team-f="+former)
		Expect(w.code.keys).To(Equal(joined))
		Expect(w.store().TasksNamed(ctx, "team-f", "fix")).To(HaveLen(1))

		By("telling it again, as to a gitstore that was restored from an older copy, also without the grant")
		w.code.keys = nil
		w.grant(ctx)
		Expect(w.code.keys).To(Equal(joined))

		By("telling nothing that is refused")
		remake(ctx, "team-f")
		w.grant(ctx, "team-f="+former)
		Expect(w.code.keys).To(Equal(joined))
	})

	It("keeps what a process records that does not know of the grant yet, and lets attempts begin", func(ctx SpecContext) {
		former := create(ctx, "team-e")
		work(ctx, w.store(), task("team-e", "fix", "old"))
		remake(ctx, "team-e")
		own, late := task("team-e", "own", "own"), w.store()
		work(ctx, late, own)
		w.grant(ctx, "team-e="+former)
		again := started(own)
		again.ID, again.Transition, again.Publication.Commit = history.EventID(own.UID, 2), 2, "c2"
		Expect(late.RecordEvents(ctx, []history.Event{again})).To(Succeed())
		Expect(late.Begin(ctx, own, 2, nil, history.BeginOptions{})).To(HaveField("CheckpointCount", int64(2)))
		w.grant(ctx, "team-e="+former)
		Expect(w.store().Publication(ctx, own.Key(), again.Publication.Ref)).To(HaveField("Commit", "c2"))
		Expect(w.store().Timeline(ctx, history.TimelineQuery{Namespace: "team-e", Name: "own", Types: []string{history.EventTypeTask}, Limit: 10})).To(HaveField("Events", HaveLen(2)))
	})

	It("has its own deletions, exports and imports", func(ctx SpecContext) {
		former := create(ctx, "team-d")
		work(ctx, w.store(), task("team-d", "fix", "old"))
		remake(ctx, "team-d")
		store := w.store()
		work(ctx, store, task("team-d", "fix", "new"))
		var exported []history.ExportLine
		Expect(store.Export(ctx, "team-d", "fix", "", func(line history.ExportLine) error { exported = append(exported, line); return nil })).To(Succeed())
		Expect(store.DeleteTask(ctx, "new")).To(HaveField("Task", task("team-d", "fix", "new")))
		Expect(store.RecordedTransitions(ctx, "team-d", "new")).To(BeNumerically(">", 1000))
		Expect(store.Import(ctx, "team-d", "ada", lines(exported))).To(Equal(task("team-d", "fix", "new")))

		w.grant(ctx, "team-d="+former)
		store = w.store()
		Expect(store.TasksNamed(ctx, "team-d", "fix")).To(HaveLen(2))
		exported = nil
		Expect(store.Export(ctx, "team-d", "fix", "new", func(line history.ExportLine) error { exported = append(exported, line); return nil })).To(Succeed())
		Expect(store.DeleteTask(ctx, "new")).Error().NotTo(HaveOccurred())
		Expect(store.Import(ctx, "team-d", "ada", lines(exported))).Error().NotTo(HaveOccurred(), "an export of what has joined can be imported")
		Expect(store.DeleteTask(ctx, "old")).Error().NotTo(HaveOccurred())
		Expect(store.TasksNamed(ctx, "team-d", "fix")).To(HaveExactElements(HaveField("UID", "new")))
	})

	It("shows administrators how much namespaces have left that are gone", func(ctx SpecContext) {
		w.goneBytes = prometheus.NewGauge(prometheus.GaugeOpts{Name: "gone"})
		former := create(ctx, "team-left")
		work(ctx, w.store(), task("team-left", "fix", "old"))
		w.grant(ctx)
		Expect(w.code.gone).To(BeEmpty())
		Expect(testutil.ToFloat64(w.goneBytes)).To(BeZero())

		uid := remake(ctx, "team-left")
		work(ctx, w.store(), task("team-left", "own", "own"))
		w.grant(ctx)
		Expect(w.code.gone).To(HaveExactElements(former))
		sizes, err := w.keyed.KeySizes(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(sizes).To(And(HaveKey("team-left"), HaveKey("team-left@"+uid)))
		Expect(testutil.ToFloat64(w.goneBytes)).To(And(BeNumerically(">", 0), BeEquivalentTo(sizes["team-left"])))

		By("granting it")
		w.grant(ctx, "team-left="+former)
		w.grant(ctx)
		Expect(testutil.ToFloat64(w.goneBytes)).To(BeZero(), "it is the present one's")
	})

	It("lets a task correct what its contract has spent in both", func(ctx SpecContext) {
		spend := func(t history.Task, sequence, cost int64) {
			used := history.Record{Sequence: sequence, Attempt: 1, Time: time.Now(), Usage: &history.Usage{CostMicroUSD: cost}}
			Expect(w.store().Append(ctx, t, 1, []history.Record{used})).Error().NotTo(HaveOccurred())
		}
		former := create(ctx, "team-corrects")
		old, own := task("team-corrects", "lead", "old"), task("team-corrects", "lead", "own")
		Expect(w.store().Begin(ctx, old, 1, nil, history.BeginOptions{Contract: "nightly"})).Error().NotTo(HaveOccurred())
		spend(old, 1, 10)
		remake(ctx, "team-corrects")
		Expect(w.store().Begin(ctx, own, 1, nil, history.BeginOptions{Contract: "nightly"})).Error().NotTo(HaveOccurred())
		spend(own, 1, 30)
		w.grant(ctx, "team-corrects="+former)
		spend(own, 2, -5)
		Expect(w.store().Spending(ctx, own, "")).To(HaveField("ContractSpent.CostMicroUSD", int64(35)))
	})

	It("adds what a contract has spent in both, that of tasks included that are gone", func(ctx SpecContext) {
		spend := func(t history.Task, tokens, recalled int64) {
			Expect(w.store().Begin(ctx, t, 1, nil, history.BeginOptions{Contract: "nightly"})).Error().NotTo(HaveOccurred())
			used := history.Record{Sequence: 1, Attempt: 1, Time: time.Now(), Usage: &history.Usage{InputTokens: tokens}}
			Expect(w.store().Append(ctx, t, 1, []history.Record{used})).Error().NotTo(HaveOccurred())
			Expect(w.store().RecallContractSpending(ctx, t, "nightly", budget.Amounts{InputTokens: recalled}, time.Now())).To(Succeed())
		}
		former := create(ctx, "team-spent")
		spend(task("team-spent", "lead", "old"), 10, 60)
		remake(ctx, "team-spent")
		own := task("team-spent", "lead", "own")
		spend(own, 30, 5)
		w.grant(ctx, "team-spent="+former)
		Expect(w.store().Spending(ctx, own, "")).To(HaveField("ContractSpent.InputTokens", int64(90)))
		more := history.Record{Sequence: 2, Attempt: 1, Time: time.Now(), Usage: &history.Usage{InputTokens: 5}}
		Expect(w.store().Append(ctx, own, 1, []history.Record{more})).Error().NotTo(HaveOccurred())
		Expect(w.store().Spending(ctx, own, "")).To(HaveField("ContractSpent.InputTokens", int64(95)))
	})

	It("has its histories back when it comes back itself, as with a restored etcd", func(ctx SpecContext) {
		former := create(ctx, "team-b")
		work(ctx, w.store(), task("team-b", "fix", "old"))
		uid := remake(ctx, "team-b")
		work(ctx, w.store(), task("team-b", "own", "own"))
		back := namespaced.New(w.keyed, is{UID: former, Created: time.Now().Add(-time.Hour)}, GinkgoLogr)
		Expect(back.TasksNamed(ctx, "team-b", "fix")).To(HaveLen(1))
		Expect(back.TasksNamed(ctx, "team-b", "own")).To(BeEmpty())
		By("taking over what was recorded since, if that is granted")
		g := &namespaced.Grants{Store: w.keyed, Names: is{UID: former, Created: time.Now().Add(-time.Hour)}, Log: GinkgoLogr,
			Grants: []namespaced.Grant{{Namespace: "team-b", UID: uid}}}
		g.CarryOut(ctx)
		back = namespaced.New(w.keyed, is{UID: former, Created: time.Now().Add(-time.Hour)}, GinkgoLogr)
		Expect(back.TasksNamed(ctx, "team-b", "fix")).To(HaveLen(1))
		Expect(back.TasksNamed(ctx, "team-b", "own")).To(HaveLen(1))
	})
})

var _ = Describe("Histories from before the UIDs of namespaces were recorded", func() {
	for _, c := range []struct {
		what    string
		created time.Duration
		theirs  bool
	}{
		{"belong to the namespace that exists", -time.Hour, true},
		{"do not belong to a namespace that was created after them", time.Hour, false},
	} {
		It(c.what, func(ctx SpecContext) {
			w := newWorld(ctx)
			_, err := w.keyed.Begin(ctx, task("team", "fix", "old"), 1, nil, history.BeginOptions{})
			Expect(err).NotTo(HaveOccurred())
			now := is{UID: "u", Created: time.Now().Add(c.created)}
			found, err := namespaced.New(w.keyed, now, GinkgoLogr).TasksNamed(ctx, "team", "fix")
			Expect(err).NotTo(HaveOccurred())
			Expect(len(found) == 1).To(Equal(c.theirs))

			By("granting those of a namespace that was not recorded")
			g := &namespaced.Grants{Store: w.keyed, Names: now, Grants: []namespaced.Grant{{Namespace: "team", UID: "unknown"}}, Log: GinkgoLogr}
			g.CarryOut(ctx)
			Expect(namespaced.New(w.keyed, now, GinkgoLogr).TasksNamed(ctx, "team", "fix")).To(HaveLen(1))
		})
	}

	It("belong to the namespace that exists also if it has only code, and has not asked for them", func(ctx SpecContext) {
		w := newWorld(ctx)
		uid := create(ctx, "team-g")
		w.code.unclaimed = []string{"team-g", "team-gone"}
		w.grant(ctx)
		Expect(w.code.keys).To(Equal(map[string]string{"team-g@" + uid: "team-g"}))
	})

	It("are left aside by the UID that another server has just recorded", func(ctx SpecContext) {
		w := newWorld(ctx)
		results := make(chan string, 8)
		for n := range cap(results) {
			go func() {
				defer GinkgoRecover()
				key, err := w.keyed.NamespaceKey(ctx, "team", fmt.Sprint("uid-", n%2), time.Now())
				Expect(err).NotTo(HaveOccurred())
				results <- fmt.Sprint(n%2, " ", key == "team")
			}()
		}
		seen := map[string]bool{}
		for range cap(results) {
			seen[<-results] = true
		}
		Expect(seen).To(HaveLen(2), "one of both has the name as its key, for everybody: %v", seen)
	})
})

var _ = Describe("A namespace about which nothing is known", func() {
	for what, c := range map[string]struct{ err, want error }{
		"that does not exist":         {namespaceid.ErrNone, history.ErrNotFound},
		"that could not be asked for": {errors.New("no route to host"), history.ErrUnavailable},
	} {
		It(what+" has no histories", func(ctx SpecContext) {
			w := newWorld(ctx)
			_, err := w.keyed.Begin(ctx, task("team-a", "fix", "old"), 1, nil, history.BeginOptions{})
			Expect(err).NotTo(HaveOccurred())
			store := namespaced.New(w.keyed, nobody{c.err}, GinkgoLogr)
			for what, look := range looks("team-a") {
				found, err := look(ctx, store)
				Expect(err).To(MatchError(c.want), what)
				Expect(found).To(BeZero(), what)
			}
			for what, do := range deeds("team-a") {
				Expect(do(ctx, store)).To(MatchError(c.want), what)
			}
			Expect(store.TaskState(ctx, "old")).Error().To(MatchError(c.want))
			Expect(store.RecordEvents(ctx, []history.Event{started(task("team-a", "fix", "new"))})).To(MatchError(c.want))
			Expect(store.EarlierNamespace(ctx, "team-a", "fix")).Error().To(MatchError(c.want))
		})
	}
})

var _ = Describe("Grants", func() {
	for _, wrong := range []string{"", "team-a", "team-a=", "=uid", "team a=uid", "team-a@1=uid"} {
		It(fmt.Sprintf("are not written as %q", wrong), func() {
			Expect(namespaced.ParseGrants([]string{wrong})).Error().To(MatchError(ContainSubstring("write it as namespace=uid")))
		})
	}
})

// is says that every namespace is this one.
type is namespaceid.Namespace

func (i is) Get(context.Context, string) (namespaceid.Namespace, error) {
	return namespaceid.Namespace(i), nil
}

// nobody knows a namespace.
type nobody struct{ err error }

func (n nobody) Get(context.Context, string) (namespaceid.Namespace, error) {
	return namespaceid.Namespace{}, n.err
}
