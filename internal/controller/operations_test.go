package controller_test

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/checkpoint"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func testLogger() logr.Logger { return logr.Discard() }

func (w *world) create(object client.Object) {
	w.Helper()
	object.SetNamespace(w.namespace)
	w.Expect(w.client.Create(w.ctx, object)).To(gomega.Succeed())
}

func manual(name, task string) *v1alpha1.Checkpoint {
	return &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: task}, Message: "by hand"},
	}
}

// latest is the name of the task's latest checkpoint; "" for none.
func (w *world) latest(name string) string {
	w.Helper()
	if c := w.task(name).Status.LatestCheckpoint; c != nil {
		return c.Name
	}
	return ""
}

// rewind is the outcome of the task's last rewind; zero for none.
func (w *world) rewind(name string) v1alpha1.OperationStatus {
	w.Helper()
	if r := w.task(name).Status.Rewind; r != nil {
		return *r
	}
	return v1alpha1.OperationStatus{}
}

// untilCondition waits for a condition's reason on any object with conditions.
func (w *world) untilCondition(object client.Object, conditions func() []metav1.Condition, kind, reason string) {
	w.Helper()
	w.Eventually(func() string {
		w.Expect(w.client.Get(w.ctx, client.ObjectKeyFromObject(object), object)).To(gomega.Succeed())
		if c := meta.FindStatusCondition(conditions(), kind); c != nil {
			return c.Reason
		}
		return ""
	}).Should(gomega.Equal(reason))
}

// toldState is the state that the history tells of the task.
func (w *world) toldState(name string) (state string) {
	for _, e := range w.store.Events(string(w.task(name).UID)) {
		state = cmp.Or(e.State, state)
	}
	return state
}

func TestARunningTaskIsRewound(t *testing.T) {
	w := newWorld(t)
	p := w.running("work")
	w.record("work", v1alpha1.TriggerToolCalls, 1)
	target := w.checkpoint("work-1")
	w.change("work", builders.Rewind("back", "work-1"))
	w.until("work", v1alpha1.ReasonRewinding)
	w.untilStopped(p)

	p = w.pod("work", 2)
	op := w.operation(p)
	w.Expect(*op).To(gomega.Equal(daemonapi.Operation{
		Kind: daemonapi.OperationRewind, ID: "back", OnDrift: "Fail", Checkpoint: 1, Commit: target.Status.Commit, CheckpointPosition: 4,
		Scope: "Both", Preserve: "Branch", Branch: "clew/before-back",
	}))
	w.Expect(w.kubelet.Prepared(w.ctx, p, 0, daemonapi.PrepareResult{Operation: "back", FromCheckpoint: 2, ToCheckpoint: 1, Preserved: "clew/before-back"})).To(gomega.Succeed())
	w.Eventually(func() v1alpha1.OperationState { return w.rewind("work").State }).Should(gomega.Equal(v1alpha1.OperationCompleted))
	w.Expect(w.kubelet.AgentRuns(w.ctx, p)).To(gomega.Succeed())
	task := w.until("work", v1alpha1.ReasonRunning)
	w.untilRecorded("work")
	w.Expect(w.toldState("work")).To(gomega.Equal("Running"))
	w.Expect(task.Status.Rewind.Preserved).To(gomega.Equal("clew/before-back"))
	w.Expect(task.Status.Attempts[0].Outcome).To(gomega.Equal(v1alpha1.AttemptStopped))
}

func TestACompletedTaskIsRewoundWithoutItsAgent(t *testing.T) {
	w := newWorld(t)
	w.complete("work", w.running("work"))
	w.checkpoint("work-1")
	w.change("work", builders.Rewind("back", "work-1"))
	p := w.pod("work", 2)
	w.Expect(p.Spec.InitContainers).To(gomega.BeEmpty())
	w.Expect(p.Spec.Containers).To(gomega.HaveLen(1))
	w.Expect(w.kubelet.Prepared(w.ctx, p, 0, daemonapi.PrepareResult{Operation: "back", ToCheckpoint: 1})).To(gomega.Succeed())
	w.until("work", v1alpha1.ReasonRewound)
	w.untilRecorded("work")
	w.Expect(w.toldState("work")).To(gomega.Equal("Rewound"))
	w.change("work", builders.Resume("on"))
	w.Expect(w.operation(w.pod("work", 3))).To(gomega.HaveField("Kind", daemonapi.OperationResume))
}

