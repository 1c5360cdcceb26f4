package family

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/toolcall"
)

// lead is the supervisor.
func lead() history.Task { return history.Task{Namespace: "team", Name: "lead", UID: "uid-of-lead"} }

// child returns a task of the supervisor.
func child(name string, change ...func(*v1alpha1.Task)) *v1alpha1.Task {
	t := builders.Task(name, builders.InNamespace("team"))
	t.UID = types.UID("uid-of-" + name)
	t.Spec.ParentRef = &v1alpha1.NameReference{Name: "lead"}
	t.Status.Parent = &v1alpha1.ParentStatus{Name: "lead", UID: "uid-of-lead", Depth: 1}
	for _, f := range change {
		f(t)
	}
	return t
}

// stands gives a task a condition Succeeded.
func stands(status metav1.ConditionStatus, reason, message string) func(*v1alpha1.Task) {
	return func(t *v1alpha1.Task) {
		t.Status.Conditions = []metav1.Condition{{Type: v1alpha1.TaskSucceeded, Status: status, Reason: reason, Message: message}}
	}
}

func works(t *v1alpha1.Task) {
	stands(metav1.ConditionUnknown, v1alpha1.ReasonRunning, "the agent runs")(t)
	t.Status.Attempts = []v1alpha1.Attempt{{Number: 1, PodName: "pod"}}
}

func completes(t *v1alpha1.Task) {
	stands(metav1.ConditionTrue, v1alpha1.ReasonCompleted, "the agent exited with 0")(t)
}

func fails(t *v1alpha1.Task) {
	stands(metav1.ConditionFalse, v1alpha1.ReasonAgentFailed, "the agent exited with 1")(t)
}

func rests(t *v1alpha1.Task) {
	stands(metav1.ConditionUnknown, v1alpha1.ReasonSuspended, "the task is suspended")(t)
}

func madeIn(phase string) func(*v1alpha1.Task) {
	return func(t *v1alpha1.Task) { t.Status.Contract = &v1alpha1.ContractStatus{Name: "port", Phase: phase} }
}

// records stands in for the history store. It is asked about one task.
type records struct {
	Store
	sizes       []history.CheckpointSize
	page        history.EntryPage
	hits        history.SearchPage
	checkpoints []history.Checkpoint
	err         error
	// read and searched are what it was asked for.
	read     history.ConversationQuery
	searched history.SearchQuery
}

func (r *records) LatestCheckpoints(context.Context, string, []string) ([]history.CheckpointSize, error) {
	return r.sizes, r.err
}

func (r *records) TaskConversation(_ context.Context, query history.ConversationQuery) (history.EntryPage, error) {
	r.read = query
	return r.page, r.err
}

func (r *records) Search(_ context.Context, query history.SearchQuery) (history.SearchPage, error) {
	r.searched = query
	return r.hits, r.err
}

func (r *records) CheckpointsBefore(context.Context, history.Key, int64, int) ([]history.Checkpoint, error) {
	return r.checkpoints, r.err
}

func (r *records) Checkpoint(_ context.Context, _ history.Key, number int64) (history.Checkpoint, error) {
	for _, c := range r.checkpoints {
		if c.Number == number {
			return c, r.err
		}
	}
	return history.Checkpoint{}, errors.Join(history.ErrNotFound, r.err)
}

// gitstore stands in for the gitstore.
type gitstore struct {
	diff  gitstoreapi.Diff
	err   error
	asked gitstoreapi.DiffQuery
}

func (g *gitstore) Diff(_ context.Context, namespace, uid string, q gitstoreapi.DiffQuery) (gitstoreapi.Diff, error) {
	if namespace != "team" {
		return gitstoreapi.Diff{}, fmt.Errorf("asked about %s in %s", uid, namespace)
	}
	g.asked = q
	return g.diff, g.err
}

// world is a family with its stand-ins.
type world struct {
	*Family
	t     *testing.T
	g     *gomega.WithT
	store *records
	code  *gitstore
}

func newWorld(t *testing.T, tasks ...*v1alpha1.Task) world {
	t.Helper()
	w := world{t: t, g: gomega.NewWithT(t), store: &records{}, code: &gitstore{}}
	w.Family = New(w.store, w.code)
	w.Known(func() bool { return true })
	for _, task := range tasks {
		w.Set(task)
	}
	return w
}

// ask returns the answer to a call, which must not be an error.
func (w world) ask(ctx context.Context, tool v1alpha1.AgentTool, arguments any) toolcall.Answer {
	w.t.Helper()
	encoded, err := json.Marshal(arguments)
	w.g.Expect(err).NotTo(gomega.HaveOccurred())
	answer, err := w.Answer(ctx, lead(), tool, encoded)
	w.g.Expect(err).NotTo(gomega.HaveOccurred())
	return answer
}

// tells expects an answer with these parts.
func (w world) tells(a toolcall.Answer, parts ...string) {
	w.t.Helper()
	w.g.Expect(a.Refused).To(gomega.BeFalse(), a.Text)
	for _, part := range parts {
		w.g.Expect(a.Text).To(gomega.ContainSubstring(part))
	}
	w.g.Expect(json.Valid(a.Data)).To(gomega.BeTrue())
}

