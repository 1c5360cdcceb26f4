package relations

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/reason"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// bench is an account that has seen the whole cache, and what it has queued since.
type bench struct {
	*testing.T
	Account
	queued *queue
	cache  map[string]*v1alpha1.Task
}

// queue notes what is added, and what of that is gathered for a while.
type queue struct {
	Queue
	names, gathered []string
}

func (q *queue) Add(r reconcile.Request) { q.names = append(q.names, r.Name) }

func (q *queue) AddAfter(r reconcile.Request, _ time.Duration) {
	q.Add(r)
	q.gathered = append(q.gathered, r.Name)
}

func newBench(t *testing.T, tasks ...*v1alpha1.Task) *bench {
	t.Helper()
	b := &bench{T: t, queued: &queue{}, cache: map[string]*v1alpha1.Task{}}
	for _, task := range tasks {
		b.see(task)
	}
	b.Owes(builders.Task("begin"))
	b.queued.names = nil
	return b
}

// see has the cache show a task, in place of the one of its name that it has had.
func (b *bench) see(task *v1alpha1.Task) {
	b.Helper()
	was := b.cache[task.Name]
	b.cache[task.Name] = task.DeepCopy()
	if was == nil {
		b.Handler().Create(b.Context(), event.CreateEvent{Object: task}, b.queued)
		return
	}
	b.Handler().Update(b.Context(), event.UpdateEvent{ObjectOld: was, ObjectNew: task}, b.queued)
}

// change has the cache show a change of a task.
func (b *bench) change(name string, change func(*v1alpha1.Task)) {
	b.Helper()
	task := b.cache[name].DeepCopy()
	change(task)
	b.see(task)
}

// delete has the cache show that a task is gone.
func (b *bench) delete(name string) {
	b.Handler().Delete(b.Context(), event.DeleteEvent{Object: b.cache[name]}, b.queued)
	delete(b.cache, name)
}

// woken returns the names of the tasks that were queued since it was called last, directly or by a lookup,
// in order.
func (b *bench) woken() (names []string) {
	b.Helper()
	for _, name := range b.queued.names {
		kind, of, isLookup := strings.Cut(name, "/")
		if !isLookup {
			names = append(names, name)
			continue
		}
		found, err := b.Lookups()[kind](b.Context(), "default", of)
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range found {
			names = append(names, r.Name)
		}
	}
	b.queued.names = nil
	slices.Sort(names)
	return slices.Compact(names)
}

func (b *bench) wantWoken(why string, names ...string) {
	b.Helper()
	if got := b.woken(); !slices.Equal(got, names) {
		b.Errorf("%s: %v are woken, want %v", why, got, names)
	}
}

// takes asks for the places that the option gives a task, and reports whether it got them.
func (b *bench) takes(name string, option builders.TaskOption) bool {
	b.Helper()
	next := b.cache[name].DeepCopy()
	option(next)
	return b.Take(b.cache[name], &next.Status)
}

func task(name string, options ...builders.TaskOption) *v1alpha1.Task {
	return builders.Task(name, append([]builders.TaskOption{builders.InNamespace("default"), builders.WithUID("uid-of-" + name)}, options...)...)
}

// of makes a task name a contract, lead makes it its supervisor as well.
func of(contract string) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.Contract = &v1alpha1.Contract{Name: contract} }
}

func lead(contract string) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		of(contract)(t)
		t.Spec.Role = v1alpha1.RoleSupervisor
	}
}

func maximum(n int32) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.Children = &v1alpha1.Children{Maximum: ptr.To(n)} }
}

func below(parent string) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.ParentRef = &v1alpha1.NameReference{Name: parent} }
}

func after(others ...string) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.DependsOn = nil
		for _, name := range others {
			t.Spec.DependsOn = append(t.Spec.DependsOn, v1alpha1.Dependency{TaskRef: v1alpha1.NameReference{Name: name}})
		}
	}
}

// joined makes a task a member of the contract, leading its leader, and child a child.
func joined(contract string) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Status.Contract = &v1alpha1.ContractStatus{Name: contract, Phase: "Plan"} }
}

func leading(contract string) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		joined(contract)(t)
		t.Status.Contract.LeadingSince = ptr.To(metav1.Now())
	}
}

func child(parent string) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		t.Status.Parent = &v1alpha1.ParentStatus{Name: parent, UID: "uid-of-" + parent, Depth: 1}
	}
}

