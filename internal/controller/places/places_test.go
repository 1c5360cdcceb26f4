package places

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/queue"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// bench is the places of a manager that has seen the whole cache.
type bench struct {
	*testing.T
	*Places
	woken []string
}

func newBench(t *testing.T, limits queue.Limits) *bench {
	t.Helper()
	b := &bench{T: t, Places: New(limits, nil)}
	b.wake = func(r reconcile.Request) { b.woken = append(b.woken, r.Name) }
	b.ready = true
	return b
}

// task returns a task with so many attempts, of which the last has no outcome.
func task(name string, attempts int, options ...builders.TaskOption) *v1alpha1.Task {
	t := builders.Task(name, append([]builders.TaskOption{builders.WithUID("uid-of-" + name)}, options...)...)
	for i := range attempts {
		t.Status.Attempts = append(t.Status.Attempts, v1alpha1.Attempt{Number: int64(i + 1), Outcome: v1alpha1.AttemptPodLost})
	}
	if attempts > 0 {
		t.Status.Attempts[attempts-1].Outcome = ""
	}
	return t
}

// ended is a task whose last attempt has completed it.
func ended(name string, attempts int) *v1alpha1.Task {
	t := task(name, attempts)
	t.Status.Attempts[attempts-1].Outcome = v1alpha1.AttemptCompleted
	return t
}

// queued is a task whose status says that it waits.
func queued(name string, options ...builders.TaskOption) *v1alpha1.Task {
	t := task(name, 0, options...)
	t.Status.Conditions = []metav1.Condition{{Type: v1alpha1.TaskSucceeded, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonQueued}}
	return t
}

func (b *bench) wantWoken(names ...string) {
	b.Helper()
	if !slices.Equal(b.woken, names) {
		b.Errorf("woken: %v, want %v", b.woken, names)
	}
	b.woken = nil
}

func (b *bench) wantCount(running, waiting int) {
	b.Helper()
	if r, w := b.Count(); r != running || w != waiting {
		b.Errorf("%d have a place and %d wait, want %d and %d", r, w, running, waiting)
	}
}

// asks asks for a place, and reports whether the task got one.
func (b *bench) asks(t *v1alpha1.Task) bool { return !b.Ask(t).Waits }

func TestWithoutALimitNoneWaits(t *testing.T) {
	var none *Places
	if none.Ask(task("a", 0)).Waits || none.Look(task("a", 0)).Waits || none.Metrics() != nil {
		t.Error("a task waits although there are no places")
	}
	none.Settle(task("a", 0), false, false)
	b := newBench(t, queue.Limits{})
	for _, name := range []string{"a", "b", "c"} {
		if !b.asks(task(name, 0)) {
			t.Errorf("%s waits although there is no limit", name)
		}
	}
}

// childOf makes the task a child.
func childOf(parent string) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.ParentRef = &v1alpha1.NameReference{Name: parent} }
}

// leads makes the task a supervisor of which so many children run at once.
func leads(atOnce int32) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.Role, t.Spec.Children = v1alpha1.RoleSupervisor, &v1alpha1.Children{AtOnce: &atOnce}
	}
}

func TestOfTheChildrenOfASupervisorOnlySoManyRun(t *testing.T) {
	b := newBench(t, queue.Limits{})
	b.observe(task("lead", 1, leads(1)))
	if !b.asks(task("a", 0, childOf("lead"))) {
		t.Fatal("the first child got no place")
	}
	b.Settle(task("a", 0, childOf("lead")), false, true)
	if found := b.Ask(task("b", 0, childOf("lead"))); !found.Waits || !found.OfParent || found.Parent != "lead" || found.MaximumOfParent != 1 {
		t.Errorf("the second child finds %+v", found)
	}
	b.Settle(task("b", 0, childOf("lead")), true, false)
	if !b.asks(task("c", 0)) || !b.asks(task("d", 0, childOf("other"))) {
		t.Error("a task that is no child of lead waits")
	}
	b.wantWoken()
	b.observe(task("lead", 1, leads(2)))
	b.wantWoken("b")
	b.asks(task("e", 0, childOf("lead")))
	b.Settle(task("e", 0, childOf("lead")), true, false)
	b.deleted(task("lead", 1, leads(2)))
	b.wantWoken("e")
}