// refuses expects a refusal with this part.
func (w world) refuses(a toolcall.Answer, part string) {
	w.t.Helper()
	w.g.Expect(a.Refused).To(gomega.BeTrue(), a.Text)
	w.g.Expect(a.Text).To(gomega.ContainSubstring(part))
}

func TestAnAgentLearnsOfItsOwnTasksOnly(t *testing.T) {
	for name, test := range map[string]struct {
		task *v1alpha1.Task
		own  bool
	}{
		"its own":               {child("x"), true},
		"one that has to start": {child("x", func(t *v1alpha1.Task) { t.Status.Parent = nil }), true},
		"that of a former supervisor of the name": {child("x", func(t *v1alpha1.Task) { t.Status.Parent.UID = "former" }), false},
		"another supervisor's":                    {child("x", func(t *v1alpha1.Task) { t.Spec.ParentRef.Name = "other" }), false},
		"another namespace's":                     {child("x", func(t *v1alpha1.Task) { t.Namespace = "elsewhere" }), false},
		"nobody's":                                {child("x", func(t *v1alpha1.Task) { t.Spec.ParentRef, t.Status.Parent = nil, nil }), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, test.task)
			var data struct{ Tasks []item }
			w.g.Expect(json.Unmarshal(w.ask(t.Context(), v1alpha1.ToolTaskList, toolcall.ListInput{}).Data, &data)).To(gomega.Succeed())
			w.g.Expect(len(data.Tasks) == 1).To(gomega.Equal(test.own))
			w.g.Expect(w.ask(t.Context(), v1alpha1.ToolTaskHistory, toolcall.HistoryInput{Task: "x"}).Refused).To(gomega.Equal(name != "its own"))
			w.Remove(test.task)
			w.tells(w.ask(t.Context(), v1alpha1.ToolTaskList, toolcall.ListInput{}), "You have no tasks yet")
		})
	}
}

// TestATaskThatWasReplacedUnderItsNameIsGone: while the watch was away, nobody tells of its deletion.
func TestATaskThatWasReplacedUnderItsNameIsGone(t *testing.T) {
	was := child("x", works)
	w := newWorld(t, was)
	next := child("x", completes)
	next.UID = "another"
	w.handler().OnUpdate(was, next)
	var data struct{ Tasks []item }
	w.g.Expect(json.Unmarshal(w.ask(t.Context(), v1alpha1.ToolTaskList, toolcall.ListInput{}).Data, &data)).To(gomega.Succeed())
	w.g.Expect(data.Tasks).To(gomega.HaveLen(1))
	w.tells(w.ask(t.Context(), v1alpha1.ToolTaskWait, toolcall.WaitInput{}), "of 1, 1 completed")
}

func TestNothingIsSaidBeforeAllTasksAreKnown(t *testing.T) {
	w := newWorld(t)
	w.Known(func() bool { return false })
	for _, tool := range []v1alpha1.AgentTool{v1alpha1.ToolTaskList, v1alpha1.ToolTaskWait, v1alpha1.ToolTaskHistory, v1alpha1.ToolTaskDiff} {
		w.refuses(w.ask(t.Context(), tool, toolcall.ListInput{}), "does not know your tasks yet")
	}
}

func TestATaskIsFoundByItsNameWithAndWithoutTheSupervisors(t *testing.T) {
	parser, lexer, plain := child("lead-parser"), child("lead-lexer"), child("lexer")
	of := tasksOf("lead", []*v1alpha1.Task{parser, lexer, plain})
	g := gomega.NewWithT(t)
	for name, want := range map[string]*v1alpha1.Task{"parser": parser, "lead-parser": parser, "lexer": plain, "lead-lexer": lexer, "lead": nil, "": nil} {
		g.Expect(of.named(name)).To(gomega.BeIdenticalTo(want), name)
	}
	for task, want := range map[*v1alpha1.Task]string{parser: "parser", lexer: "lead-lexer", plain: "lexer"} {
		g.Expect(of.nameOf(task)).To(gomega.Equal(want))
	}
	w := newWorld(t, parser, plain)
	w.refuses(w.ask(t.Context(), v1alpha1.ToolTaskDiff, toolcall.DiffInput{Task: "other"}), `You have no task "other". Your tasks are parser, lexer.`)
	w.refuses(newWorld(t).ask(t.Context(), v1alpha1.ToolTaskDiff, toolcall.DiffInput{Task: "other"}), "You have no task \"other\": you have none yet")
}

func TestWhatIsKeptOfATaskIsWhatIsTold(t *testing.T) {
	now := metav1.Now()
	task := child("lead-x", works, madeIn("Build"), func(t *v1alpha1.Task) {
		t.Status.Dependencies = []v1alpha1.DependencyStatus{{Name: "y", MetTime: &now}}
		t.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Number: 3}
		t.Status.MessageCount, t.Status.InputTokens, t.Status.CostMicroUSD = 4, 5, 6
	})
	of := tasksOf("lead", []*v1alpha1.Task{task})
	want := of.itemOf(task, history.CheckpointSize{})
	slimmed := task.DeepCopy()
	Slim(slimmed)
	g := gomega.NewWithT(t)
	g.Expect(of.itemOf(slimmed, history.CheckpointSize{})).To(gomega.Equal(want))
	g.Expect(slimmed.Spec.Prompt).To(gomega.BeNil())
}