// is sets the stored state of a task.
func is(status metav1.ConditionStatus, why string) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		t.Status.Conditions = []metav1.Condition{{Type: v1alpha1.TaskSucceeded, Status: status, Reason: why}}
	}
}

func waits(why string) builders.TaskOption { return is(metav1.ConditionUnknown, why) }

func both(options ...builders.TaskOption) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		for _, option := range options {
			option(t)
		}
	}
}

// TestWhatEndsAWaitWakesTheTask has, for each reason to wait for others, what may end it.
func TestWhatEndsAWaitWakesTheTask(t *testing.T) {
	gone := func(name string) func(*bench) { return func(b *bench) { b.delete(name) } }
	made := func(other *v1alpha1.Task) func(*bench) { return func(b *bench) { b.see(other) } }
	changed := func(name string, options ...builders.TaskOption) func(*bench) {
		return func(b *bench) { b.change(name, both(options...)) }
	}
	phases := func(t *v1alpha1.Task) { t.Spec.Contract.Phases = []string{"Deploy"} }
	leader := func() *v1alpha1.Task { return task("lead", lead("port"), leading("port"), maximum(1)) }
	first := func() *v1alpha1.Task { return task("first", below("lead"), child("lead"), joined("port")) }
	completed := is(metav1.ConditionTrue, v1alpha1.ReasonCompleted)

	reasons := map[string]bool{}
	for name, c := range map[string]struct {
		why     string
		waiting *v1alpha1.Task
		others  []*v1alpha1.Task
		ends    func(*bench)
	}{
		"the leader has finished":              {v1alpha1.ReasonWaitingForContract, task("w", lead("port")), []*v1alpha1.Task{leader()}, changed("lead", joined("port"), completed)},
		"the leader is gone":                   {v1alpha1.ReasonWaitingForContract, task("w", lead("port")), []*v1alpha1.Task{leader()}, gone("lead")},
		"the leader, its parent, has finished": {v1alpha1.ReasonWaitingForContract, task("w", below("lead"), child("lead"), func(t *v1alpha1.Task) { t.Spec.Role = v1alpha1.RoleSupervisor }), []*v1alpha1.Task{leader()}, changed("lead", joined("port"), completed)},
		"a member is gone":                     {v1alpha1.ReasonContractFull, task("w", of("port")), members(v1alpha1.MaxContractTasks), gone("m0")},
		"a member is gone, of a parent's":      {v1alpha1.ReasonContractFull, task("w", below("m0"), child("m0")), members(v1alpha1.MaxContractTasks), gone("m1")},
		"the phases are others":                {v1alpha1.ReasonPhaseUnknown, task("w", of("port")), []*v1alpha1.Task{leader()}, changed("lead", phases)},
		"the phases of the parent are others":  {v1alpha1.ReasonPhaseUnknown, task("w", below("lead"), child("lead")), []*v1alpha1.Task{leader()}, changed("lead", phases)},
		"nobody has other phases any more":     {v1alpha1.ReasonPhaseUnknown, task("w", of("port")), []*v1alpha1.Task{leader()}, changed("lead", joined("port"), completed)},
		"the leader with the phases is gone":   {v1alpha1.ReasonPhaseUnknown, task("w", of("port")), []*v1alpha1.Task{leader()}, gone("lead")},
		"the contract may spend more":          {v1alpha1.ReasonBudgetExceeded, task("w", of("port"), joined("port")), []*v1alpha1.Task{leader()}, changed("lead", func(t *v1alpha1.Task) { t.Spec.Contract.Budget = &v1alpha1.Budget{ToolCalls: ptr.To[int64](9)} })},
		"the parent appears":                   {v1alpha1.ReasonParentNotFound, task("w", below("lead")), nil, made(leader())},
		"the parent starts":                    {v1alpha1.ReasonParentNotFound, task("w", below("lead")), []*v1alpha1.Task{task("lead", lead("port"))}, changed("lead", leading("port"))},
		"the parent finds its own":             {v1alpha1.ReasonParentNotFound, task("w", below("lead")), []*v1alpha1.Task{task("lead", lead("port"), joined("port"), below("top"))}, changed("lead", child("top"))},
		"the parent that refuses is gone":      {v1alpha1.ReasonParentRefused, task("w", below("worker")), []*v1alpha1.Task{task("worker")}, gone("worker")},
		"a child is gone":                      {v1alpha1.ReasonChildLimitReached, task("w", below("lead")), []*v1alpha1.Task{leader(), first()}, gone("first")},
		"there may be more children":           {v1alpha1.ReasonChildLimitReached, task("w", below("lead")), []*v1alpha1.Task{leader(), first()}, changed("lead", maximum(2))},
		"the parent is being deleted":          {v1alpha1.ReasonChildLimitReached, task("w", below("lead")), []*v1alpha1.Task{leader(), first()}, changed("lead", func(t *v1alpha1.Task) { t.DeletionTimestamp = ptr.To(metav1.Now()) })},
		"what is awaited has completed":        {v1alpha1.ReasonWaitingForTasks, task("w", after("a")), []*v1alpha1.Task{task("a")}, changed("a", completed)},
		"what is awaited appears":              {v1alpha1.ReasonWaitingForTasks, task("w", after("a")), nil, made(task("a"))},
		"what is awaited is gone":              {v1alpha1.ReasonWaitingForTasks, task("w", after("a")), []*v1alpha1.Task{task("a")}, gone("a")},
		"what has failed goes on":              {v1alpha1.ReasonDependencyFailed, task("w", after("a")), []*v1alpha1.Task{task("a", is(metav1.ConditionFalse, v1alpha1.ReasonAgentFailed))}, changed("a", waits(v1alpha1.ReasonRunning))},
		"the next one in the circle goes on":   {v1alpha1.ReasonDependencyCircle, task("w", after("a")), []*v1alpha1.Task{task("a", after("w"), waits(v1alpha1.ReasonDependencyCircle))}, changed("a", after(), waits(v1alpha1.ReasonPending))},
	} {
		t.Run(c.why+", "+name, func(t *testing.T) {
			waits(c.why)(c.waiting)
			b := newBench(t, append(c.others, c.waiting)...)
			b.woken()
			c.ends(b)
			if !slices.Contains(b.woken(), "w") {
				t.Errorf("it is not woken")
			}
		})
		reasons[c.why] = true
	}
	for _, r := range reason.All() {
		if r.Watched && !reasons[r.Name] {
			t.Errorf("nothing is known of what ends %s", r.Name)
		}
	}
}

