package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/queue"
)

// task returns a task such as "a/one", or "a/lead>one" for a child of a/lead, created so many seconds
// after all others began.
func task(name string, priority int32, seconds int) queue.Task {
	t := queue.Task{NamespacedName: key(name), Priority: priority, Since: time.Unix(int64(seconds), 0)}
	if parent, child, ok := strings.Cut(t.Name, ">"); ok {
		t.Parent, t.Name = parent, child
	}
	return t
}

func key(name string) types.NamespacedName {
	namespace, name, _ := strings.Cut(name, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func names(keys []types.NamespacedName) (list []string) {
	for _, k := range keys {
		list = append(list, k.String())
	}
	return list
}

func TestWhoMayRun(t *testing.T) {
	cases := map[string]struct {
		limits  queue.Limits
		running []string
		waiting []queue.Task
		// ofParent are how many children of those tasks may run at once.
		ofParent map[string]int
		want     []string
	}{
		"none waits": {limits: queue.Limits{Total: 2}},
		"the oldest first": {
			limits:  queue.Limits{Total: 2},
			waiting: []queue.Task{task("a/third", 0, 3), task("a/first", 0, 1), task("a/second", 0, 2)},
			want:    []string{"a/first", "a/second"},
		},
		"of the same age by name": {
			limits:  queue.Limits{Total: 1},
			waiting: []queue.Task{task("a/y", 0, 1), task("a/x", 0, 1)},
			want:    []string{"a/x"},
		},
		"a higher priority before an older one": {
			limits:  queue.Limits{Total: 2},
			waiting: []queue.Task{task("a/old", 0, 1), task("a/low", -5, 0), task("a/high", 7, 9)},
			want:    []string{"a/high", "a/old"},
		},
		"a priority takes no place from one that runs": {
			limits: queue.Limits{Total: 1}, running: []string{"a/low"},
			waiting: []queue.Task{task("a/high", 1000, 1)},
		},
		"a namespace at its limit holds no other one back": {
			limits: queue.Limits{Total: 3, PerNamespace: 1}, running: []string{"a/one"},
			waiting: []queue.Task{task("a/high", 1000, 1), task("b/low", -1000, 9), task("c/lower", -1000, 10)},
			want:    []string{"b/low", "c/lower"},
		},
		"the namespace that has the fewest, whatever the priorities are": {
			limits: queue.Limits{Total: 4}, running: []string{"a/one", "a/two", "b/one"},
			waiting: []queue.Task{task("a/high", 1000, 1), task("b/low", -1000, 9)},
			want:    []string{"b/low"},
		},
		"of those that have as many, the one that began to wait first": {
			limits: queue.Limits{Total: 3}, running: []string{"a/one", "b/one"},
			waiting: []queue.Task{task("b/low", -1000, 9), task("a/high", 1000, 1)},
			want:    []string{"b/low"},
		},
		"a namespace's limit without one of the cluster": {
			limits:  queue.Limits{PerNamespace: 1},
			waiting: []queue.Task{task("a/1", 0, 1), task("a/2", 0, 2), task("b/3", 0, 3)},
			want:    []string{"a/1", "b/3"},
		},
		"none while more run than a lowered limit allows": {
			limits: queue.Limits{Total: 1}, running: []string{"a/one", "b/two"},
			waiting: []queue.Task{task("c/three", 9, 1)},
		},
		"none waits twice": {
			limits:  queue.Limits{Total: 5},
			waiting: []queue.Task{task("a/1", 0, 1), task("a/1", 0, 1)},
			want:    []string{"a/1"},
		},
		"the last priority counts": {
			limits:  queue.Limits{Total: 1},
			waiting: []queue.Task{task("a/1", 5, 1), task("a/2", 3, 2), task("a/1", 0, 1)},
			want:    []string{"a/2"},
		},
		"without any limit, all": {
			waiting: []queue.Task{task("a/2", 0, 2), task("a/1", 0, 1)},
			want:    []string{"a/1", "a/2"},
		},
		"of the children of one parent only so many, the first of them": {
			ofParent: map[string]int{"a/lead": 2}, running: []string{"a/lead>old"},
			waiting: []queue.Task{task("a/lead>1", 0, 1), task("a/lead>high", 5, 9), task("a/lead>3", 0, 3)},
			want:    []string{"a/high"},
		},
		"children that wait hold nobody else back": {
			limits: queue.Limits{Total: 4, PerNamespace: 4}, ofParent: map[string]int{"a/lead": 1}, running: []string{"a/lead>old"},
			waiting: []queue.Task{task("a/lead>urgent", 1000, 1), task("a/other>child", 0, 2), task("a/none", -5, 3)},
			want:    []string{"a/child", "a/none"},
		},
		"a parent's name in another namespace is another parent's": {
			ofParent: map[string]int{"a/lead": 1}, running: []string{"a/lead>old"},
			waiting: []queue.Task{task("b/lead>1", 0, 1)},
			want:    []string{"b/1"},
		},
		"a child waits for its namespace as well": {
			limits: queue.Limits{PerNamespace: 1}, ofParent: map[string]int{"a/lead": 5}, running: []string{"a/x"},
			waiting: []queue.Task{task("a/lead>1", 0, 1)},
		},
		"one that runs does not wait": {
			limits: queue.Limits{Total: 2}, running: []string{"a/1"},
			waiting: []queue.Task{task("a/1", 0, 1), task("a/2", 0, 2)},
			want:    []string{"a/2"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			q := queue.New(c.limits)
			for parent, limit := range c.ofParent {
				q.SetLimit(key(parent), limit)
			}
			for _, name := range c.running {
				t := task(name, 0, 0)
				q.Hold(t.NamespacedName, t.Parent)
			}
			for _, w := range c.waiting {
				q.Join(w)
			}
			if got := names(q.Admit()); !slices.Equal(got, c.want) {
				t.Errorf("may run: %v, want %v", got, c.want)
			}
			for _, name := range c.want {
				if !q.Holds(key(name)) || q.Waits(key(name)) {
					t.Errorf("%s has no place, or still waits", name)
				}
			}
			if again := q.Admit(); len(again) > 0 {
				t.Errorf("and then %v as well", again)
			}
		})
	}
}

// A tenant's tasks may be short and many, and urgent as it says.
func TestNamespacesTakeTurns(t *testing.T) {
	q := queue.New(queue.Limits{Total: 1})
	q.Join(task("patient/1", -1000, 8))
	q.Join(task("patient/2", -1000, 9))
	var order []string
	for i := range 4 {
		q.Join(task(fmt.Sprintf("eager/%d", i), 1000, i))
		next := q.Admit()
		order = append(order, names(next)...)
		q.Free(next[0])
	}
	if want := []string{"patient/1", "eager/0", "patient/2", "eager/1"}; !slices.Equal(order, want) {
		t.Errorf("the order was %v, want %v", order, want)
	}
}

func TestASupervisorSharesItsPlaceWithOneOfItsChildren(t *testing.T) {
	q := queue.New(queue.Limits{Total: 1})
	q.Join(task("a/lead", 0, 0))
	q.Join(task("a/other", 1000, 1))
	admits := func(want ...string) {
		t.Helper()
		if got := names(q.Admit()); !slices.Equal(got, want) {
			t.Errorf("may run: %v, want %v", got, want)
		}
	}
	q.Leave(key("a/other"))
	admits("a/lead")
	q.Join(task("a/other", 1000, 1))
	q.Join(task("a/lead>1", 0, 2))
	q.Join(task("a/lead>2", 0, 3))
	q.Join(task("a/2>of the second", 0, 4))
	if got := q.Reached("a", "lead"); got != queue.NoLimit {
		t.Errorf("the first child finds limit %d", got)
	}
	admits("a/1")
	if got := q.Reached("a", "lead"); got != queue.OfCluster {
		t.Errorf("the second child finds limit %d, want that of the cluster", got)
	}
	q.Free(key("a/1"))
	admits("a/2", "a/of the second") // as deep as they are nested
	q.Free(key("a/lead"))
	admits() // its children have the place now
	q.Free(key("a/2"))
	admits()
	q.Free(key("a/of the second"))
	admits("a/other")
	if q.Running() != 1 || q.Waiting() != 0 {
		t.Errorf("%d run and %d wait, want 1 and 0", q.Running(), q.Waiting())
	}
}

func TestALimitOfChildrenHoldsForTheOneThatSharesItsParentsPlace(t *testing.T) {
	q := queue.New(queue.Limits{Total: 2, PerNamespace: 2})
	q.SetLimit(key("a/lead"), 1)
	q.Hold(key("a/lead"), "")
	q.Join(task("a/lead>1", 0, 1))
	q.Join(task("a/lead>2", 0, 2))
	q.Join(task("a/other", 0, 3))
	if got := names(q.Admit()); !slices.Equal(got, []string{"a/1", "a/other"}) {
		t.Errorf("%v may run, want one child and the other task", got)
	}
}

func TestWhosePlaceIsWanted(t *testing.T) {
	q := queue.New(queue.Limits{Total: 2, PerNamespace: 1})
	q.Hold(key("a/1"), "")
	q.Hold(key("b/1"), "")
	for _, name := range []string{"a/1", "b/1"} {
		if q.Wanted(key(name)) {
			t.Errorf("nobody waits, and the place of %s is wanted", name)
		}
	}
	q.Join(task("b/2", 0, 1))
	if q.Wanted(key("a/1")) || !q.Wanted(key("b/1")) || q.Wanted(key("b/2")) {
		t.Error("a task that waits for its namespace's limit wants another place than that of its namespace")
	}
	q.Join(task("c/1", 0, 1))
	if !q.Wanted(key("a/1")) {
		t.Error("a task of another namespace does not want the place")
	}
	if len(q.Admit()) != 0 || q.Running() != 2 || q.Waiting() != 2 {
		t.Error("to ask has changed something")
	}
}

func TestNoNamespaceGetsAllPlacesOfTheCluster(t *testing.T) {
	for limits, want := range map[queue.Limits]int{
		{}:                              0,
		{Total: 1}:                      0, // it cannot be shared
		{Total: 2}:                      0,
		{Total: 3}:                      2,
		{Total: 100}:                    67,
		{Total: 100, PerNamespace: 100}: 100,
		{PerNamespace: 5}:               5,
	} {
		if got := limits.Shared(); got.PerNamespace != want || got.Total != limits.Total {
			t.Errorf("of %+v a namespace gets %d, want %d", limits, got.PerNamespace, want)
		}
	}
}

func TestATaskThatGaveItsPlaceUpWaitsBehindOthers(t *testing.T) {
	made := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "1", CreationTimestamp: metav1.NewTime(time.Unix(1, 0))}}
	made.Spec.Priority, made.Spec.ParentRef = 7, &v1alpha1.NameReference{Name: "lead"}
	if got, want := queue.Of(made), task("a/lead>1", 7, 1); got != want {
		t.Errorf("a new task is %+v, want %+v", got, want)
	}
	gave := metav1.NewTime(time.Unix(9, 0))
	made.Status.Attempts = []v1alpha1.Attempt{{Number: 1, PlaceGivenUpTime: &gave}}
	if got := queue.Of(made).Since; !got.Equal(gave.Time) {
		t.Errorf("it waits since %s", got)
	}
	made.Status.Attempts = append(made.Status.Attempts, v1alpha1.Attempt{Number: 2})
	if got := queue.Of(made).Since; !got.Equal(time.Unix(1, 0)) {
		t.Errorf("after another attempt it waits since %s", got)
	}
}

