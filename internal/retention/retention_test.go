package retention_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/retention"
	"github.com/clew-dev/clew/internal/testing/builders"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// made returns the objects of the checkpoints 1 to n of a task, the newest just created and each
// a minute older than the next.
func made(task *v1alpha1.Task, n int64, trigger v1alpha1.CheckpointTrigger) (list []v1alpha1.Checkpoint) {
	for number := int64(1); number <= n; number++ {
		c := resources.NewCheckpoint(task, resources.CheckpointName(task.Name, number), history.Checkpoint{Number: number})
		c.CreationTimestamp = metav1.NewTime(now.Add(-time.Duration(n-number) * time.Minute))
		c.Status = v1alpha1.CheckpointStatus{TaskUID: string(task.UID), Number: number, Trigger: trigger}
		list = append(list, *c)
	}
	return list
}

func taskWith(last, seconds int32) *v1alpha1.Task {
	task := builders.Task("work")
	task.UID = "uid-of-work"
	task.Spec.CheckpointPolicy.Retention = v1alpha1.CheckpointRetention{KeepLast: ptr.To(last), KeepForSeconds: ptr.To(seconds)}
	return task
}

// numbers returns the numbers of Checkpoints, as in "1 2 3".
func numbers(list []*v1alpha1.Checkpoint) string {
	var all []string
	for _, c := range list {
		all = append(all, fmt.Sprint(c.Status.Number))
	}
	return strings.Join(all, " ")
}