// members are so many of the contract port: m0, m1 and so on, the first one a supervisor.
func members(n int) (list []*v1alpha1.Task) {
	for i := range n {
		list = append(list, task(fmt.Sprintf("m%d", i), of("port"), joined("port")))
	}
	list[0].Spec.Role = v1alpha1.RoleSupervisor
	return list
}

func TestAPlaceIsKeptUntilTheCacheShowsIt(t *testing.T) {
	b := newBench(t, task("lead", lead("port"), leading("port"), maximum(1)), task("a", below("lead")), task("b", below("lead")))
	if !b.takes("a", child("lead")) || b.takes("b", child("lead")) {
		t.Fatal("the one place below the parent is not given to the first one alone")
	}
	if !b.RoomBelow(b.cache["a"], "uid-of-lead") || b.RoomBelow(b.cache["b"], "uid-of-lead") {
		t.Error("there is room for another one, or none for the one that has it")
	}
	b.change("a", waits(v1alpha1.ReasonQueued)) // written before: it shows nothing of the place
	if b.RoomBelow(b.cache["b"], "uid-of-lead") || !b.Owes(b.cache["a"]) {
		t.Error("the place is given up before the cache shows what was made of it")
	}
	b.change("a", child("lead"))
	if b.RoomBelow(b.cache["b"], "uid-of-lead") || b.Owes(b.cache["a"]) {
		t.Error("the cache shows the place, and it is free, or still owed")
	}
	b.delete("a")
	if !b.RoomBelow(b.cache["b"], "uid-of-lead") {
		t.Error("the place of a task that is gone is not free")
	}
}