func TestAPlaceIsATasksOwnUntilTheCacheShowsWhatBecameOfIt(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 1})
	if !b.asks(task("a", 0)) {
		t.Fatal("a got no place")
	}
	b.Settle(task("a", 0), false, true) // it has written its attempt
	b.observe(task("a", 0))             // the cache does not have that yet
	if b.asks(task("b", 0)) {
		t.Fatal("b got the place that is a's")
	}
	b.Settle(task("b", 0), true, false)
	b.observe(task("a", 1))
	b.wantCount(1, 1)
	if b.asks(task("b", 0)) {
		t.Fatal("b got the place although a runs")
	}
	b.wantWoken()
	b.observe(ended("a", 1))
	b.wantWoken("b")
	if !b.asks(task("b", 0)) {
		t.Error("b did not get the place that it was woken for")
	}
}

func TestACacheThatSkipsARunningTaskFreesItsPlace(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 1})
	b.asks(task("a", 0))
	b.Settle(task("a", 0), false, true)
	b.observe(queued("b"))
	b.asks(queued("b"))
	b.Settle(queued("b"), true, false)
	b.observe(ended("a", 1)) // it never showed the attempt while it ran
	b.wantWoken("b")
}

func TestAPlaceThatIsNotUsedGoesToTheNext(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 1})
	b.observe(task("runs", 1))
	for _, name := range []string{"a", "b", "c"} {
		b.asks(queued(name))
		b.Settle(queued(name), true, false)
	}
	b.observe(ended("runs", 1))
	b.wantWoken("a")
	b.Settle(queued("a"), false, false) // its source is gone, say
	b.wantWoken("b")
	b.wantCount(1, 1)
	b.Settle(queued("a"), false, false)
	b.wantWoken()
	b.deleted(toolscache.DeletedFinalStateUnknown{Key: "default/b", Obj: queued("b")})
	b.wantWoken("c")
}

func TestATaskThatStillWaitsIsBackInTheQueue(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 1})
	b.observe(task("runs", 1))
	b.Settle(queued("a"), true, false)
	b.Settle(queued("a"), false, false) // for a moment, something else is in its way
	b.Settle(queued("a"), true, false)
	b.observe(ended("runs", 1))
	b.wantWoken("a")
}

func TestAResumedTaskIsNotTakenForItsFormerAttempt(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 1})
	b.observe(ended("a", 3))
	if !b.asks(ended("a", 3)) {
		t.Fatal("a got no place")
	}
	b.Settle(task("a", 4), false, true)
	b.observe(ended("a", 3)) // the cache is behind
	if b.asks(task("b", 0)) {
		t.Error("b got the place that is a's")
	}
}

func TestNothingIsGivenAwayBeforeTheWholeCacheWasSeen(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 2})
	b.ready = false
	b.observe(queued("young"))
	old := queued("old")
	old.CreationTimestamp = metav1.NewTime(time.Unix(1, 0))
	young := queued("young")
	young.CreationTimestamp = metav1.NewTime(time.Unix(2, 0))
	b.observe(young)
	if b.asks(task("new", 0)) {
		t.Error("a new task got a place")
	}
	b.Settle(task("new", 0), false, false)
	b.observe(old)
	b.observe(task("runs", 1))
	b.wantWoken()
	b.seen, b.synced = make(chan struct{}), func() bool { return true }
	close(b.seen)
	if err := b.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.wantWoken("old")
	b.wantCount(2, 1)
}

func TestATaskOfTheSameNameIsAnotherOne(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 1})
	b.observe(task("a", 1))
	again := task("a", 0)
	again.UID = types.UID("another")
	b.observe(again)
	b.wantCount(0, 0)
	b.Settle(task("a", 1), false, false) // of the former one, too late
	if !b.asks(again) {
		t.Error("the new task got no place")
	}
	b.Settle(task("a", 1), false, false)
	b.wantCount(1, 0)
}

