package historyapi_test

import (
	"context"
	"net/http"

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
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/testing/rewindmatrix"
)

const previewPath = diffPath + "/rewind"

// objects stands in for the objects of the cluster.
type objects struct {
	task       *v1alpha1.Task
	checkpoint *v1alpha1.Checkpoint
}

// newObjects has the suspended task a.
func newObjects() *objects {
	task := builders.Task("a", builders.InNamespace("team"), builders.WithUID("new"))
	meta.SetStatusCondition(&task.Status.Conditions, metav1.Condition{Type: v1alpha1.TaskSucceeded, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonSuspended})
	return &objects{task: task}
}

// runs lets the agent of the task run.
func (o *objects) runs() {
	meta.SetStatusCondition(&o.task.Status.Conditions, metav1.Condition{Type: v1alpha1.TaskSucceeded, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonRunning})
	o.task.Status.Attempts = []v1alpha1.Attempt{{Number: 3}}
}

func (o *objects) Task(_ context.Context, _, name string) (*v1alpha1.Task, error) {
	if o.task == nil || name != o.task.Name {
		return nil, nil
	}
	return o.task.DeepCopy(), nil
}

func (o *objects) CheckpointObject(_ context.Context, _, name string) (*v1alpha1.Checkpoint, error) {
	if o.checkpoint == nil || name != o.checkpoint.Name {
		return nil, nil
	}
	return o.checkpoint, nil
}

// conversations stands in for the store: messages by branch, each with the branch that it was
// written on.
type conversations struct {
	historyapi.Store
	branches map[string][]history.Entry
	active   string
}

func (s *conversations) TaskConversation(_ context.Context, q history.ConversationQuery) (history.EntryPage, error) {
	branch := s.branches[q.Branch]
	if q.Branch == "" {
		branch = s.branches[s.active]
	}
	after := min(q.After, int64(len(branch)))
	if q.Last > 0 {
		after = max(0, int64(len(branch)-q.Last))
	}
	rest := branch[after:]
	return history.EntryPage{Entries: rest[:min(q.Limit, len(rest))]}, nil
}

// say appends messages to a branch that begins with the first ones of another.
func (s *conversations) say(name, from string, position int, texts ...string) {
	entries := append([]history.Entry(nil), s.branches[from][:position]...)
	for _, text := range texts {
		entries = append(entries, history.Entry{Position: int64(len(entries) + 1), Branch: name, Message: conversation.Message{Role: conversation.RoleAssistant, Text: text}})
	}
	s.branches[name] = entries
}