func TestAPlaceThatWasNotUsedGoesToTheNextOne(t *testing.T) {
	b := newBench(t, task("first", lead("port")), task("second", lead("port")), task("third", lead("port")))
	if !b.takes("first", leading("port")) {
		t.Fatal("nobody leads, and the first one cannot")
	}
	b.change("second", waits(v1alpha1.ReasonWaitingForContract))
	b.change("third", waits(v1alpha1.ReasonWaitingForContract))
	b.woken()
	if leaders := b.Leaders(b.cache["second"], "port"); len(leaders) != 1 || leaders[0].Name != "first" || !leaders[0].Reserved {
		t.Errorf("the leaders are %v, want the first one, which is about to be", leaders)
	}
	b.Settle(b.cache["first"], false)
	b.wantWoken("the cache alone does not know whether the place is used")
	b.Settle(b.cache["first"], true)
	b.wantWoken("the first one was suspended before it led", "second")
	if b.takes("third", leading("port")) || !b.takes("second", leading("port")) {
		t.Error("the place is not kept for the one that has waited longest")
	}
	b.delete("second")
	b.wantWoken("the second one is gone before the cache shows that it leads, and all follow who supervises", "first", "third")
	if leaders := b.Leaders(b.cache["first"], "port"); len(leaders) != 1 || leaders[0].Name != "third" {
		t.Errorf("the leaders are %v, want the third one, which is about to be", leaders)
	}
}

func TestAllPlacesAreTakenOrNone(t *testing.T) {
	b := newBench(t, append(members(v1alpha1.MaxContractTasks), task("a", below("m0"), of("port")))...)
	if b.takes("a", both(child("m0"), joined("port"))) {
		t.Error("a place in a full contract was given away")
	}
	if b.Owes(b.cache["a"]) {
		t.Error("the place below the parent is kept although the contract had none")
	}
}

// TestAChildWithoutAContractOfItsOwnKeepsItsPlace: its contract is its parent's, which only its status says.
func TestAChildWithoutAContractOfItsOwnKeepsItsPlace(t *testing.T) {
	b := newBench(t, append(members(v1alpha1.MaxContractTasks-1), task("a", below("m0")), task("b", below("m0")))...)
	join := both(child("m0"), joined("port"))
	if !b.takes("a", join) {
		t.Fatal("the last place in the contract is not given away")
	}
	if b.RoomIn(b.cache["b"], "port") || b.takes("b", join) {
		t.Error("the last place in the contract is given away twice")
	}
}

func TestAsManyAreWokenAsThereArePlaces(t *testing.T) {
	tasks := []*v1alpha1.Task{task("lead", lead("port"), leading("port"), maximum(2)), task("x", below("lead"), child("lead")), task("y", below("lead"), child("lead"))}
	for i := range 100 {
		tasks = append(tasks, task(fmt.Sprintf("w%02d", i), below("lead"), waits(v1alpha1.ReasonChildLimitReached)))
	}
	b := newBench(t, tasks...)
	b.wantWoken("there is no place")
	b.delete("x")
	b.wantWoken("one child is gone", "lead", "w00")
	b.change("lead", maximum(4))
	b.wantWoken("two more may be children", "w01", "w02")
	b.change("w00", both(child("lead"), waits(v1alpha1.ReasonRunning)))
	b.wantWoken("a place is used", "lead")
	b.Settle(b.cache["w01"], true)
	b.wantWoken("a place was not used", "w03")
}

// TestASupervisorThatIsDeletedTakesNoMoreChildren: whoever may have become one is waited for.
func TestASupervisorThatIsDeletedTakesNoMoreChildren(t *testing.T) {
	b := newBench(t, task("lead", lead("port"), leading("port"), maximum(9)), task("a", below("lead")), task("b", below("lead")))
	if !b.takes("a", child("lead")) {
		t.Fatal("there is no place")
	}
	if joining := b.Close(b.cache["lead"]); joining != 1 {
		t.Errorf("%d tasks may be about to become children, want 1", joining)
	}
	b.change("lead", waits(v1alpha1.ReasonDeleting))
	if b.takes("b", child("lead")) {
		t.Error("a supervisor that is being deleted gets another child")
	}
	b.change("a", child("lead"))
	if joining := b.Close(b.cache["lead"]); joining != 0 {
		t.Errorf("%d tasks may be about to become children, want none", joining)
	}
	b.delete("lead")
	if b.takes("b", child("lead")) {
		t.Error("a supervisor that is gone gets another child")
	}
}

