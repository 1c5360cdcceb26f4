package controller_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest/komega"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/controller/cached"
	"github.com/clew-dev/clew/internal/controller/checkpoint"
	"github.com/clew-dev/clew/internal/controller/conversationsnapshot"
	"github.com/clew-dev/clew/internal/controller/fork"
	"github.com/clew-dev/clew/internal/controller/historyhub"
	"github.com/clew-dev/clew/internal/controller/places"
	"github.com/clew-dev/clew/internal/controller/task"
	"github.com/clew-dev/clew/internal/controller/toolcall"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/queue"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/apiserver"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/testing/fakehistory"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// manager is the manager's account in the admission policies.
const manager = "system:serviceaccount:clew-system:clew-manager"

// world is a namespace with its own manager, a history store, and a kubelet that the test
// controls.
type world struct {
	testing.TB
	Gomega
	ctx       context.Context
	namespace string
	server    *apiserver.Server
	store     *fakehistory.Store
	kubelet   builders.Kubelet
	client    client.Client
	// objects reads objects again, for assertions that wait.
	objects  komega.Komega
	requests *requests
	stop     func()
	branches *fakeBranches
	// makeAgain is how often the gitstore is asked for all branches again; 0 for the default.
	makeAgain time.Duration
	// real is a history store to use in place of the fake one; nil for none.
	real backend
	// verifyEvery is how often snapshots are verified.
	verifyEvery time.Duration
	// pushTime is how long the status of a checkpoint waits for its push.
	pushTime time.Duration
	// keep is the number of automatic Checkpoints that a task keeps; 0 for all.
	keep int
	// settle is how long a task takes no checkpoint before the last few surplus objects go.
	settle time.Duration
	// grace is how often a problem is looked at again; 0 for often.
	grace time.Duration
	// patience is how long a pod that does not start keeps a place that others want; 0 for long.
	patience time.Duration
	// ahead is by how much the clock of the controller of Tasks is ahead.
	ahead time.Duration
	// neighbour is another namespace that the manager watches; "" for none.
	neighbour string
	// workers are those of the controller of Tasks; 2 if 0.
	workers int
	// atOnce are the limits of the tasks that run at once.
	atOnce queue.Limits
	// namespaceBudgets are those of namespaces, and budgetGrace is how long a daemon may take to end its
	// agent for one; 0 for the default.
	namespaceBudgets budget.ByNamespace
	budgetGrace      time.Duration
}

// backend is all that the controllers need of the history store.
type backend interface {
	historyhub.Listener
	task.Store
	checkpoint.Store
	conversationsnapshot.Store
}

// newWorld returns the world of a spec; it ends with the spec.
func newWorld() *world {
	GinkgoHelper()
	w := newWorldOf(GinkgoTB(), server)
	DeferCleanup(w.dump)
	DeferCleanup(w.checkReasons)
	return w
}

func newWorldOf(t testing.TB, server *apiserver.Server) *world {
	t.Helper()
	w := &world{
		TB: t, Gomega: NewWithT(t), ctx: t.Context(), server: server,
		store: fakehistory.New(), client: server.Client, requests: &requests{}, branches: &fakeBranches{},
	}
	w.objects = komega.New(w.client).WithContext(w.ctx)
	w.SetDefaultEventuallyTimeout(20 * time.Second)
	w.SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	w.namespace = w.newNamespace()
	clientset, err := kubernetes.NewForConfig(w.server.Config)
	w.Expect(err).NotTo(HaveOccurred())
	w.kubelet = builders.Kubelet{Client: w.client, Kubernetes: clientset}
	w.startManager()
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *world) newNamespace() string {
	w.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	w.Expect(w.client.Create(w.ctx, namespace)).To(Succeed())
	return namespace.Name
}