func TestARewindToNowhereIsRefusedWithoutHarm(t *testing.T) {
	w := newWorld(t)
	w.complete("work", w.running("work"))
	w.change("work", builders.Rewind("nowhere", "work-99"))
	w.Eventually(func() string {
		r := w.rewind("work")
		return string(r.State) + " " + r.Reason
	}).Should(gomega.Equal("Refused " + v1alpha1.ReasonCheckpointNotFound))
	w.until("work", v1alpha1.ReasonCompleted)
	w.Expect(w.task("work").Status.Attempts).To(gomega.HaveLen(1))
}

func TestADamagedCheckpointIsMarked(t *testing.T) {
	w := newWorld(t)
	w.complete("work", w.running("work"))
	c := w.checkpoint("work-1")
	w.change("work", builders.Rewind("back", "work-1"))
	w.Expect(w.kubelet.Prepared(w.ctx, w.pod("work", 2), 1, daemonapi.PrepareResult{
		Reason: v1alpha1.ReasonCheckpointCorrupted, Permanent: true, Message: "an object of checkpoint 1 is damaged",
	})).To(gomega.Succeed())
	w.untilCondition(c, func() []metav1.Condition { return c.Status.Conditions }, v1alpha1.CheckpointIntact, v1alpha1.ReasonCorrupted)
	w.until("work", v1alpha1.ReasonCompleted)
	w.change("work", builders.Rewind("again", "work-1"))
	w.Eventually(func() string { return w.rewind("work").ID }).Should(gomega.Equal("again"))
	w.Expect(w.rewind("work").State).To(gomega.Equal(v1alpha1.OperationRefused))
	w.Expect(w.rewind("work").Reason).To(gomega.Equal(v1alpha1.ReasonCheckpointCorrupted))
}

func TestCheckpointsHaveObjects(t *testing.T) {
	w := newWorld(t)
	w.create(manual("work-2", "other")) // somebody else's object has the name of the second
	w.running("work")
	for range 3 {
		w.record("work", v1alpha1.TriggerToolCalls, 1)
	}
	first := w.checkpoint("work-1")
	w.Expect(first.Status.Number).To(gomega.BeEquivalentTo(1))
	w.Expect(first.Status.Conversation.Position).To(gomega.BeEquivalentTo(4))
	w.Expect(first.Status.Code.FilesChanged).To(gomega.BeEquivalentTo(2))
	w.Expect(meta.IsStatusConditionTrue(first.Status.Conditions, v1alpha1.CheckpointDurable)).To(gomega.BeTrue())
	w.checkpoint("work-3")
	second := w.checkpoint("work-2-" + string(w.task("work").UID)[:5])
	w.Expect(second.Status.Number).To(gomega.BeEquivalentTo(2))
	w.Eventually(func() string { return w.latest("work") }).Should(gomega.Equal("work-3"))
}

func TestACheckpointThatIsPushedAtOnceHasOneStatusWrite(t *testing.T) {
	w := newWorld(t)
	w.stop()
	w.pushTime = time.Hour
	w.startManager()
	w.running("work")
	w.store.AddCheckpoint(w.id("work"), history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerToolCalls), Time: time.Now()})
	c := &v1alpha1.Checkpoint{}
	w.Eventually(func() error { return w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: "work-1"}, c) }).Should(gomega.Succeed())
	w.store.SetDurable(w.id("work"), 1)
	c = w.checkpoint("work-1")
	w.Expect(meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.CheckpointDurable)).To(gomega.BeTrue())
	w.Expect(w.checkpointWrites()).To(gomega.Equal([]string{http.MethodPost, http.MethodPut}))
}

// checkpointWrites are the methods of the writes of Checkpoints.
func (w *world) checkpointWrites() (methods []string) {
	for _, request := range w.requests.list() {
		if strings.Contains(request, "/checkpoints") {
			methods = append(methods, strings.Fields(request)[0])
		}
	}
	return methods
}

func TestACheckpointThatIsNotPushedYetIsNotWrittenAgain(t *testing.T) {
	w := newWorld(t)
	w.running("work")
	w.store.AddCheckpoint(w.id("work"), history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerToolCalls), Time: time.Now()})
	w.checkpoint("work-1")
	for messages := range int64(20) {
		w.store.SetTotals(w.id("work"), history.Totals{Messages: messages}) // each has the checkpoint looked at
		time.Sleep(20 * time.Millisecond)
	}
	w.Expect(w.checkpointWrites()).To(gomega.Equal([]string{http.MethodPost, http.MethodPut}))
}