func TestAFreePlaceGoesToTheNextOnly(t *testing.T) {
	q := queue.New(queue.Limits{Total: 2, PerNamespace: 2})
	for i := range 50 {
		q.Join(task(fmt.Sprintf("a/%02d", i), 0, i))
	}
	order := names(q.Admit())
	for len(order) < 50 {
		q.Free(key(order[len(order)-2]))
		next := names(q.Admit())
		if len(next) != 1 {
			t.Fatalf("after %d tasks %v may run, want exactly one", len(order), next)
		}
		order = append(order, next[0])
	}
	if !slices.IsSorted(order) {
		t.Errorf("the order was %v", order)
	}
	if q.Running() != 2 || q.Waiting() != 0 {
		t.Errorf("%d run and %d wait, want 2 and 0", q.Running(), q.Waiting())
	}
}

func TestOneThatLeavesIsPassedOver(t *testing.T) {
	q := queue.New(queue.Limits{Total: 1})
	q.Hold(key("a/runs"), "")
	q.Join(task("a/1", 0, 1))
	q.Join(task("a/2", 0, 2))
	q.Leave(key("a/1"))
	q.Leave(key("b/unknown"))
	q.Free(key("a/runs"))
	q.Free(key("a/runs"))
	if got := names(q.Admit()); !slices.Equal(got, []string{"a/2"}) {
		t.Errorf("%v may run, want a/2", got)
	}
}