var _ = Describe("The preview of a rewind", func() {
	var (
		f    *fixture
		said *conversations
	)
	BeforeEach(func() {
		said = &conversations{branches: map[string][]history.Entry{}, active: "main"}
		said.say("main", "", 0, "1", "2", "3", "4", "5", "6", "7", "8", "9")
		f = quietWith(said)
		f.code.diff = gitstoreapi.Diff{FromCommit: "f", ToCommit: "t", Totals: gitstoreapi.DiffTotals{Files: 3, LinesAdded: 1}, Next: 1,
			Files: []gitstoreapi.DiffFile{{Path: "src/a.go", Action: gitstoreapi.DiffDeleted}}}
	})
	ask := func(query string) historyv1alpha1.RewindPreview {
		GinkgoHelper()
		return read[historyv1alpha1.RewindPreview](f, previewPath+"?"+query)
	}

	It("has the files, the messages that go, and what is kept", func() {
		got := ask("checkpointNumber=1&limit=1")
		Expect(got.Scope).To(Equal("Both"))
		Expect(got.To).To(Equal(historyv1alpha1.RewindPoint{Checkpoint: 1, Commit: "new-1"}))
		Expect(got.Keeps).To(Equal(historyv1alpha1.KeptState{Preserve: "Branch", Branch: "clew/before-ID"}))
		Expect(got.Stops).To(BeNil(), "the task is suspended")
		Expect(f.code.compared).To(Equal(gitstoreapi.DiffQuery{From: "checkpoint/2", To: "checkpoint/1", FromCommit: "new-2", ToCommit: "new-1", Restored: true, Limit: 1}))
		Expect(got.Files.From).To(And(HaveField("Checkpoint", int64(2)), HaveField("Commit", "f")))
		Expect(got.Files.Totals.Files).To(BeEquivalentTo(3))
		Expect(got.Files.Items).To(Equal([]historyv1alpha1.FileDiff{{Path: "src/a.go", Action: "Deleted"}}))
		Expect(got.RemainingItemCount).To(Equal(ptr.To[int64](2)), "what is left out is said")
		Expect(*got.Conversation).To(And(
			HaveField("FromPosition", int64(9)), HaveField("ToPosition", int64(4)), HaveField("Dropped", int64(5)), HaveField("Restored", int64(0)),
			HaveField("First.Text", "5"), HaveField("Last.Text", "9"),
			HaveField("ToolCalls", int64(2)), HaveField("InputTokens", int64(900)), HaveField("OutputTokens", int64(90)), HaveField("CostMicroUSD", int64(63))))
	})

	It("counts from the turn boundary of a checkpoint that was taken while a tool call waited for its result", func() {
		f.archive.turns = map[int64]int64{2: 1}
		Expect(*ask("checkpointNumber=2").Conversation).To(And(
			HaveField("ToPosition", int64(7)), HaveField("Dropped", int64(2)), HaveField("First.Text", "8")))
	})

	It("is about the present of a running task, and the work that stops", func() {
		f.objects.runs()
		f.archive.state.OpenToolCalls = []string{"call-7"}
		said.branches["main"][8].Message = conversation.Message{Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{ID: "call-7", Name: "Bash", Input: "make test"}}
		got := ask("checkpointNumber=2&scope=Code&preserve=Stash")
		Expect(got.Stops).To(Equal(&historyv1alpha1.StoppedWork{Attempt: 3, ToolCalls: []historyv1alpha1.ToolCall{{ID: "call-7", Name: "Bash", Input: "make test"}}}))
		Expect(f.live.asked).To(Equal([]string{"new"}))
		Expect([]string{f.code.compared.From, f.code.compared.FromCommit}).To(Equal([]string{"live", "now"}))
		Expect(got.Files.From.Type).To(Equal("Live"))
		Expect(got.Conversation).To(BeNil(), "only the files are rewound")
		Expect(got.Keeps).To(Equal(historyv1alpha1.KeptState{Preserve: "Stash"}))
	})

	It("is about the files that were found changed, if they are kept first", func() {
		status := &f.objects.task.Status
		status.Attempts = []v1alpha1.Attempt{{Number: 3, Outcome: v1alpha1.AttemptBlocked}}
		status.Drift = &v1alpha1.DriftStatus{Attempt: 3, Checkpoint: 2, FileCount: 3, Commit: "found"}
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: v1alpha1.TaskDrifted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonDriftDetected})
		Expect(ask("checkpointNumber=1&onDrift=Preserve").Files.From).To(HaveField("Type", "Drift"))
		Expect([]string{f.code.compared.From, f.code.compared.FromCommit, f.code.compared.To}).To(Equal([]string{"live", "found", "checkpoint/1"}))
		ask("checkpointNumber=1&onDrift=Override")
		Expect(f.code.compared.From).To(Equal("checkpoint/2"), "the rewind starts when they are discarded")
		status.Conditions = status.Conditions[:1]
		ask("checkpointNumber=1&onDrift=Preserve")
		Expect(f.code.compared.From).To(Equal("checkpoint/2"), "somebody has decided about them")
	})

	It("says that files that were found changed make it fail, unless it decides about them", func() {
		status := &f.objects.task.Status
		status.Attempts = []v1alpha1.Attempt{{Number: 3, Outcome: v1alpha1.AttemptBlocked}}
		status.Drift = &v1alpha1.DriftStatus{Attempt: 3, Checkpoint: 2, FileCount: 3, Commit: "found", Files: []v1alpha1.ChangedFile{{Path: "a.txt"}}}
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: v1alpha1.TaskDrifted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonDriftDetected})
		Expect(ask("checkpointNumber=1").Fails).To(Equal(&historyv1alpha1.ExpectedFailure{Reason: "DriftDetected",
			Message: `3 files changed while the task was not running, for example "a.txt": have the changes kept (onDrift Preserve) or discarded (Override)`}))
		Expect(ask("checkpointNumber=1&onDrift=Preserve").Fails).To(BeNil())
		Expect(ask("checkpointNumber=1&onDrift=Override").Fails).To(BeNil())
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: v1alpha1.TaskDrifted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoDrift})
		Expect(ask("checkpointNumber=1").Fails).To(BeNil())
	})

	It("leaves the files alone when only the conversation is rewound", func() {
		got := ask("messagesBack=3&scope=Conversation")
		Expect(got.Files).To(BeNil())
		Expect(f.code.of).To(BeEmpty(), "the gitstore is not asked")
		Expect(*got.Conversation).To(And(HaveField("ToPosition", int64(5)), HaveField("Dropped", int64(4))))
		Expect(got.To.Message).To(Equal("message 5 ends the last complete turn at or before 3 messages back (message 6)"))
		Expect(got.Keeps).To(Equal(historyv1alpha1.KeptState{Preserve: "Discard"}))
	})

	It("counts the messages that come back to a branch that was left", func() {
		said.say("branch-2", "main", 3, "four", "five")
		said.active = "branch-2"
		f.archive.state.Position = history.Position{Branch: "branch-2", Position: 5}
		f.archive.state.Totals = history.Totals{Messages: 5, ToolCalls: 1, InputTokens: 150}
		Expect(*ask("checkpointNumber=2&scope=Conversation").Conversation).To(And(
			HaveField("ToPosition", int64(8)), HaveField("Dropped", int64(2)), HaveField("Restored", int64(5)),
			HaveField("First.Text", "four"), HaveField("Last.Text", "five"), HaveField("InputTokens", int64(-50))))
		Expect(*ask("checkpointNumber=1&scope=Conversation").Conversation).To(And(HaveField("Dropped", int64(2)), HaveField("Restored", int64(1))))
	})

	It("passes paths and commits on", func() {
		commit := "0123456789012345678901234567890123456789"
		f.code.diff.Unmatched, f.code.diff.Blocked = []string{"*.go"}, []string{"src"}
		Expect(ask("commit="+commit+"&scope=Code&path=src&path=*.go").Files).To(And(
			HaveField("UnmatchedPaths", []string{"*.go"}), HaveField("BlockedPaths", []string{"src"})), "paths that cannot be rewound are told")
		ask("commit=" + commit + "&scope=Code&path=src&path=*.go&branch=kept&id=x")
		Expect(f.code.compared).To(And(HaveField("To", "commit/"+commit), HaveField("Paths", []string{"src", "*.go"}), HaveField("Restored", true)))
		Expect(ask("checkpointNumber=1&scope=Code&path=src&branch=kept").Keeps.Branch).To(Equal("kept"))
	})

	Describe("of an undo", func() {
		It("has the scope and paths of the rewind", func() {
			got := ask("undoOf=back")
			Expect(got).To(And(HaveField("UndoOf", "back"), HaveField("Scope", "Code"), HaveField("Paths", []string{"src"}), HaveField("To.Checkpoint", int64(2))))
			Expect(f.code.compared.Paths).To(Equal([]string{"src"}))
		})
		It("finds the newest rewind", func() {
			f.archive.rewound = "back"
			Expect(ask("undoLast=true").UndoOf).To(Equal("back"))
			f.archive.rewound = "other"
			f.objects.task.Status.Rewind = &v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationCompleted, Attempt: 2}
			Expect(ask("undoLast=true").UndoOf).To(Equal("back"), "the Task says which")
			f.objects.task.Status.Resume = &v1alpha1.OperationStatus{ID: "on", State: v1alpha1.OperationCompleted, Attempt: 4}
			f.objects.task.Status.HandledOperations = []string{"Rewind/back", "Resume/earlier", "Resume/on"}
			Expect(f.get("ann", previewPath+"?undoLast=true")).To(beRefused(http.StatusBadRequest, saying("no rewind with the id other")), "an earlier resume may have rewound it, so the history says which")
		})
	})

	It("is of a Checkpoint by its name", func() {
		f.objects.checkpoint = &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: "good"}, Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "a"}},
			Status: v1alpha1.CheckpointStatus{TaskUID: "new", Number: 1, Commit: "new-1"}}
		Expect(ask("checkpointRef=good").To.Checkpoint).To(BeEquivalentTo(1))
		f.objects.checkpoint.Spec.TaskRef.Name = "b"
		Expect(f.get("ann", previewPath+"?checkpointRef=good")).To(beRefused(http.StatusBadRequest, saying(`Checkpoint "good" belongs to another task`), withCause(v1alpha1.ReasonCheckpointOfOther)))
	})

	DescribeTable("refuses with the sentence of the rewind, and without a word to those who may not read",
		func(who, query string, code int, sentence string) {
			w := f.get(who, previewPath+"?"+query)
			Expect(w).To(beRefused(code, saying(sentence)))
		},
		Entry("a stranger", "eve", "checkpointNumber=1", http.StatusForbidden, "may not get tasks/diff"),
		Entry("somebody who may not read the conversation", "bob", "checkpointNumber=1", http.StatusForbidden, "may not get tasks/conversation"),
		Entry("no target", "ann", "", http.StatusBadRequest, "set exactly one of checkpointRef"),
		Entry("two targets", "ann", "checkpointNumber=1&message=3", http.StatusBadRequest, "set exactly one of checkpointRef"),
		Entry("a checkpoint that does not exist", "ann", "checkpointNumber=9", http.StatusBadRequest, "the task has no checkpoint 9: name one that kubectl clew checkpoint list shows"),
		Entry("a Checkpoint that does not exist", "ann", "checkpointRef=x", http.StatusBadRequest, `there is no Checkpoint "x" in this namespace`),
		Entry("a message that does not exist", "ann", "message=99", http.StatusBadRequest, "the conversation has 9 messages, and no message 99"),
		Entry("an unknown undo", "ann", "undoOf=x", http.StatusBadRequest, "this task has no rewind with the id x"),
		Entry("an undo where nothing was rewound", "ann", "undoLast=true", http.StatusBadRequest, "there is nothing to undo: no rewind of task "),
		Entry("paths of the conversation", "ann", "checkpointNumber=1&path=src", http.StatusBadRequest, "rewind.paths selects files: set rewind.scope to Code"),
		Entry("a path that leaves the worktree", "ann", "checkpointNumber=1&scope=Code&path=../x", http.StatusBadRequest, "leaves the worktree"),
		Entry("a branch that git refuses", "ann", "checkpointNumber=1&branch=a..b", http.StatusBadRequest, "is not a valid branch name"),
		Entry("an unknown scope", "ann", "checkpointNumber=1&scope=All", http.StatusBadRequest, `scope is "All"`),
		Entry("an unknown decision about drift", "ann", "checkpointNumber=1&onDrift=Ask", http.StatusBadRequest, `onDrift is "Ask"`),
		Entry("an undo with a scope", "ann", "undoOf=back&scope=Code", http.StatusBadRequest, "an undo rewinds what the rewind that it undoes has rewound: leave scope out"),
		Entry("the newest undo, with paths", "ann", "undoLast=true&path=src", http.StatusBadRequest, "leave paths out"),
		Entry("an undo of itself", "ann", "undoOf=back&id=back", http.StatusBadRequest, "a rewind cannot undo itself"),
		Entry("a branch for nothing", "ann", "checkpointNumber=1&preserve=Stash&branch=kept", http.StatusBadRequest, "set preserve to Branch or leave branch out"),
		Entry("half a commit", "ann", "commit=0123&scope=Code", http.StatusBadRequest, "give its 40 hexadecimal digits"),
		Entry("no number", "ann", "message=-1", http.StatusBadRequest, "message must be a positive number"),
		Entry("no time", "ann", "time=noon", http.StatusBadRequest, "time must be a time such as"),
	)

	It("refuses what the API server refuses, and accepts what it accepts", func() {
		targets := map[rewindmatrix.Target]string{
			rewindmatrix.Checkpoint: "checkpointNumber=1", rewindmatrix.Commit: "commit=0123456789012345678901234567890123456789",
			rewindmatrix.Time: "time=2126-01-31T12:00:00Z", rewindmatrix.Message: "message=9", rewindmatrix.Undo: "undoOf=back",
		}
		for _, cell := range rewindmatrix.All() {
			query := targets[cell.Target] + "&scope=" + string(cell.Scope) + "&preserve=" + string(cell.Preserve)
			if cell.Paths {
				query += "&path=src"
			}
			answer := f.get("ann", previewPath+"?"+query)
			if len(cell.Refusals()) == 0 {
				Expect(answer.Code).To(Equal(http.StatusOK), "%s: %s", cell, answer.Body)
				continue
			}
			Expect(answer).To(beRefused(http.StatusBadRequest, saying(cell.Refusals()[0])), "%s", cell)
		}
	})

	It("refuses a commit that the task does not know, and a task that is gone", func() {
		f.code.refusal = gitstoreapi.New(gitstoreapi.NotFound, "no")
		Expect(f.get("ann", previewPath+"?scope=Code&commit=0123456789012345678901234567890123456789")).To(beRefused(http.StatusBadRequest,
			saying("this task knows no commit 0123456789012345678901234567890123456789"), withCause(v1alpha1.ReasonCommitNotFound)))
		f.objects.task = nil
		Expect(f.get("ann", previewPath+"?checkpointNumber=1")).To(beRefused(http.StatusNotFound, saying(`there is no Task "a" in this namespace`)))
	})

	It("waits for what the rewind would wait for", func() {
		f.objects.task.Status.RecordSequence = 5
		Expect(f.get("ann", previewPath+"?checkpointNumber=1")).To(beRefused(http.StatusServiceUnavailable, saying("the history store was restored from an older copy")))
		f.objects.task.Status.RecordSequence = 0
		f.objects.task.Status.Rewind = &v1alpha1.OperationStatus{ID: "other", State: v1alpha1.OperationInProgress}
		Expect(f.get("ann", previewPath+"?checkpointNumber=1")).To(beRefused(http.StatusServiceUnavailable, saying("the rewind other is in progress")))
	})

	It("is refused if a running task must not be stopped", func() {
		f.objects.runs()
		Expect(f.get("ann", previewPath+"?checkpointNumber=1&whenRunning=Refuse")).To(beRefused(http.StatusBadRequest, saying("the task is running, and this rewind refuses running tasks")))
	})
})