func TestNewsOfAFormerTaskTakeNoPlaceFromTheNewOne(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 1})
	former := task("a", 1)
	former.CreationTimestamp = metav1.NewTime(time.Unix(1, 0))
	b.observe(former)
	again := task("a", 0)
	again.UID, again.CreationTimestamp = types.UID("another"), metav1.NewTime(time.Unix(2, 0))
	if !b.asks(again) { // it was read before the cache's news of the former one were delivered
		t.Fatal("the new task got no place")
	}
	b.asks(queued("b"))
	b.Settle(queued("b"), true, false)
	b.observe(former)
	b.deleted(former)
	b.wantWoken()
	b.wantCount(1, 1)
}

func TestATaskThatGivesItsPlaceUpHasNoneBeforeTheCacheShowsThat(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 1})
	b.observe(task("a", 1))
	b.asks(queued("b"))
	b.Settle(queued("b"), true, false)
	gave := queued("a")
	gave.Status.Attempts = []v1alpha1.Attempt{{Number: 1, Outcome: v1alpha1.AttemptStopped, PlaceGivenUpTime: &metav1.Time{Time: time.Unix(9, 0)}}}
	b.Settle(gave, true, false) // it was written
	b.wantWoken("b")
	if b.asks(gave) {
		t.Error("a got its place back")
	}
	b.observe(task("a", 1)) // late news
	b.observe(gave)
	b.wantCount(1, 1)
	b.observe(ended("b", 1))
	b.wantWoken("a")
}

func TestAPlaceIsWantedFromATaskWhoseAgentHasNotStarted(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 1})
	a := task("a", 1)
	b.observe(a)
	if found := b.Look(a); found.Wanted || !found.Limited || found.Waits {
		t.Errorf("a finds %+v", found)
	}
	b.asks(queued("b"))
	b.Settle(queued("b"), true, false)
	if !b.Look(a).Wanted {
		t.Error("nobody wants the place for which b waits")
	}
	a.Status.Attempts[0].AgentStartTime = &metav1.Time{Time: time.Unix(1, 0)}
	if b.Look(a).Wanted {
		t.Error("the place is wanted from an agent that runs")
	}
	if newBench(t, queue.Limits{}).Look(a).Limited {
		t.Error("a task without limits is limited")
	}
}

func TestASupervisorAndItsChildNeverWaitForEachOther(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 1})
	if !b.asks(task("lead", 0, leads(5))) {
		t.Fatal("the supervisor got no place")
	}
	b.Settle(task("lead", 0, leads(5)), false, true)
	if !b.asks(task("child", 0, childOf("lead"))) {
		t.Fatal("its child waits for it")
	}
	b.Settle(task("child", 0, childOf("lead")), false, true)
	if b.asks(task("second", 0, childOf("lead"))) || b.asks(task("other", 0)) {
		t.Error("another one runs as well")
	}
}

func TestAnotherPriorityChangesTheOrder(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 1})
	b.observe(task("runs", 1))
	for _, name := range []string{"a", "b"} {
		b.asks(queued(name))
		b.Settle(queued(name), true, false)
	}
	b.observe(queued("b", builders.Priority(1)))
	b.observe(ended("runs", 1))
	b.wantWoken("b")
}

func TestWhichLimitATaskWaitsFor(t *testing.T) {
	b := newBench(t, queue.Limits{Total: 5, PerNamespace: 1})
	b.observe(task("a", 1))
	if found := b.Ask(task("b", 0)); !found.Waits || !found.OfNamespace || found.Maximum != 5 || found.MaximumPerNamespace != 1 {
		t.Errorf("b finds %+v", found)
	}
	other := builders.Task("c", builders.InNamespace("other"), builders.WithUID("uid-of-c"))
	if b.Look(other).Waits {
		t.Error("a task of another namespace waits")
	}
}