func TestDecide(t *testing.T) {
	keep := func(c *v1alpha1.Checkpoint) { c.Spec.Retention = v1alpha1.CheckpointKept }
	byPolicy := func(c *v1alpha1.Checkpoint) { c.Spec.Retention = v1alpha1.CheckpointByPolicy }
	branch := func(c *v1alpha1.Checkpoint) { c.Spec.Branches = []v1alpha1.CheckpointBranch{{Name: "b"}} }
	applied := func(c *v1alpha1.Checkpoint) { c.Labels, c.Spec.RequestedBy = nil, "ann" }
	trigger := func(trigger v1alpha1.CheckpointTrigger) func(*v1alpha1.Checkpoint) {
		return func(c *v1alpha1.Checkpoint) { c.Status.Trigger = trigger }
	}
	for name, test := range map[string]struct {
		last, seconds int32
		ceiling       int
		latest        int64
		change        map[int][]func(*v1alpha1.Checkpoint)
		surplus       string
		kept          int
		next          time.Duration
	}{
		"as many as the policy says":           {last: 4, surplus: "1 2 3 4 5 6", kept: 4},
		"more than there are":                  {last: 10, kept: 10},
		"the ceiling is lower":                 {last: 10, ceiling: 7, surplus: "1 2 3", kept: 7},
		"the ceiling is higher":                {last: 8, ceiling: 9, surplus: "1 2", kept: 8},
		"the young ones as well":               {last: 2, seconds: 330, surplus: "1 2 3 4", kept: 6, next: 30 * time.Second},
		"the young ones up to the ceiling":     {last: 2, seconds: 3600, ceiling: 5, surplus: "1 2 3 4 5", kept: 5, next: 56 * time.Minute},
		"the latest, whatever the policy":      {last: 0, seconds: 1, latest: 10, surplus: "1 2 3 4 5 6 7 8 9", kept: 1},
		"the latest, even if others are newer": {last: 2, latest: 3, surplus: "1 2 4 5 6 7 8", kept: 3},
		"one that is to be kept":               {last: 4, change: map[int][]func(*v1alpha1.Checkpoint){2: {keep}}, surplus: "1 3 4 5 6", kept: 4},
		"one that was applied":                 {last: 4, change: map[int][]func(*v1alpha1.Checkpoint){2: {applied}}, surplus: "1 3 4 5 6", kept: 4},
		"one that was applied by policy":       {last: 4, change: map[int][]func(*v1alpha1.Checkpoint){2: {applied, byPolicy}}, surplus: "1 2 3 4 5 6", kept: 4},
		"one that a rewind made":               {last: 4, change: map[int][]func(*v1alpha1.Checkpoint){2: {trigger(v1alpha1.TriggerPreRewind)}, 3: {trigger(v1alpha1.TriggerRewound)}}, surplus: "1 4 5 6", kept: 4},
		"one of a phase that the agent set":    {last: 4, change: map[int][]func(*v1alpha1.Checkpoint){2: {trigger(v1alpha1.TriggerPhase)}}, surplus: "1 2 3 4 5 6", kept: 4},
		"one that a rewind made, by policy":    {last: 4, change: map[int][]func(*v1alpha1.Checkpoint){2: {trigger(v1alpha1.TriggerPreRewind), byPolicy}}, surplus: "1 2 3 4 5 6", kept: 4},
		"one with a branch":                    {last: 4, change: map[int][]func(*v1alpha1.Checkpoint){2: {branch}, 3: {branch, byPolicy}}, surplus: "1 3 4 5 6", kept: 4},
		"a trigger of a later version":         {last: 4, change: map[int][]func(*v1alpha1.Checkpoint){2: {trigger("Someday")}}, surplus: "1 3 4 5 6", kept: 4},
		"an imitation": {last: 4, change: map[int][]func(*v1alpha1.Checkpoint){
			1: {func(c *v1alpha1.Checkpoint) { c.Name = "mine" }}, 2: {func(c *v1alpha1.Checkpoint) { c.Status.RequestedBy = "ann" }},
			3: {func(c *v1alpha1.Checkpoint) { c.Status.TaskUID = "another" }}, 4: {func(c *v1alpha1.Checkpoint) { c.Spec.TaskRef.Name = "another" }},
		}, surplus: "5 6", kept: 4},
		"one that is not taken yet": {last: 4, change: map[int][]func(*v1alpha1.Checkpoint){1: {applied, byPolicy, func(c *v1alpha1.Checkpoint) { c.Status = v1alpha1.CheckpointStatus{} }}}, surplus: "2 3 4 5 6", kept: 4},
		"one that is being deleted": {last: 4, change: map[int][]func(*v1alpha1.Checkpoint){1: {func(c *v1alpha1.Checkpoint) { c.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }}}, surplus: "2 3 4 5 6", kept: 4},
	} {
		t.Run(name, func(t *testing.T) {
			task := taskWith(test.last, test.seconds)
			if test.latest > 0 {
				task.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Number: test.latest}
			}
			list := made(task, 10, v1alpha1.TriggerToolCalls)
			for number, changes := range test.change {
				for _, change := range changes {
					change(&list[number-1])
				}
			}
			answer := retention.Decide(list, task, retention.Names{}, retention.RuleOf(task, test.ceiling), now)
			next := time.Duration(0)
			if !answer.Next.IsZero() {
				next = answer.Next.Sub(now)
			}
			got := []any{numbers(answer.Surplus), answer.Kept, next}
			if diff := cmp.Diff([]any{test.surplus, test.kept, test.next}, got); diff != "" {
				t.Errorf("surplus, kept, next (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnOlderTaskHasOnlyTheCeiling(t *testing.T) {
	task := taskWith(0, 0)
	task.Spec.CheckpointPolicy.Retention = v1alpha1.CheckpointRetention{}
	list := made(task, 10, v1alpha1.TriggerInterval)
	for ceiling, want := range map[int]string{0: "", 8: "1 2"} {
		if got := numbers(retention.Decide(list, task, retention.Names{}, retention.RuleOf(task, ceiling), now).Surplus); got != want {
			t.Errorf("with a ceiling of %d, %q is surplus, not %q", ceiling, got, want)
		}
	}
}

func TestWhereTasksAndForksStartedIsNamed(t *testing.T) {
	task, fork := taskWith(1, 0), &v1alpha1.Fork{}
	task.Status.Source = &v1alpha1.SourceStatus{TaskUID: "other", Checkpoint: 3}
	task.Status.Rewind = &v1alpha1.OperationStatus{FromCheckpoint: 4, ToCheckpoint: 5}
	fork.Status.Source = &v1alpha1.SourceStatus{TaskUID: "other", Checkpoint: 6}
	named := retention.NamesIn([]v1alpha1.Task{*task}, []v1alpha1.Fork{*fork}, nil)
	for _, want := range []v1alpha1.CheckpointStatus{
		{TaskUID: "other", Number: 3}, {TaskUID: "other", Number: 6}, {TaskUID: string(task.UID), Number: 4}, {TaskUID: string(task.UID), Number: 5},
	} {
		if !named.Has(&v1alpha1.Checkpoint{Status: want}) {
			t.Errorf("checkpoint %d of task %s is not named", want.Number, want.TaskUID)
		}
	}
	if named.Has(&v1alpha1.Checkpoint{Status: v1alpha1.CheckpointStatus{TaskUID: "other", Number: 4}}) {
		t.Error("a checkpoint of another task is named")
	}
}

func TestOfAFinishedTaskThatWasReleasedOnlyTheLatestAndWhatIsKeptStays(t *testing.T) {
	task := taskWith(50, 3600)
	task.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Number: 5}
	list := made(task, 5, v1alpha1.TriggerToolCalls)
	list[1].Spec.Retention = v1alpha1.CheckpointKept
	list[2].Spec.Branches = []v1alpha1.CheckpointBranch{{Name: "b"}}
	surplus := func() string {
		return numbers(retention.Decide(list, task, retention.Names{}, retention.RuleOf(task, 0), now).Surplus)
	}
	for name, test := range map[string]struct {
		released *v1alpha1.ReleaseStatus
		claim    string
		want     string
	}{
		"not released":                {nil, "claim", ""},
		"released while suspended":    {&v1alpha1.ReleaseStatus{Cause: v1alpha1.ReleasedSuspended}, "", ""},
		"released":                    {&v1alpha1.ReleaseStatus{Cause: v1alpha1.ReleasedFinished}, "", "1 4"},
		"released, and at work again": {&v1alpha1.ReleaseStatus{Cause: v1alpha1.ReleasedFinished}, "claim", ""},
	} {
		task.Status.Released, task.Status.ClaimUID = test.released, test.claim
		if got := surplus(); got != test.want {
			t.Errorf("%s: %q are surplus, want %q", name, got, test.want)
		}
	}
}