func TestTheTasksAreListedWithWhatTheyDo(t *testing.T) {
	w := newWorld(t,
		child("lead-lexer", completes, madeIn("Plan")),
		child("lead-parser", works, madeIn("Build"), func(t *v1alpha1.Task) {
			t.Status.MessageCount, t.Status.InputTokens, t.Status.OutputTokens, t.Status.CostMicroUSD = 12, 3000, 400, 420_000
		}),
		child("lead-docs", madeIn("Build"), stands(metav1.ConditionUnknown, v1alpha1.ReasonWaitingForTasks, "the task waits for lead-parser"), func(t *v1alpha1.Task) {
			t.Status.Dependencies = []v1alpha1.DependencyStatus{{Name: "lead-parser"}}
		}),
		child("tests", fails), child("bench", rests))
	w.store.sizes = []history.CheckpointSize{{TaskUID: "uid-of-lead-parser", Number: 7, FilesChanged: 3, LinesAdded: 10, LinesRemoved: 2}}
	answer := w.ask(t.Context(), v1alpha1.ToolTaskList, toolcall.ListInput{})
	w.tells(answer, "You have 5 tasks: 1 running, 1 waiting, 1 stopped, 1 failed, 1 completed.",
		"parser: Running: the agent runs\n  phase Build; checkpoint 7 (3 files changed since the one before, +10 -2 lines); 12 messages; 3000 input and 400 output tokens; 0.42 USD",
		"docs: Waiting (WaitingForTasks): the task waits for lead-parser\n  phase Build; waits for parser",
		"tests: Failed (AgentFailed): the agent exited with 1", "bench: Stopped (Suspended): the task is suspended", "lexer: Completed\n")
	var data struct {
		Tasks []item
		More  int
	}
	w.g.Expect(json.Unmarshal(answer.Data, &data)).To(gomega.Succeed())
	w.g.Expect(data.Tasks).To(gomega.HaveLen(5))
	w.g.Expect(data.Tasks[0]).To(gomega.Equal(item{Task: "parser", Name: "lead-parser", State: running, Reason: "Running", Message: "the agent runs", Phase: "Build",
		Checkpoint: 7, FilesChanged: 3, LinesAdded: 10, LinesRemoved: 2, Messages: 12, InputTokens: 3000, OutputTokens: 400, CostMicroUSD: 420_000}))

	w.tells(w.ask(t.Context(), v1alpha1.ToolTaskList, toolcall.ListInput{Phase: "Plan"}), "Of the phase Plan:\nlexer: Completed")
	w.tells(w.ask(t.Context(), v1alpha1.ToolTaskList, toolcall.ListInput{Phase: "Test"}), `None of your 5 tasks was made in the phase "Test". Theirs are`, "Plan")
}

func TestManyTasksAreCutAndSaidToBe(t *testing.T) {
	w := newWorld(t)
	for n := range 1000 {
		w.Set(child(fmt.Sprintf("lead-%04d", n), stands(metav1.ConditionUnknown, v1alpha1.ReasonUnschedulable, "no node has room"+strings.Repeat(" for it", 300))))
	}
	w.Set(child("lead-last", works))
	answer := w.ask(t.Context(), v1alpha1.ToolTaskList, toolcall.ListInput{})
	w.tells(answer, "You have 1001 tasks: 1 running, 1000 waiting.", "last: Running")
	w.g.Expect(len(answer.Text)).To(gomega.BeNumerically("<=", toolcall.MaxText))
	w.g.Expect(len(answer.Data)).To(gomega.BeNumerically("<=", toolcall.MaxData))
	w.g.Expect(answer.Text).To(gomega.ContainSubstring("901 more"))
}

func TestAnErrorOfTheStoreIsTheServers(t *testing.T) {
	w := newWorld(t, child("x"))
	w.store.err = history.ErrUnavailable
	for _, tool := range []v1alpha1.AgentTool{v1alpha1.ToolTaskList, v1alpha1.ToolTaskHistory, v1alpha1.ToolTaskDiff} {
		_, err := w.Answer(t.Context(), lead(), tool, []byte(`{"task":"x"}`))
		w.g.Expect(err).To(gomega.MatchError(history.ErrUnavailable), string(tool))
	}
	answer, err := w.Answer(t.Context(), lead(), v1alpha1.ToolTaskList, []byte(`{"phase":7}`))
	w.g.Expect(err).NotTo(gomega.HaveOccurred())
	w.refuses(answer, "cannot be read")
	answer, err = w.Answer(t.Context(), lead(), v1alpha1.ToolTaskStop, []byte(`{}`))
	w.g.Expect(err).NotTo(gomega.HaveOccurred())
	w.refuses(answer, "task_stop")
}

// soon ends a wait that would go on.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
	t.Cleanup(cancel)
	return ctx
}
