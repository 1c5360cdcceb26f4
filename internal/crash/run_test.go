package crash_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// run is one run of a chapter: with a namespace, a database, a gitstore, nodes and a manager of
// its own.
type run struct {
	testing.TB
	Gomega
	ctx       context.Context
	namespace string
	client    client.Client
	dsn       string
	store     *postgres.Store
	striker   *striker
	kubelet   *kubelet
	gitstore  *gitstore
	manager   *manager
	// uids has the names of the objects that were made, by UID.
	uids map[string]string
}

// newRun starts a run that ends with the test. at is the write at which the manager is killed;
// nil for none.
func newRun(t testing.TB, at *strike) *run {
	t.Helper()
	r := &run{TB: t, Gomega: NewWithT(t), ctx: t.Context(), client: server.Client, striker: &striker{at: at}, uids: map[string]string{}}
	r.SetDefaultEventuallyTimeout(60 * time.Second)
	r.SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "crash-"}}
	r.Expect(r.client.Create(r.ctx, namespace)).To(Succeed())
	r.namespace = namespace.Name
	r.dsn = pg.Database(t)
	store, err := postgres.Open(r.ctx, r.dsn, logr.Discard())
	r.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(store.Close)
	r.store = store
	r.startKubelet()
	kill := func() { r.manager.kill() }
	branches, address := startGitstore(t, r.striker, kill)
	r.gitstore = branches
	r.manager = startManager(t, r.namespace, endpoints{
		kubernetes: startAPIProxy(t, r.namespace, r.striker, kill), dsn: startPGProxy(t, r.dsn, r.striker, kill), gitstore: address,
	})
	return r
}

func (r *run) startKubelet() {
	r.Helper()
	clientset, err := kubernetes.NewForConfig(server.Config)
	r.Expect(err).NotTo(HaveOccurred())
	r.kubelet = &kubelet{
		Kubelet: builders.Kubelet{Client: r.client, Kubernetes: clientset}, namespace: r.namespace, store: r.store, pods: map[types.UID]*pod{},
		publish: published,
	}
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.kubelet.run(ctx)
	}()
	r.Cleanup(func() {
		cancel()
		<-done
		if err := r.kubelet.problem(); err != nil && r.Failed() {
			r.Logf("the nodes: %v", err)
		}
	})
}

// published is what a pod reports that publishes a commit of the agent: one announces the push, and
// the next one makes it.
func published(c daemonapi.PublishConfig) daemonapi.PublishResult {
	result := daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: c.Ref, Commit: "0123456789012345678901234567890123456789"}
	if c.Announce && !slices.Contains(c.Announced, daemonapi.OwnPush{Commit: result.Commit}) {
		result.Reason, result.Message, result.NotPushed = v1alpha1.ReasonPushAnnounced, "it is about to be pushed", true
	}
	return result
}

// create applies an object.
func (r *run) create(object client.Object) {
	r.Helper()
	object.SetNamespace(r.namespace)
	r.Expect(r.client.Create(r.ctx, object)).To(Succeed())
	r.uids[string(object.GetUID())] = fmt.Sprintf("%s, made %d.", object.GetName(), len(r.uids)+1)
}

// apply creates a task, and waits until its agent runs.
func (r *run) apply(name string, options ...builders.TaskOption) {
	r.Helper()
	r.create(builders.Task(name, options...))
	r.until(name, v1alpha1.ReasonRunning)
}

// deletes deletes a task, and waits until it and what belongs to it is gone.
func (r *run) deletes(name string) {
	r.Helper()
	t := r.task(name)
	r.Expect(r.client.Delete(r.ctx, t)).To(Succeed())
	r.Eventually(func() error {
		_, err := r.current(name)
		return err
	}).Should(MatchError(apierrors.IsNotFound, "IsNotFound"), "task %s is gone", name)
	r.Eventually(func() ([]client.Object, error) { return r.kubelet.owned(r.ctx, string(t.UID)) }).Should(BeEmpty(), "what belonged to task %s", name)
}

// current reads a task.
func (r *run) current(name string) (*v1alpha1.Task, error) {
	t := &v1alpha1.Task{}
	return t, r.client.Get(r.ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, t)
}

// until waits for a task's state.
func (r *run) until(name, reason string) {
	r.Helper()
	r.Eventually(r.current).WithArguments(name).Should(HaveReason(v1alpha1.TaskSucceeded, reason), "task %s", name)
}

// change updates a task's spec.
func (r *run) change(name string, options ...builders.TaskOption) {
	r.Helper()
	r.Eventually(func() error {
		t, err := r.current(name)
		if err != nil {
			return err
		}
		for _, option := range options {
			option(t)
		}
		return r.client.Update(r.ctx, t)
	}).Should(Succeed())
}

// changeCheckpoint updates a Checkpoint's spec.
func (r *run) changeCheckpoint(name string, change func(*v1alpha1.Checkpoint)) {
	r.Helper()
	r.Eventually(func() error {
		c, err := r.checkpoint(name)
		if err != nil {
			return err
		}
		change(c)
		return r.client.Update(r.ctx, c)
	}).Should(Succeed())
}