// lagging is a client whose cache has not seen the newest version of a Checkpoint.
type lagging struct {
	client.Client
	seen *v1alpha1.Checkpoint
}

func (l lagging) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if c, ok := object.(*v1alpha1.Checkpoint); ok {
		l.seen.DeepCopyInto(c)
		return nil
	}
	return l.Client.Get(ctx, key, object, options...)
}

func TestACheckpointIsNotWrittenOnTheWordOfACacheThatLags(t *testing.T) {
	w := newWorld(t)
	w.complete("work", w.running("work"))
	written := w.checkpoint("work-1")
	w.stop()
	before := written.DeepCopy()
	before.Status = v1alpha1.CheckpointStatus{}
	before.ResourceVersion = "1"
	told := events.NewFakeRecorder(10)
	lags := lagging{Client: w.client, seen: before}
	r := &checkpoint.Reconciler{Client: lags, Live: w.client, Store: w.store, Events: told}
	result, err := r.Reconcile(w.ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(written)})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	w.Expect(result).To(gomega.Equal(ctrl.Result{}), "no conflict, which would have it tried again")
	w.Expect(told.Events).To(gomega.BeEmpty())
	w.Expect(w.checkpoint("work-1").ResourceVersion).To(gomega.Equal(written.ResourceVersion))
}

// TestADurableCheckpointThatIsLostSaysSo: the gitstore was put back to an older
// copy, and the volume does not have it either. What comes back is durable again.
func TestADurableCheckpointThatIsLostSaysSo(t *testing.T) {
	w := newWorld(t)
	w.running("work")
	w.store.AddCheckpoint(w.id("work"), history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerInterval), Time: time.Now(), Durable: true})
	c := w.checkpoint("work-1")
	durable := func(reason string) {
		w.untilCondition(c, func() []metav1.Condition { return c.Status.Conditions }, v1alpha1.CheckpointDurable, reason)
	}
	task := w.task("work")
	durable(v1alpha1.ReasonPushed)
	w.store.SetLost(w.id("work"), 1, "checkpoint 1 is lost")
	durable(v1alpha1.ReasonCheckpointLost)
	w.Expect(meta.IsStatusConditionFalse(c.Status.Conditions, v1alpha1.CheckpointDurable)).To(gomega.BeTrue())
	w.untilCondition(task, func() []metav1.Condition { return task.Status.Conditions }, v1alpha1.TaskDurable, v1alpha1.ReasonCheckpointLost)
	w.store.SetDurable(w.id("work"), 1)
	durable(v1alpha1.ReasonPushed)
	w.stop()
	w.store.SetLost(w.id("work"), 1, "checkpoint 1 is lost")
	w.startManager() // it was away when the store told
	durable(v1alpha1.ReasonCheckpointLost)
}

func TestACheckpointBecomesDurableLater(t *testing.T) {
	w := newWorld(t)
	w.running("work")
	w.store.AddCheckpoint(w.id("work"), history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerInterval), Time: time.Now()})
	c := w.checkpoint("work-1")
	w.Expect(meta.IsStatusConditionFalse(c.Status.Conditions, v1alpha1.CheckpointDurable)).To(gomega.BeTrue())
	w.store.SetRefused(w.id("work"), 1, "the quota of this namespace is used up")
	w.untilCondition(c, func() []metav1.Condition { return c.Status.Conditions }, v1alpha1.CheckpointDurable, v1alpha1.ReasonGitStoreRefused)
	w.store.SetDurable(w.id("work"), 1)
	w.untilCondition(c, func() []metav1.Condition { return c.Status.Conditions }, v1alpha1.CheckpointDurable, v1alpha1.ReasonPushed)
	w.Eventually(func() bool {
		return meta.IsStatusConditionTrue(w.task("work").Status.Conditions, v1alpha1.TaskDurable)
	}).Should(gomega.BeTrue())
}

