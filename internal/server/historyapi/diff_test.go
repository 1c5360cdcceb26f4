package historyapi_test

import (
	"net/http"
	"net/url"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/historyapi"
)

const diffPath = base + "/tasks/a/diff"

var _ = Describe("The difference between two moments of a task", func() {
	var f *fixture
	BeforeEach(func() { f = quietWith(&conversations{}) })

	// ask returns ann's answer, whose page is filled by the gitstore's stand-in.
	ask := func(query string) historyv1alpha1.Diff {
		GinkgoHelper()
		w := f.get("ann", diffPath+"?"+query)
		Expect(w).To(HaveHTTPStatus(http.StatusOK), "%s", w.Body)
		return decoded[historyv1alpha1.Diff](w)
	}

	DescribeTable("names moments by words and numbers", func(query, from, to string) {
		ask(query)
		Expect(f.code.of).To(Equal("team/new"), "the newest task of the name")
		Expect([]string{f.code.compared.From, f.code.compared.To}).To(Equal([]string{from, to}))
	},
		Entry("by default everything since the base", "", "commit/base", "checkpoint/2"),
		Entry("up to a checkpoint", "to=1", "commit/base", "checkpoint/1"),
		Entry("from a checkpoint on", "from=1", "checkpoint/1", "checkpoint/2"),
		Entry("the last step", "from=previous", "checkpoint/1", "checkpoint/2"),
		Entry("before the first checkpoint is the base", "from=previous&to=1", "commit/base", "checkpoint/1"),
		Entry("before the first one of a fork is that of the source", "from=previous&to=ab:1", "other:commit/other-0", "other:checkpoint/1"),
		Entry("backwards", "from=2&to=1", "checkpoint/2", "checkpoint/1"),
		Entry("to the latest of another task", "from=1&to=ab:latest", "checkpoint/1", "other:checkpoint/2"),
		Entry("the latest of another task, and the one before", "from=previous&to=ab:", "other:checkpoint/1", "other:checkpoint/2"),
		Entry("from another task", "from=ab:1&to=2", "other:checkpoint/1", "checkpoint/2"),
	)

	It("converts the gitstore's page", func() {
		f.code.diff = gitstoreapi.Diff{
			FromCommit: "f", ToCommit: "t", Listing: gitstoreapi.ListingCompared, Totals: gitstoreapi.DiffTotals{Files: 3, LinesAdded: 4, LinesRemoved: 5, BinaryFiles: 1, IgnoredFiles: 6, UncountedFiles: 2},
			Files: []gitstoreapi.DiffFile{{
				Path: "new", OldPath: "old", Action: gitstoreapi.DiffRenamed, OldMode: "100644", NewMode: "100755", OldBytes: 1, NewBytes: 2,
				Binary: true, LinesAdded: 3, LinesRemoved: 4, Cut: 5,
				Hunks: []gitstoreapi.DiffHunk{{OldStart: 1, OldLines: 2, NewStart: 3, NewLines: 4, Section: "s", Lines: []string{"+x"}}},
			}},
			Next: 1,
		}
		got := ask("from=previous&path=src&path=*.go&ignored=true&limit=1")
		Expect(got.Continue).NotTo(BeEmpty())
		cursor := got.Continue
		got.Continue = ""
		Expect(got).To(Equal(historyv1alpha1.Diff{
			TypeMeta: metav1.TypeMeta{APIVersion: "history.clew.dev/v1alpha1", Kind: "Diff"},
			ListMeta: metav1.ListMeta{RemainingItemCount: ptr.To[int64](2)},
			From: historyv1alpha1.DiffMoment{Task: "a", TaskUID: "new", Checkpoint: 1, Type: "Checkpoint", Commit: "f", Branch: "main",
				Time: ptr.To(metav1.NewMicroTime(noon.Add(time.Minute).Local())), Position: 4},
			To: historyv1alpha1.DiffMoment{Task: "a", TaskUID: "new", Checkpoint: 2, Type: "Checkpoint", Commit: "t", Branch: "main",
				Time: ptr.To(metav1.NewMicroTime(noon.Add(2 * time.Minute).Local())), Position: 8},
			Totals: historyv1alpha1.DiffTotals{Files: 3, LinesAdded: 4, LinesRemoved: 5, BinaryFiles: 1, IgnoredFiles: 6, UncountedFiles: 2},
			Conversation: &historyv1alpha1.ConversationDiff{
				FromPosition: 4, ToPosition: 8, SharedPosition: 4, Messages: 4, ToolCalls: 1, InputTokens: 100, OutputTokens: 10, CostMicroUSD: 7,
			},
			Items: []historyv1alpha1.FileDiff{{
				Path: "new", OldPath: "old", Action: "Renamed", OldMode: "100644", NewMode: "100755", OldBytes: 1, NewBytes: 2,
				Binary: true, LinesAdded: 3, LinesRemoved: 4, CutBytes: 5,
				Hunks: []historyv1alpha1.Hunk{{OldStart: 1, OldLines: 2, NewStart: 3, NewLines: 4, Section: "s", Lines: []string{"+x"}}},
			}},
		}))
		Expect(f.code.compared).To(Equal(gitstoreapi.DiffQuery{
			From: "checkpoint/1", To: "checkpoint/2", FromCommit: "new-1", ToCommit: "new-2", Base: "base", Paths: []string{"src", "*.go"}, Ignored: true,
			Limit: 1, Format: gitstoreapi.DiffHunks,
		}), "with the commits that were recorded")

		By("asking for the next page, which the token describes alone")
		ask("limit=2&format=none&continue=" + url.QueryEscape(cursor))
		Expect(f.code.compared).To(Equal(gitstoreapi.DiffQuery{
			From: "checkpoint/1", To: "checkpoint/2", FromCommit: "f", ToCommit: "t", Base: "base", Paths: []string{"src", "*.go"}, Ignored: true,
			After: 1, Listing: gitstoreapi.ListingCompared, Limit: 2,
		}))
	})

	When("one of the moments is now", func() {
		running := func() {
			for i := range f.archive.tasks {
				f.archive.tasks[i].State = "Running"
			}
		}

		It("is the latest checkpoint of a task that does not run", func() {
			Expect(ask("from=1&to=live").To.Checkpoint).To(BeEquivalentTo(2))
			Expect(f.live.asked).To(BeEmpty())
		})

		It("asks the daemon of a running one, once for all pages", func() {
			running()
			f.code.diff = gitstoreapi.Diff{FromCommit: "new-1", ToCommit: "now", Totals: gitstoreapi.DiffTotals{Files: 2}, Files: []gitstoreapi.DiffFile{{Path: "a"}}, Next: 1}
			got := ask("from=1&to=live")
			Expect(f.live.asked).To(Equal([]string{"new"}))
			Expect([]string{f.code.compared.To, f.code.compared.ToCommit}).To(Equal([]string{"live", "now"}))
			Expect(got.To).To(And(HaveField("Type", "Live"), HaveField("Commit", "now"), HaveField("Time", Not(BeNil())),
				HaveField("Branch", "main"), HaveField("Position", BeEquivalentTo(9))))
			Expect(got.Conversation.Messages).To(BeEquivalentTo(9-4), "since checkpoint 1")

			f.live.commit = "later"
			ask("continue=" + url.QueryEscape(got.Continue))
			Expect(f.live.asked).To(HaveLen(1))
			Expect(f.code.compared.ToCommit).To(Equal("now"), "the gitstore says whether it has these files still")
		})

		DescribeTable("names it in every place", func(query, from, to string) {
			running()
			ask(query)
			Expect([]string{f.code.compared.From, f.code.compared.To}).To(Equal([]string{from, to}))
		},
			Entry("since the base", "to=live", "commit/base", "live"),
			Entry("since the latest checkpoint", "from=previous&to=live", "checkpoint/2", "live"),
			Entry("backwards", "from=live&to=1", "live", "checkpoint/1"),
			Entry("of two tasks", "from=live&to=ab:live", "live", "other:live"),
		)

		DescribeTable("says why it cannot be answered", func(err error, sentence string) {
			running()
			f.live.err = err
			w := f.get("ann", diffPath+"?to=live")
			Expect(w).To(HaveHTTPStatus(http.StatusServiceUnavailable))
			Expect(decoded[metav1.Status](w).Message).To(ContainSubstring(sentence))
		},
			Entry("no answer", history.ErrNoAnswer, "the daemon of task a does not answer: its pod may be starting or ending"),
			Entry("a problem", &history.LiveProblem{Problem: "the volume is full"}, "cannot push its files: the volume is full"),
			Entry("a rest", &history.LiveProblem{Problem: "try again in 40 s", RetryAfterSeconds: 40}, "cannot be shown yet: try again in 40 s"),
			Entry("no connection", http.ErrServerClosed, "cannot be asked for its files; try again"),
		)
	})

	It("says when the files of a busy task may be read again", func() {
		for i := range f.archive.tasks {
			f.archive.tasks[i].State = "Running"
		}
		f.live.err = &history.LiveProblem{Problem: "try again in 40 s", RetryAfterSeconds: 40}
		Expect(decoded[metav1.Status](f.get("ann", diffPath+"?to=live")).Details).To(And(
			HaveField("RetryAfterSeconds", BeEquivalentTo(40)), HaveField("Causes", ConsistOf(metav1.StatusCause{Type: historyv1alpha1.CauseLiveResting}))))
	})

	When("the files of a task have drifted", func() {
		BeforeEach(func() {
			f.objects.task.Status.Drift = &v1alpha1.DriftStatus{Attempt: 2, Checkpoint: 1, FileCount: 3, Commit: "found"}
		})

		It("takes what was found for the present, as long as nobody has decided about it", func() {
			decide := func(drifted metav1.ConditionStatus) {
				meta.SetStatusCondition(&f.objects.task.Status.Conditions, metav1.Condition{Type: v1alpha1.TaskDrifted, Status: drifted, Reason: v1alpha1.ReasonDriftDetected})
			}
			decide(metav1.ConditionTrue)
			got := ask("from=1&to=live")
			Expect([]string{f.code.compared.From, f.code.compared.To, f.code.compared.ToCommit}).To(Equal([]string{"checkpoint/1", "live", "found"}))
			Expect(got.To).To(HaveField("Type", "Drift"))
			Expect(got.Conversation.ToPosition).To(BeEquivalentTo(8), "nothing was said since the latest checkpoint")
			ask("from=previous&to=live")
			Expect(f.code.compared.From).To(Equal("checkpoint/1"), "where it was left")
			decide(metav1.ConditionFalse)
			Expect(ask("from=1&to=live").To).To(And(HaveField("Type", "Checkpoint"), HaveField("Checkpoint", BeEquivalentTo(2))))
		})

		It("compares what was found with what was left", func() {
			f.code.diff = gitstoreapi.Diff{FromCommit: "new-1", ToCommit: "found", Totals: gitstoreapi.DiffTotals{Files: 2}, Files: []gitstoreapi.DiffFile{{Path: "a"}}, Next: 1}
			got := ask("from=previous&to=drift&limit=1")
			Expect(f.live.asked).To(BeEmpty(), "the task is not running")
			Expect([]string{f.code.compared.From, f.code.compared.To, f.code.compared.ToCommit}).To(Equal([]string{"checkpoint/1", "live", "found"}))
			Expect(got.To).To(And(HaveField("Type", "Drift"), HaveField("Commit", "found")))
			Expect(got.Conversation).To(BeNil())
			f.code.diff = gitstoreapi.Diff{}
			ask("continue=" + url.QueryEscape(got.Continue))
			Expect([]string{f.code.compared.From, f.code.compared.To, f.code.compared.ToCommit}).To(Equal([]string{"checkpoint/1", "live", "found"}))
		})

		DescribeTable("says why it cannot", func(drift *v1alpha1.DriftStatus, sentence string) {
			f.objects.task.Status.Drift = drift
			Expect(f.get("ann", diffPath+"?to=drift")).To(beRefused(http.StatusNotFound, saying(sentence)))
		},
			Entry("nothing drifted", nil, "no files of task a have drifted"),
			Entry("only the HEAD was moved", &v1alpha1.DriftStatus{Attempt: 2, Checkpoint: 1}, "no files of task a have drifted"),
			Entry("the files are nowhere else", &v1alpha1.DriftStatus{Attempt: 2, Checkpoint: 1, FileCount: 1}, "are not in the gitstore"),
		)
	})

	It("returns patches as text, or as bytes when they are none", func() {
		f.code.diff.Files = []gitstoreapi.DiffFile{{Path: "text", Patch: []byte("+ä\n")}, {Path: "latin", Patch: []byte("+\xe4\n")}}
		got := ask("format=patch")
		Expect(f.code.compared.Format).To(Equal(gitstoreapi.DiffPatch))
		Expect(got.Items).To(Equal([]historyv1alpha1.FileDiff{{Path: "text", Patch: "+ä\n"}, {Path: "latin", PatchBytes: []byte("+\xe4\n")}}))
	})

	It("includes ignored files if it is asked to", func() {
		ask("ignored=true")
		Expect(f.code.compared.Ignored).To(BeTrue())
		ask("")
		Expect(f.code.compared.Ignored).To(BeFalse())
	})

	It("says how much two branches of a conversation have in common", func() {
		said := &conversations{branches: map[string][]history.Entry{}}
		said.say("main", "", 0, "1", "2", "3", "4", "5", "6")
		said.say("branch-2", "main", 3, "four", "five")
		f = quietWith(said)
		f.archive.branches = map[int64]string{1: "branch-2"}
		f.code.diff = gitstoreapi.Diff{FromCommit: "f", ToCommit: "t", Totals: gitstoreapi.DiffTotals{Files: 2}, Files: []gitstoreapi.DiffFile{{Path: "a"}}, Next: 1}
		got := ask("from=1&to=2&limit=1")
		Expect(got.From.Branch).To(Equal("branch-2"))
		Expect(*got.Conversation).To(And(HaveField("SharedPosition", int64(3)), HaveField("FromPosition", int64(4)), HaveField("ToPosition", int64(8))))
		Expect(ask("continue="+url.QueryEscape(got.Continue)).Conversation).To(BeNil(), "on the pages that follow")
	})

	It("says how much the conversations of a fork and of its source have in common", func() {
		f = serveWith(pg.Database(GinkgoTB()), func(f *fixture) historyapi.Archive { return f.store })
		source, fork := history.Task{Namespace: "team", Name: "a", UID: "u"}, history.Task{Namespace: "team", Name: "ab", UID: "f"}
		// says records a message, and then a checkpoint.
		says := func(task history.Task, number int64, text string) {
			GinkgoHelper()
			Expect(f.store.Append(f.ctx, task, 1, []history.Record{
				{Sequence: 2*number - 1, Time: noon, Attempt: 1, Message: &conversation.Message{Role: conversation.RoleAssistant, Text: text}},
				{Sequence: 2 * number, Time: noon, Attempt: 1, Checkpoint: &history.Checkpoint{Number: number, Trigger: "Manual", Time: noon, Commit: "c", Durable: true}},
			})).Error().NotTo(HaveOccurred())
		}
		Expect(f.store.Begin(f.ctx, source, 1, nil, history.BeginOptions{})).Error().NotTo(HaveOccurred())
		says(source, 1, "both")
		says(source, 2, "the same words")
		from := &history.Source{TaskUID: source.UID, Checkpoint: 1, IncludeConversation: true}
		Expect(f.store.Begin(f.ctx, fork, 1, from, history.BeginOptions{})).Error().NotTo(HaveOccurred())
		says(fork, 1, "the same words")
		says(fork, 2, "more")

		Expect(ask("from=2&to=ab:2").Conversation).To(HaveValue(And(HaveField("SharedPosition", int64(1)), HaveField("FromPosition", int64(2)), HaveField("ToPosition", int64(3)))),
			"what each said by itself is not shared, even if it is the same")
		Expect(ask("from=ab:1&to=1").Conversation).To(HaveValue(And(HaveField("SharedPosition", int64(1)), HaveField("FromPosition", int64(2)), HaveField("ToPosition", int64(1)))))

		By("a third task, which is not related")
		other := history.Task{Namespace: "team", Name: "unknown", UID: "o"}
		Expect(f.store.Begin(f.ctx, other, 1, nil, history.BeginOptions{})).Error().NotTo(HaveOccurred())
		says(other, 1, "both")
		Expect(ask("from=unknown:1&to=1").Conversation.SharedPosition).To(BeZero())
	})

	It("says nothing about the conversation before a checkpoint that was made on another task's", func() {
		Expect(ask("from=previous&to=ab:1").Conversation).To(BeNil())
		Expect(ask("to=1").Conversation.Messages).To(BeEquivalentTo(4), "since the base")
	})

	It("waits for a checkpoint that is being pushed", func() {
		f.archive.pending = true
		for _, query := range []string{"", "to=2"} {
			w := f.get("ann", diffPath+"?"+query)
			Expect(w).To(HaveHTTPStatus(http.StatusServiceUnavailable))
			Expect(decoded[metav1.Status](w).Message).To(ContainSubstring("checkpoint 2 of task a is being pushed to the gitstore"))
		}
	})

	It("names the checkpoint that is damaged, and the nearest one that is intact", func() {
		f.code.refusal = gitstoreapi.New(gitstoreapi.Damaged, "objects are damaged")
		f.found.found = func() {
			f.archive.integrity = map[int64]history.Integrity{2: {Verified: noon, Damage: "in the gitstore, a.txt is missing", IntactBefore: 1}}
		}
		Expect(f.get("ann", diffPath+"?from=1&to=2")).To(beRefused(http.StatusInternalServerError, withCause("CheckpointCorrupted"),
			saying("checkpoint 1 of task a cannot be compared with checkpoint 2 of task a", "; checkpoint 2 of task a is damaged: in the gitstore, a.txt is missing (checkpoint 1 is the nearest")))
		Expect(f.found.asked).To(HaveLen(2))
	})

	DescribeTable("refuses what it cannot answer", func(who, query string, refusal error, code int, sentence string) {
		f.code.refusal = refusal
		w := f.get(who, diffPath+"?"+query)
		Expect(w).To(HaveHTTPStatus(code))
		Expect(decoded[metav1.Status](w).Message).To(ContainSubstring(sentence))
	},
		Entry("nobody", "", "", nil, http.StatusUnauthorized, "address of the Kubernetes API server"),
		Entry("a stranger", "eve", "", nil, http.StatusForbidden, "may not get tasks/diff"),
		Entry("another task that the caller may not read", "ann", "from=secret:1", nil, http.StatusForbidden, "may not get tasks/diff"),
		Entry("another task that does not exist", "ann", "from=unknown:1", nil, http.StatusNotFound, `there is no task "unknown" in the history of namespace`),
		Entry("no moment", "ann", "from=yesterday", nil, http.StatusBadRequest, `"yesterday" is no moment of a task`),
		Entry("what is before the base", "ann", "from=previous&to=base", nil, http.StatusBadRequest, "there is nothing before the base of task a"),
		Entry("a task of a task", "ann", "from=ab:ab:1", nil, http.StatusBadRequest, `"ab:ab:1" is no moment`),
		Entry("no such checkpoint", "ann", "to=9", nil, http.StatusNotFound, "task a has no checkpoint 9: its newest is "),
		Entry("no format", "ann", "format=html", nil, http.StatusBadRequest, `no format "html"`),
		Entry("neither with nor without ignored files", "ann", "ignored=some", nil, http.StatusBadRequest, "ignored must be true or false"),
		Entry("no limit", "ann", "limit=x", nil, http.StatusBadRequest, "limit must be a positive number"),
		Entry("a token of another list", "ann", "continue=x", nil, http.StatusBadRequest, "not from this list"),
		Entry("a path that leaves the worktree", "ann", "path=..", gitstoreapi.New(gitstoreapi.BadRequest, "the path leaves"), http.StatusBadRequest, "the path leaves"),
		Entry("a checkpoint that the gitstore lacks", "ann", "", gitstoreapi.New(gitstoreapi.NotFound, "no"), http.StatusNotFound,
			"the base of task a cannot be compared with checkpoint 2 of task a"),
		Entry("a damaged checkpoint", "ann", "", gitstoreapi.New(gitstoreapi.Damaged, "objects are damaged"), http.StatusInternalServerError, "objects of one of them are missing or damaged"),
		Entry("a page of what changed meanwhile", "ann", "", gitstoreapi.New(gitstoreapi.Moved, "begin again"), http.StatusGone, "begin again"),
		Entry("a task in several repositories", "ann", "", gitstoreapi.New(gitstoreapi.Ambiguous, "several repositories"), http.StatusInternalServerError, "several repositories"),
		Entry("a gitstore that is busy", "ann", "", gitstoreapi.New(gitstoreapi.Unavailable, "too many requests"), http.StatusServiceUnavailable, "too many requests"),
		Entry("a gitstore that is down", "ann", "", http.ErrServerClosed, http.StatusServiceUnavailable, "the gitstore cannot be reached"),
	)
})