// startManager runs all controllers, only for the world's namespaces.
func (w *world) startManager() {
	w.Helper()
	restConfig := rest.CopyConfig(w.server.Config)
	restConfig.Impersonate = rest.ImpersonationConfig{UserName: manager, Groups: []string{"system:masters"}}
	restConfig.Wrap(w.requests.wrap)
	namespaces := map[string]cache.Config{w.namespace: {}}
	if w.neighbour != "" {
		namespaces[w.neighbour] = cache.Config{}
	}
	caching := cached.Options()
	caching.DefaultNamespaces = namespaces
	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme:     w.server.Scheme,
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		Cache:      caching,
	})
	w.Expect(err).NotTo(HaveOccurred())
	var store backend = w.store
	if w.real != nil {
		store = w.real
	}
	hub := historyhub.New(store)
	w.Expect(mgr.Add(hub)).To(Succeed())
	limits := plan.DefaultLimits()
	limits.RetryBase, limits.LostPodBase = 50*time.Millisecond, 50*time.Millisecond
	limits.RefreshEvery, limits.ProblemGrace = 100*time.Millisecond, cmp.Or(w.grace, 300*time.Millisecond)
	limits.StartPatience = cmp.Or(w.patience, limits.StartPatience)
	limits.BudgetGrace = cmp.Or(w.budgetGrace, limits.BudgetGrace)
	events := mgr.GetEventRecorder("clew-manager")
	pods := resources.Options{DaemonImage: "clew:test", ServerURL: "https://server", GitStoreURL: "https://gitstore"}
	live := inPages{mgr.GetAPIReader()}
	phases := &toolcall.Phases{}
	tasks := &task.Reconciler{
		Client: mgr.GetClient(), Live: live, Store: store, Events: events, Limits: limits, Clock: aheadClock{by: w.ahead}, Stamped: true,
		Pods: pods, Code: w.branches, Places: places.New(w.atOnce, mgr.GetCache()), PhaseCalls: phases,
		NamespaceBudgets: w.namespaceBudgets,
	}
	w.Expect(tasks.SetupWithManager(mgr, hub, cmp.Or(w.workers, 2))).To(Succeed())
	checkpoints := &checkpoint.Reconciler{Client: mgr.GetClient(), Live: live, Store: store, Events: events, PushTime: w.pushTime, Stamped: true}
	w.Expect(checkpoints.SetupWithManager(mgr, hub, 2)).To(Succeed())
	kept := &checkpoint.Retention{Client: mgr.GetClient(), Live: live, Keep: w.keep, Clock: clock.RealClock{}, Settle: w.settle}
	w.Expect(kept.SetupWithManager(mgr, 1)).To(Succeed())
	branches := &checkpoint.Branches{Client: mgr.GetClient(), Live: live, Gitstore: w.branches, Store: store, Events: events, Pods: pods, Limits: limits, Clock: clock.RealClock{}, MakeAgain: w.makeAgain, Stamped: true}
	w.Expect(branches.SetupWithManager(mgr, 2)).To(Succeed())
	snapshots := &conversationsnapshot.Reconciler{Client: mgr.GetClient(), Store: store, Clock: clock.RealClock{}, VerifyEvery: w.verifyEvery}
	w.Expect(snapshots.SetupWithManager(mgr, 1)).To(Succeed())
	// By this clock each Fork has waited for long, and is not tried again by itself for minutes.
	forks := &fork.Reconciler{Client: mgr.GetClient(), Live: live, Store: w.store, Events: events, Clock: clocktesting.NewFakePassiveClock(time.Now().Add(time.Hour)), Stamped: true}
	w.Expect(forks.SetupWithManager(mgr, hub, 1)).To(Succeed())
	calls := &toolcall.Reconciler{Client: mgr.GetClient(), Live: live, Store: w.store, Phases: phases, Clock: clock.RealClock{}, Stamped: true}
	w.Expect(calls.SetupWithManager(mgr)).To(Succeed())

	ctx, cancel := context.WithCancel(context.WithoutCancel(w.ctx))
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("the manager ended with an error: %v", err)
		}
	})
}

func (w *world) restartManager() {
	w.Helper()
	w.stop()
	w.startManager()
}

// in returns the world of another namespace, with the same manager.
func (w *world) in(namespace string) *world {
	return &world{
		TB: w.TB, Gomega: w.Gomega, ctx: w.ctx, server: w.server, namespace: namespace, store: w.store, kubelet: w.kubelet,
		client: w.client, objects: w.objects, requests: w.requests, branches: w.branches,
	}
}

// apply creates the task.
func (w *world) apply(name string, options ...builders.TaskOption) *v1alpha1.Task {
	w.Helper()
	t := builders.Task(name, append([]builders.TaskOption{builders.InNamespace(w.namespace)}, options...)...)
	w.Expect(w.client.Create(w.ctx, t)).To(Succeed())
	return t
}