func TestAManualCheckpointIsFilledWhenTheDaemonHasTakenIt(t *testing.T) {
	w := newWorld(t)
	w.running("work")
	w.record("work", v1alpha1.TriggerToolCalls, 1)
	c := manual("mine", "work")
	w.create(c)
	w.untilCondition(c, func() []metav1.Condition { return c.Status.Conditions }, v1alpha1.CheckpointReady, v1alpha1.ReasonRequested)
	w.store.AddCheckpoint(w.id("work"), history.Checkpoint{
		Attempt: 1, Trigger: string(v1alpha1.TriggerManual), Time: time.Now(), Durable: true,
		RequestedByName: "mine", RequestedByUID: string(c.UID),
	})
	w.Expect(w.checkpoint("mine").Status.Number).To(gomega.BeEquivalentTo(2))
	w.Eventually(func() string { return w.latest("work") }).Should(gomega.Equal("mine"))
	list := &v1alpha1.CheckpointList{}
	w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(gomega.Succeed())
	w.Expect(list.Items).To(gomega.HaveLen(2), "no second object stands for the manual one")
}

func TestAManualCheckpointTellsWhatKeepsItFromBeingTaken(t *testing.T) {
	w := newWorld(t)
	w.running("work")
	w.store.Begin(w.id("work"), 1)
	c := manual("mine", "work")
	w.create(c)
	message := func() string {
		w.Expect(w.client.Get(w.ctx, client.ObjectKeyFromObject(c), c)).To(gomega.Succeed())
		if ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.CheckpointReady); ready != nil {
			return ready.Message
		}
		return ""
	}
	asked := "the task's daemon was asked to take the checkpoint"
	w.Eventually(message).Should(gomega.Equal(asked))
	w.store.SetProblem(w.id("work"), &history.Problem{Reason: v1alpha1.ReasonCheckpointFailed, Message: "too many files"})
	w.Eventually(message).Should(gomega.Equal(asked + ", which cannot do so now: too many files"))
	w.store.SetProblem(w.id("work"), nil)
	w.Eventually(message).Should(gomega.Equal(asked))
}

func TestAManualCheckpointOfATaskThatDoesNotRun(t *testing.T) {
	w := newWorld(t)
	nobody := manual("nobody", "no-task")
	w.create(nobody)
	w.untilCondition(nobody, func() []metav1.Condition { return nobody.Status.Conditions }, v1alpha1.CheckpointReady, v1alpha1.ReasonTaskNotFound)

	w.apply("asleep", builders.Suspended)
	w.until("asleep", v1alpha1.ReasonSuspended)
	early := manual("early", "asleep")
	w.create(early)
	w.untilCondition(early, func() []metav1.Condition { return early.Status.Conditions }, v1alpha1.CheckpointReady, v1alpha1.ReasonTaskNotStarted)

	w.complete("work", w.running("work"))
	late := manual("late", "work")
	w.create(late)
	w.untilCondition(late, func() []metav1.Condition { return late.Status.Conditions }, v1alpha1.CheckpointReady, v1alpha1.ReasonTaskStopped)
	w.Expect(late.Status.Number).To(gomega.BeEquivalentTo(1))
}

func TestAFork(t *testing.T) {
	w := newWorld(t)
	w.complete("source", w.running("source", func(t *v1alpha1.Task) { t.Spec.Agent.StatePaths = []string{".agent"} }))
	w.checkpoint("source-1")
	before := w.untilRecorded("source")
	other := "The other way."
	f := &v1alpha1.Fork{
		ObjectMeta: metav1.ObjectMeta{Name: "try"},
		Spec: v1alpha1.ForkSpec{
			SourceRef: v1alpha1.NameReference{Name: "source"}, CheckpointRef: &v1alpha1.NameReference{Name: "source-1"},
			Variants: []v1alpha1.ForkVariant{{Name: "branched", Prompt: &other}},
		},
	}
	w.create(f)
	w.untilCondition(f, func() []metav1.Condition { return f.Status.Conditions }, v1alpha1.ForkComplete, v1alpha1.ReasonForked)
	w.Expect(f.Status.Source.Checkpoint).To(gomega.BeEquivalentTo(1))
	w.Expect(f.Status.Tasks[0].Name).To(gomega.Equal("branched"))

	p := w.pod("branched", 1)
	task := w.task("branched")
	w.Expect(*task.Spec.Prompt).To(gomega.Equal(other))
	w.Expect(task.Spec.Agent).To(gomega.Equal(before.Spec.Agent))
	w.Expect(task.Spec.Template).To(gomega.Equal(before.Spec.Template))
	w.Expect(task.OwnerReferences).To(gomega.BeEmpty())
	w.Expect(task.Labels).To(gomega.HaveKeyWithValue(v1alpha1.LabelFork, "try"))
	w.Expect(task.Annotations).To(gomega.BeEmpty(), "what the manager goes by stands in fields")
	w.Expect(*task.Spec.StartFrom.Fork).To(gomega.Equal(v1alpha1.ForkOrigin{Name: "try", UID: string(f.UID), FieldManager: f.ManagedFields[0].Manager}))
	w.Expect(task.Status.Source).To(gomega.Equal(f.Status.Source))
	w.Expect(p.Name).To(gomega.Equal("branched-1"))
	w.Expect(w.task("source").ResourceVersion).To(gomega.Equal(before.ResourceVersion), "the source is not written")
}