func TestWhichLimitIsReached(t *testing.T) {
	q := queue.New(queue.Limits{Total: 3, PerNamespace: 2})
	q.SetLimit(key("a/lead"), 1)
	q.Hold(key("a/1"), "lead")
	for _, want := range []struct {
		namespace, parent string
		limit             queue.Limit
	}{{"a", "lead", queue.OfParent}, {"a", "", queue.NoLimit}, {"a", "other", queue.NoLimit}, {"b", "lead", queue.NoLimit}} {
		if got := q.Reached(want.namespace, want.parent); got != want.limit {
			t.Errorf("for a child of %q in %s it is limit %d, want %d", want.parent, want.namespace, got, want.limit)
		}
	}
	q.Hold(key("a/2"), "")
	if got := q.Reached("a", ""); got != queue.OfNamespace {
		t.Errorf("namespace a is not at its own limit, but at %d", got)
	}
	q.Hold(key("c/1"), "")
	if got := q.Reached("b", ""); got != queue.OfCluster {
		t.Errorf("the cluster is not at its limit for namespace b, but at %d", got)
	}
}

func TestALimitOfChildrenMayBeChangedWhileTheyRun(t *testing.T) {
	q := queue.New(queue.Limits{})
	q.SetLimit(key("a/lead"), 2)
	for i := range 4 {
		q.Join(task(fmt.Sprintf("a/lead>%d", i), 0, i))
	}
	admit := func(limit int, want ...string) {
		t.Helper()
		q.SetLimit(key("a/lead"), limit)
		if got := names(q.Admit()); !slices.Equal(got, want) || q.LimitOf(key("a/lead")) != limit {
			t.Errorf("with the limit %d %v may run, want %v", limit, got, want)
		}
	}
	admit(2, "a/0", "a/1")
	admit(1)
	q.Free(key("a/0"))
	admit(1)
	q.Free(key("a/1"))
	admit(1, "a/2")
	admit(0, "a/3")
}

func BenchmarkFreePlaceAmongThousands(b *testing.B) {
	q := queue.New(queue.Limits{Total: 4, PerNamespace: 4})
	for i := range 5000 {
		q.Join(task(fmt.Sprintf("n%d/%d", i%50, i), int32(i%7), i))
	}
	running := q.Admit()
	for i := 0; b.Loop(); i++ {
		done := running[0]
		q.Free(done)
		running = append(running[1:], q.Admit()...)
		q.Join(queue.Task{NamespacedName: done, Since: time.Unix(int64(i+5000), 0)})
	}
}