// change updates the task's spec.
func (w *world) change(name string, options ...builders.TaskOption) {
	w.Helper()
	w.Eventually(w.tryChange).WithArguments(name, options).Should(Succeed())
}

// refusesChange expects that the API server refuses an update of the task's spec.
func (w *world) refusesChange(name, message string, options ...builders.TaskOption) {
	w.Helper()
	w.Eventually(w.tryChange).WithArguments(name, options).Should(MatchError(ContainSubstring(message)))
}

// tryChange tries to update the task's spec once; the manager may write the task meanwhile.
func (w *world) tryChange(name string, options []builders.TaskOption) error {
	t, err := w.current(name)
	if err != nil {
		return err
	}
	for _, option := range options {
		option(t)
	}
	return w.client.Update(w.ctx, t)
}

// edit updates an object as it stands, however often others write it meanwhile.
func (w *world) edit(object client.Object, change func()) {
	w.Helper()
	w.Eventually(func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change()
		return w.client.Update(w.ctx, object)
	}).Should(Succeed())
}

// current reads the task; assertions that wait poll it, since an error does not end the spec.
func (w *world) current(name string) (*v1alpha1.Task, error) {
	t := &v1alpha1.Task{}
	return t, w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: name}, t)
}

func (w *world) task(name string) *v1alpha1.Task {
	w.Helper()
	t, err := w.current(name)
	w.Expect(err).NotTo(HaveOccurred())
	return t
}

func (w *world) id(name string) history.Task {
	w.Helper()
	return history.Task{Namespace: w.namespace, Name: name, UID: string(w.task(name).UID)}
}

// until waits for the task's state, and returns the task.
func (w *world) until(name, reason string) *v1alpha1.Task {
	w.Helper()
	w.Eventually(w.current).WithArguments(name).Should(HaveReason(v1alpha1.TaskSucceeded, reason), "task %s", name)
	return w.task(name)
}

// untilRecorded waits until the task is at rest and everything is recorded.
func (w *world) untilRecorded(name string) *v1alpha1.Task {
	w.Helper()
	unrecorded := func(t *v1alpha1.Task) int64 { return t.Status.HistorySequence - t.Status.RecordedSequence }
	w.Eventually(w.current).WithArguments(name).Should(SatisfyAll(
		HaveCondition(v1alpha1.TaskHistoryRecorded, metav1.ConditionTrue),
		WithTransform(unrecorded, BeZero()),
	), "task %s is recorded to its last transition", name)
	return w.task(name)
}

// haveMessage matches an object whose condition of this type has a message that matches.
func haveMessage(condition string, message types.GomegaMatcher) types.GomegaMatcher {
	return HaveField("Status.Conditions", ContainElement(SatisfyAll(HaveField("Type", condition), HaveField("Message", message))))
}

// pod waits for the pod of an attempt, and assigns it to a node.
func (w *world) pod(name string, attempt int64) *corev1.Pod {
	w.Helper()
	p := &corev1.Pod{}
	key := client.ObjectKey{Namespace: w.namespace, Name: resources.PodName(name, attempt)}
	w.Eventually(func() error { return w.client.Get(w.ctx, key, p) }).Should(Succeed(), "pod %s", key.Name)
	if p.Spec.NodeName == "" {
		w.Expect(w.kubelet.Bind(w.ctx, p)).To(Succeed())
	}
	return p
}

// operation returns the operation that the pod carries out; nil for none.
func (w *world) operation(p *corev1.Pod) *daemonapi.Operation {
	w.Helper()
	return w.config(p).Operation
}

// config returns the configuration that the pod received.
func (w *world) config(p *corev1.Pod) daemonapi.Config {
	w.Helper()
	config, ok := resources.ConfigOf(p)
	w.Expect(ok).To(BeTrue(), "the pod has a container prepare with a configuration")
	return config
}