func TestATaskOfTheSameNameHasNoPlaces(t *testing.T) {
	b := newBench(t, task("a", lead("port"), leading("port")), task("b", lead("port"), waits(v1alpha1.ReasonWaitingForContract)))
	b.see(task("a", lead("port"), func(t *v1alpha1.Task) { t.UID = types.UID("another") }))
	if !slices.Contains(b.woken(), "b") || len(b.Leaders(b.cache["a"], "port")) != 1 {
		t.Error("the lead of the former task is not given to the one that waits")
	}
	former := task("a", lead("port"), leading("port"))
	b.Handler().Delete(t.Context(), event.DeleteEvent{Object: former}, b.queued)
	if b.Account.tasks[types.NamespacedName{Namespace: "default", Name: "a"}] == nil {
		t.Error("the deletion of the former task, told late, has the new one forgotten")
	}
}

func TestWhoWaitsForWhom(t *testing.T) {
	finished := func(t *v1alpha1.Task) { t.Spec.DependsOn[0].Condition = v1alpha1.DependOnFinished }
	b := newBench(t, task("a", after("c")), task("b", after("a")), task("c", after("b")), task("d", after("a")), task("e", after("a"), finished))
	if got := b.Waiters(b.cache["a"]); !slices.Equal(got, []string{"b", "d"}) {
		t.Errorf("%v wait for a to complete", got)
	}
	want := map[string]string{"a": "c", "b": "a", "c": "b", "d": "a", "e": "a"}
	got := b.Awaiting(b.cache["a"], []string{"c"})
	for name, awaits := range want {
		if !slices.Equal(got[name], []string{awaits}) {
			t.Errorf("%s awaits %v, want %s", name, got[name], awaits)
		}
	}
	circle := newBench(t, task("a", below("c")), task("b", below("a")), task("c", below("b")), task("d", below("c")))
	if got := circle.ParentCircle(circle.cache["a"]); !slices.Equal(got, []string{"a", "c", "b"}) {
		t.Errorf("the circle of parents is %v", got)
	}
	if got := circle.ParentCircle(circle.cache["d"]); got != nil {
		t.Errorf("d, which is in no circle, is in %v", got)
	}
}

// TestThoseThatWaitForAFailedTaskAreGatheredBeforeItSaysWhoTheyAre: its status is written for that.
func TestThoseThatWaitForAFailedTaskAreGatheredBeforeItSaysWhoTheyAre(t *testing.T) {
	b := newBench(t, task("a", is(metav1.ConditionFalse, v1alpha1.ReasonAgentFailed)))
	b.see(task("w", after("a")))
	if !slices.Contains(b.queued.gathered, "a") {
		t.Errorf("%v are woken at once, and %v after a while", b.queued.names, b.queued.gathered)
	}
}

// TestAnEventCostsTheSameHoweverManyAreConcerned: the goroutine that delivers events is all tenants'.
func TestAnEventCostsTheSameHoweverManyAreConcerned(t *testing.T) {
	tasks := []*v1alpha1.Task{task("lead", lead("port"), leading("port")), task("a")}
	for i := range 3000 {
		tasks = append(tasks, task(fmt.Sprintf("w%d", i), below("lead"), of("port"), after("a"), waits(v1alpha1.ReasonWaitingForTasks)))
	}
	b := newBench(t, tasks...)
	b.change("a", is(metav1.ConditionFalse, v1alpha1.ReasonAgentFailed))
	b.change("lead", func(t *v1alpha1.Task) { t.Spec.Contract.Phases = []string{"Deploy"} })
	if n := len(b.queued.names); n != 3 {
		t.Errorf("%d requests were queued, want one for each of the awaited task, the parent and the contract: %v", n, b.queued.names)
	}
	if n := len(b.woken()); n != 3000 {
		t.Errorf("%d tasks are woken, want all of them", n)
	}
}

func TestNothingIsRememberedOfTasksThatAreGone(t *testing.T) {
	b := newBench(t, task("lead", lead("port"), leading("port"), maximum(1)),
		task("a", below("lead"), child("lead"), joined("port")), task("b", below("lead"), after("a"), waits(v1alpha1.ReasonChildLimitReached)),
		task("c", of("port"), waits(v1alpha1.ReasonContractFull)))
	b.takes("c", joined("port"))
	for _, name := range []string{"a", "lead", "c", "b"} {
		b.delete(name)
	}
	if len(b.Account.tasks)+len(b.behind)+len(b.rooms) != 0 {
		t.Errorf("tasks %v, behind %v, rooms %v", b.Account.tasks, b.behind, b.rooms)
	}
}