func TestAForkWaitsAndIsRefused(t *testing.T) {
	w := newWorld(t)
	fork := func(name, source, variant string) *v1alpha1.Fork {
		f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ForkSpec{
			SourceRef: v1alpha1.NameReference{Name: source}, Variants: []v1alpha1.ForkVariant{{Name: variant}},
		}}
		w.create(f)
		return f
	}
	none := fork("none", "no-task", "a")
	w.untilCondition(none, func() []metav1.Condition { return none.Status.Conditions }, v1alpha1.ForkComplete, v1alpha1.ReasonSourceNotFound)

	w.apply("source", builders.Suspended)
	w.apply("taken", builders.Suspended)
	early := fork("early", "source", "taken")
	w.untilCondition(early, func() []metav1.Condition { return early.Status.Conditions }, v1alpha1.ForkComplete, v1alpha1.ReasonWaitingForSource)
	w.change("source", builders.Running)
	p := w.pod("source", 1)
	w.start(p)
	w.complete("source", p)
	w.untilCondition(early, func() []metav1.Condition { return early.Status.Conditions }, v1alpha1.ForkComplete, v1alpha1.ReasonTaskExists)
	w.Expect(meta.FindStatusCondition(early.Status.Conditions, v1alpha1.ForkComplete).Message).To(gomega.ContainSubstring("delete it"))
}

// What the fork made is the only copy of its work: a backup has the Task without what
// admission lets only the manager write.
func TestNobodyIsToldToDeleteATaskThatNamesTheFork(t *testing.T) {
	w := newWorld(t)
	w.complete("source", w.running("source"))
	w.apply("back", builders.Suspended, func(t *v1alpha1.Task) { t.Labels = map[string]string{v1alpha1.LabelFork: "mine"} })
	f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: v1alpha1.ForkSpec{
		SourceRef: v1alpha1.NameReference{Name: "source"}, Variants: []v1alpha1.ForkVariant{{Name: "back"}},
	}}
	w.create(f)
	w.untilCondition(f, func() []metav1.Condition { return f.Status.Conditions }, v1alpha1.ForkComplete, v1alpha1.ReasonTaskExists)
	message := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.ForkComplete).Message
	w.Expect(message).To(gomega.And(gomega.ContainSubstring("put back from a backup"), gomega.Not(gomega.ContainSubstring("delete it"))))
}

func TestASnapshotIsResolvedOnce(t *testing.T) {
	w := newWorld(t)
	snapshot := func(name string, checkpoint *v1alpha1.NameReference) *v1alpha1.ConversationSnapshot {
		s := &v1alpha1.ConversationSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ConversationSnapshotSpec{
			TaskRef: v1alpha1.NameReference{Name: "work"}, CheckpointRef: checkpoint,
		}}
		w.create(s)
		return s
	}
	early := snapshot("early", nil)
	w.untilCondition(early, func() []metav1.Condition { return early.Status.Conditions }, v1alpha1.SnapshotReady, v1alpha1.ReasonTaskNotFound)
	w.complete("work", w.running("work"))
	w.checkpoint("work-1")
	s := snapshot("there", &v1alpha1.NameReference{Name: "work-1"})
	w.untilCondition(s, func() []metav1.Condition { return s.Status.Conditions }, v1alpha1.SnapshotReady, v1alpha1.ReasonResolved)
	w.Expect(s.Status.Digest).To(gomega.Equal("digest-1"))
	w.Expect(s.Status.Conversation.Position).To(gomega.BeEquivalentTo(4))
	missing := snapshot("missing", &v1alpha1.NameReference{Name: "work-9"})
	w.untilCondition(missing, func() []metav1.Condition { return missing.Status.Conditions }, v1alpha1.SnapshotReady, v1alpha1.ReasonCheckpointNotFound)
}