// untilGone waits until the API server no longer has the object. One of its name may have been made
// since, for example by a Fork.
func (w *world) untilGone(object client.Object) {
	w.Helper()
	current := object.DeepCopyObject().(client.Object)
	get := w.objects.Get(current)
	w.Eventually(func() (bool, error) {
		err := get()
		another := object.GetUID() != "" && current.GetUID() != object.GetUID()
		return apierrors.IsNotFound(err) || err == nil && another, client.IgnoreNotFound(err)
	}).Should(BeTrue(), func() string {
		return fmt.Sprintf("%T %s still exists; deletionTimestamp %v, finalizers %v", current, current.GetName(), current.GetDeletionTimestamp(), current.GetFinalizers())
	})
}

// untilStopped waits until the pod is being deleted, and lets it end.
func (w *world) untilStopped(p *corev1.Pod) {
	w.Helper()
	w.Eventually(w.objects.Object(p.DeepCopy())).Should(HaveField("DeletionTimestamp", Not(BeNil())), "pod %s is being deleted", p.Name)
	w.Expect(w.kubelet.Vanish(w.ctx, p)).To(Succeed())
}

// running applies a task and starts its agent.
func (w *world) running(name string, options ...builders.TaskOption) *corev1.Pod {
	w.Helper()
	w.apply(name, options...)
	p := w.pod(name, 1)
	w.start(p)
	w.until(name, v1alpha1.ReasonRunning)
	return p
}

func (w *world) start(p *corev1.Pod) {
	w.Helper()
	w.Expect(w.kubelet.Prepared(w.ctx, p, 0, daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})).To(Succeed())
	w.Expect(w.kubelet.AgentRuns(w.ctx, p)).To(Succeed())
}

// complete makes the agent exit with 0 after its last checkpoint was recorded.
func (w *world) complete(name string, p *corev1.Pod) *v1alpha1.Task {
	w.Helper()
	w.record(name, v1alpha1.TriggerCompletion, resources.Attempt(p))
	w.Expect(w.kubelet.AgentExits(w.ctx, p, 0)).To(Succeed())
	return w.until(name, v1alpha1.ReasonCompleted)
}

func (w *world) record(name string, trigger v1alpha1.CheckpointTrigger, attempt int64) history.Checkpoint {
	w.Helper()
	return w.store.AddCheckpoint(w.id(name), history.Checkpoint{
		Attempt: attempt, Trigger: string(trigger), Time: time.Now(), Durable: true, FilesChanged: 2,
		Message: "after some work", Position: history.Position{Branch: "main", Position: 4, ToolCalls: 2},
	})
}

func (w *world) checkpoint(name string) *v1alpha1.Checkpoint {
	w.Helper()
	c := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	w.Eventually(w.objects.Object(c)).Should(HaveCondition(v1alpha1.CheckpointReady, metav1.ConditionTrue), "checkpoint %s", name)
	return c
}

func (w *world) reasons(name string) []string {
	w.Helper()
	var reasons []string
	for _, e := range w.store.Events(w.id(name).UID) {
		reasons = append(reasons, e.Reason)
	}
	return reasons
}

// requests counts a manager's requests, and makes some of them fail.
type requests struct {
	mu     sync.Mutex
	writes []string
	reads  []string
	spoil  func(*http.Request) error
}

func (r *requests) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if request.Method == http.MethodGet {
			r.read(request.URL.RequestURI())
			return next.RoundTrip(request)
		}
		r.mu.Lock()
		r.writes = append(r.writes, request.Method+" "+request.URL.Path)
		spoil := r.spoil
		r.mu.Unlock()
		if spoil != nil {
			switch err := spoil(request); {
			case errors.Is(err, errFailing):
				return failing(request), nil
			case err != nil && !errors.Is(err, errAfterwards):
				return nil, err
			case err != nil:
				response, failed := next.RoundTrip(request)
				if failed == nil {
					response.Body.Close()
				}
				return nil, errors.New("the answer was lost")
			}
		}
		return next.RoundTrip(request)
	})
}

// errAfterwards makes a request succeed and loses its response.
var errAfterwards = errors.New("lose the answer")

func (r *requests) setSpoil(spoil func(*http.Request) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoil = spoil
}

func (r *requests) read(uri string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads = append(r.reads, uri)
}

// count returns how many reads and watches had a URI with this prefix.
func (r *requests) count(prefix string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, uri := range r.reads {
		if strings.HasPrefix(uri, prefix) {
			n++
		}
	}
	return n
}

// listReads lists the URIs that were read.
func (r *requests) listReads() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.reads...)
}

func (r *requests) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.writes...)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