func (r *run) checkpoint(name string) (*v1alpha1.Checkpoint, error) {
	c := &v1alpha1.Checkpoint{}
	return c, r.client.Get(r.ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, c)
}

// works lets the agent say two things, and the daemon take a checkpoint, and waits for its
// object.
func (r *run) works(task string, number int) {
	r.Helper()
	r.Eventually(func() error {
		return r.kubelet.works(r.ctx, task, said(conversation.RoleUser, "Go on."), said(conversation.RoleAssistant, "Done."), checkpointed(v1alpha1.TriggerToolCalls))
	}).Should(Succeed())
	r.untilCheckpoint(checkpointName(task, number))
}

// untilCheckpoint waits until a Checkpoint is filled.
func (r *run) untilCheckpoint(name string) {
	r.Helper()
	r.Eventually(r.checkpoint).WithArguments(name).Should(HaveCondition(v1alpha1.CheckpointReady, metav1.ConditionTrue), "checkpoint %s", name)
}

// completes lets the agent exit.
func (r *run) completes(task string) {
	r.Helper()
	r.Eventually(func() error { return r.kubelet.exits(r.ctx, task) }).Should(Succeed())
	r.until(task, v1alpha1.ReasonCompleted)
}

// rewinds requests a rewind, and waits until it is complete and the task is in a state.
func (r *run) rewinds(task, state string, rewind v1alpha1.Rewind) {
	r.Helper()
	r.change(task, func(t *v1alpha1.Task) { t.Spec.Rewind = &rewind })
	r.untilDone(task, rewind.ID, func(s v1alpha1.TaskStatus) *v1alpha1.OperationStatus { return s.Rewind })
	r.until(task, state)
}

// resumes requests a resume, and waits until the agent runs.
func (r *run) resumes(task string, resume v1alpha1.Resume) {
	r.Helper()
	r.change(task, builders.Running, func(t *v1alpha1.Task) { t.Spec.Resume = &resume })
	r.untilDone(task, resume.ID, func(s v1alpha1.TaskStatus) *v1alpha1.OperationStatus { return s.Resume })
	r.until(task, v1alpha1.ReasonRunning)
}

func (r *run) untilDone(task, id string, of func(v1alpha1.TaskStatus) *v1alpha1.OperationStatus) {
	r.Helper()
	r.Eventually(func() (v1alpha1.OperationStatus, error) {
		t, err := r.current(task)
		if err != nil || of(t.Status) == nil {
			return v1alpha1.OperationStatus{}, err
		}
		return *of(t.Status), nil
	}).Should(And(HaveField("ID", id), HaveField("State", v1alpha1.OperationCompleted)), "operation %s of task %s", id, task)
}

// suspends suspends a task, and waits until it has stopped.
func (r *run) suspends(task string) {
	r.Helper()
	r.change(task, builders.Suspended)
	r.until(task, v1alpha1.ReasonSuspended)
}

// untilTrue waits until a condition of an object holds.
func (r *run) untilTrue(object client.Object, condition string) {
	r.Helper()
	r.Eventually(func() (client.Object, error) {
		return object, r.client.Get(r.ctx, client.ObjectKeyFromObject(object), object)
	}).Should(HaveCondition(condition, metav1.ConditionTrue), "%T %s", object, object.GetName())
}

// idle reports whether everything is recorded.
func (r *run) idle() bool {
	tasks := &v1alpha1.TaskList{}
	if err := r.client.List(r.ctx, tasks, client.InNamespace(r.namespace)); err != nil {
		return false
	}
	for _, t := range tasks.Items {
		s := t.Status
		if s.RecordedSequence != s.HistorySequence || !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.TaskHistoryRecorded) {
			return false
		}
		h, err := r.store.TaskState(r.ctx, string(t.UID))
		if err == nil && (h.CheckpointCount != s.CheckpointCount || h.Totals.Messages != s.MessageCount) {
			return false
		}
	}
	return true
}

// calm is how long the manager writes nothing once everything is done: it waits at most two
// seconds before it writes what is new.
const calm = 2500 * time.Millisecond

// end waits until everything is done, and returns what is there then.
func (r *run) end() string {
	r.Helper()
	r.Eventually(func() bool { return r.idle() && r.striker.quiet() > calm }).Should(BeTrue(), "everything is recorded")
	return r.state()
}

// endsAs waits until what is there is what is wanted, and the manager rests.
func (r *run) endsAs(want string) {
	r.Helper()
	r.Eventually(func() string {
		if !r.idle() || r.striker.quiet() < calm/5 {
			return "not everything is recorded"
		}
		return difference(want, r.state())
	}).WithPolling(500*time.Millisecond).Should(BeEmpty(), "what is missing (-) and what is too much (+)")
}

// difference returns the lines that only one of two texts has, those of the first with a minus
// and those of the second with a plus.
func difference(want, got string) string {
	count := map[string]int{}
	for line := range strings.Lines(want) {
		count["-"+line]++
	}
	for line := range strings.Lines(got) {
		if count["-"+line] > 0 {
			count["-"+line]--
		} else {
			count["+"+line]++
		}
	}
	var b strings.Builder
	for _, line := range slices.Sorted(maps.Keys(count)) {
		b.WriteString(strings.Repeat(line, count[line]))
	}
	return b.String()
}
