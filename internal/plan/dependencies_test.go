package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/reason"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// other returns a task with a condition Succeeded, and the attempt that led to it if it has ended.
func other(name string, status metav1.ConditionStatus, reason string) *v1alpha1.Task {
	t := builders.Task(name, builders.WithUID("uid-of-"+name))
	t.Status.Conditions = []metav1.Condition{{Type: v1alpha1.TaskSucceeded, Status: status, Reason: reason}}
	switch status {
	case metav1.ConditionTrue:
		t.Status.Attempts = []v1alpha1.Attempt{{Number: 1, Outcome: v1alpha1.AttemptCompleted}}
	case metav1.ConditionFalse:
		t.Status.Attempts = []v1alpha1.Attempt{{Number: 1, Outcome: v1alpha1.AttemptAgentFailed, Reason: reason}}
	}
	return t
}

// finds sets what is found of the task that the scene's task depends on.
func (s *scene) finds(name string, found FoundTask) *scene {
	if s.o.Dependencies == nil {
		s.o.Dependencies = map[string]FoundTask{}
	}
	s.o.Dependencies[name] = found
	return s
}

func (s *scene) exists(name string, status metav1.ConditionStatus, reason string) *scene {
	return s.finds(name, FoundTask{Task: other(name, status, reason)})
}

// gone returns a task that is gone, as its history has left it.
func gone(state string) FoundTask {
	return FoundTask{Known: true, Gone: &history.GoneTask{UID: "uid-of-gone", State: state}}
}

func TestHowADependencyStands(t *testing.T) {
	cases := map[string]struct {
		found               FoundTask
		completed, finished v1alpha1.DependencyState
	}{
		"it completed":                   {FoundTask{Task: other("a", metav1.ConditionTrue, v1alpha1.ReasonCompleted)}, v1alpha1.DependencyMet, v1alpha1.DependencyMet},
		"it failed":                      {FoundTask{Task: other("a", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed)}, v1alpha1.DependencyFailed, v1alpha1.DependencyMet},
		"it was blocked":                 {FoundTask{Task: after(v1alpha1.Attempt{Outcome: v1alpha1.AttemptBlocked, Reason: v1alpha1.ReasonRefNotFound})}, v1alpha1.DependencyFailed, v1alpha1.DependencyMet},
		"it has reached a limit":         {FoundTask{Task: after(v1alpha1.Attempt{Outcome: v1alpha1.AttemptLimitReached, Reason: v1alpha1.ReasonDeadlineExceeded})}, v1alpha1.DependencyFailed, v1alpha1.DependencyMet},
		"it is retried":                  {FoundTask{Task: after(v1alpha1.Attempt{Outcome: v1alpha1.AttemptAgentFailed, Reason: v1alpha1.ReasonRetrying})}, v1alpha1.DependencyUnfinished, v1alpha1.DependencyUnfinished},
		"it is resumed":                  {FoundTask{Task: resumed(other("a", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed))}, v1alpha1.DependencyUnfinished, v1alpha1.DependencyUnfinished},
		"it drifted":                     {FoundTask{Task: after(v1alpha1.Attempt{Outcome: v1alpha1.AttemptBlocked, Reason: v1alpha1.ReasonDriftDetected})}, v1alpha1.DependencyUnfinished, v1alpha1.DependencyUnfinished},
		"it waits for its source":        {FoundTask{Task: waiting("a", v1alpha1.ReasonCheckpointNotFound)}, v1alpha1.DependencyUnfinished, v1alpha1.DependencyUnfinished},
		"it runs":                        {FoundTask{Task: other("a", metav1.ConditionUnknown, v1alpha1.ReasonRunning)}, v1alpha1.DependencyUnfinished, v1alpha1.DependencyUnfinished},
		"it is suspended":                {FoundTask{Task: other("a", metav1.ConditionUnknown, v1alpha1.ReasonSuspended)}, v1alpha1.DependencyUnfinished, v1alpha1.DependencyUnfinished},
		"it was rewound":                 {FoundTask{Task: after(v1alpha1.Attempt{Outcome: v1alpha1.AttemptCompleted}, v1alpha1.Attempt{Outcome: v1alpha1.AttemptRewound})}, v1alpha1.DependencyUnfinished, v1alpha1.DependencyUnfinished},
		"a rewind of it was refused":     {FoundTask{Task: after(v1alpha1.Attempt{Outcome: v1alpha1.AttemptCompleted}, v1alpha1.Attempt{Outcome: v1alpha1.AttemptStopped, Trigger: v1alpha1.AttemptRewind})}, v1alpha1.DependencyMet, v1alpha1.DependencyMet},
		"it is new":                      {FoundTask{Task: builders.Task("a")}, v1alpha1.DependencyUnfinished, v1alpha1.DependencyUnfinished},
		"there is none":                  {FoundTask{Known: true}, v1alpha1.DependencyMissing, v1alpha1.DependencyMissing},
		"nobody knows":                   {FoundTask{}, v1alpha1.DependencyMissing, v1alpha1.DependencyMissing},
		"it is gone and had completed":   {gone("Completed"), v1alpha1.DependencyMet, v1alpha1.DependencyMet},
		"it is gone and had failed":      {gone("Failed"), v1alpha1.DependencyMissing, v1alpha1.DependencyMet},
		"it is gone and was resumed":     {gone("Running"), v1alpha1.DependencyMissing, v1alpha1.DependencyMissing},
		"it is gone and was suspended":   {gone("Suspended"), v1alpha1.DependencyMissing, v1alpha1.DependencyMissing},
		"it is gone without transitions": {gone(""), v1alpha1.DependencyMissing, v1alpha1.DependencyMissing},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			for condition, want := range map[v1alpha1.DependencyCondition]v1alpha1.DependencyState{
				v1alpha1.DependOnCompleted: c.completed, v1alpha1.DependOnFinished: c.finished,
			} {
				dep := v1alpha1.Dependency{TaskRef: v1alpha1.NameReference{Name: "a"}, Condition: condition}
				if got := dependencyState(dep, c.found); got != want {
					t.Errorf("%s: %s, want %s", condition, got, want)
				}
			}
		})
	}
}

// after returns a task with these attempts.
func after(attempts ...v1alpha1.Attempt) *v1alpha1.Task {
	t := builders.Task("a")
	for i, a := range attempts {
		a.Number = int64(i + 1)
		t.Status.Attempts = append(t.Status.Attempts, a)
	}
	return t
}

// resumed returns the task with a resume that has yet to be carried out.
func resumed(t *v1alpha1.Task) *v1alpha1.Task {
	t.Status.Resume = &v1alpha1.OperationStatus{ID: "on", State: v1alpha1.OperationInProgress}
	return t
}

// waiting returns a task that has not started, as an older version of Clew has written that: as if it
// had failed.
func waiting(name, reason string) *v1alpha1.Task {
	t := other(name, metav1.ConditionFalse, reason)
	t.Status.Attempts = nil
	return t
}

func TestATaskThatWaitsHasNotFailedWhateverTheReasonIs(t *testing.T) {
	for _, r := range reason.At("Task", v1alpha1.TaskSucceeded) {
		s := newScene(t)
		d := newDecision(s.o, s.now)
		d.waitFor(&Blocker{r.Name, "it waits"})
		if status, got, _ := d.succeededCondition(); status != metav1.ConditionUnknown || got != r.Name {
			t.Errorf("a task that waits with %s is %s, %s", r.Name, status, got)
		}
	}
}

func TestATaskIsNotMetByOneThatWaitsForItsSource(t *testing.T) {
	source := newScene(t, builders.StartFrom("c", ""))
	source.o.Source = Source{Task: builders.Task("c")} // which has no checkpoint yet
	source.step().wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonCheckpointNotFound)
	s := newScene(t, builders.DependsOn("tidy-up-first"), builders.Finished).finds("tidy-up-first", FoundTask{Task: source.o.Task})
	s.step().wantState(v1alpha1.ReasonWaitingForTasks)
}

func TestATaskWaitsForThoseItDependsOn(t *testing.T) {
	s := newScene(t, builders.DependsOn("a", "b")).finds("a", FoundTask{Known: true}).exists("b", metav1.ConditionUnknown, v1alpha1.ReasonRunning)
	s.step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonWaitingForTasks, "a (does not exist yet)", "b (has not ended)")
	s.wantEntries(v1alpha1.EventTaskWaiting)
	if s.claims != 0 || len(s.o.Pods) != 0 || s.plans[0].RequeueAfter != 0 {
		t.Errorf("a task that waits made %d claims and %d pods, and looks again after %s", s.claims, len(s.o.Pods), s.plans[0].RequeueAfter)
	}

	s.exists("a", metav1.ConditionTrue, v1alpha1.ReasonCompleted).step()
	s.wantState(v1alpha1.ReasonWaitingForTasks)
	if met := s.status().Dependencies[0]; met.State != v1alpha1.DependencyMet || met.TaskUID != "uid-of-a" || met.MetTime == nil {
		t.Errorf("the dependency is %+v, want it met", met)
	}
	writes := s.writes
	s.exists("a", metav1.ConditionUnknown, v1alpha1.ReasonRunning).step() // it got a follow-up
	s.finds("a", FoundTask{Known: true}).step()                           // it is gone
	if s.writes != writes {
		t.Errorf("what became of a dependency that is met was written %d times", s.writes-writes)
	}

	s.exists("b", metav1.ConditionTrue, v1alpha1.ReasonCompleted).step()
	s.wantStarted(1)
	s.wantEntries(v1alpha1.EventTaskWaiting, v1alpha1.EventTaskStarted)
	s.exists("b", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed).step()
	s.wantState(v1alpha1.ReasonPreparing)
}

func TestADependencyThatFailedIsTold(t *testing.T) {
	s := newScene(t, builders.DependsOn("a")).exists("a", metav1.ConditionUnknown, v1alpha1.ReasonRunning)
	s.step()
	failed := other("a", metav1.ConditionFalse, v1alpha1.ReasonBackoffLimit)
	failed.Status.Attempts[0].Message = "exited with code 3"
	s.finds("a", FoundTask{Task: failed}).step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonDependencyFailed,
		": a (BackoffLimitExceeded: exited with code 3): resume it, or take it out of dependsOn", "goes on by itself")
	s.wantEntries(v1alpha1.EventTaskWaiting, v1alpha1.EventTaskHindered)
	s.exists("a", metav1.ConditionUnknown, v1alpha1.ReasonRunning).step() // it is resumed
	s.wantState(v1alpha1.ReasonWaitingForTasks)
	s.wantEntries(v1alpha1.EventTaskWaiting, v1alpha1.EventTaskHindered)
	s.exists("a", metav1.ConditionTrue, v1alpha1.ReasonCompleted).step()
	s.wantStarted(1)
}

func TestATaskGoesOnWithoutADependencyThatWasTakenOut(t *testing.T) {
	s := newScene(t, builders.DependsOn("a")).exists("a", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed)
	s.step()
	s.wantState(v1alpha1.ReasonDependencyFailed)
	s.change(func(t *v1alpha1.Task) { t.Spec.DependsOn = nil }).step()
	s.wantStarted(1)
	if len(s.status().Dependencies) != 0 {
		t.Errorf("the status has %+v", s.status().Dependencies)
	}
}

func TestAGoneDependencyIsNotTakenForOneThatIsAboutToBeCreated(t *testing.T) {
	s := newScene(t, builders.DependsOn("a")).finds("a", gone("Completed"))
	s.o.Task.CreationTimestamp = metav1.NewTime(s.now)
	s.step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonWaitingForTasks, "a (does not exist yet)")
	if after := s.plans[len(s.plans)-1].RequeueAfter; after <= 0 || after > s.o.Limits.ProblemGrace {
		t.Errorf("it looks again after %s", after)
	}
	s.after(s.o.Limits.ProblemGrace).step()
	s.wantStarted(1)
	if uid := s.status().Dependencies[0].TaskUID; uid != "uid-of-gone" {
		t.Errorf("the dependency is the task %s", uid)
	}
}

func TestTheHistoryStoreIsAskedAgainForAGoneDependency(t *testing.T) {
	s := newScene(t, builders.DependsOn("a")).finds("a", FoundTask{})
	s.step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonWaitingForTasks, "the history store cannot be reached")
	if s.plans[0].RequeueAfter == 0 {
		t.Error("it is not asked again")
	}
}

func TestASuspendedTaskNotesWhatIsMet(t *testing.T) {
	s := newScene(t, builders.DependsOn("a"), builders.Suspended).exists("a", metav1.ConditionTrue, v1alpha1.ReasonCompleted)
	s.step()
	s.wantState(v1alpha1.ReasonSuspended)
	s.exists("a", metav1.ConditionUnknown, v1alpha1.ReasonRunning).change(builders.Running).step()
	s.wantStarted(1)
}

func TestASuspendedTaskKnowsItsSourceFromWhenTheWaitIsOver(t *testing.T) {
	a := other("a", metav1.ConditionTrue, v1alpha1.ReasonCompleted)
	s := newScene(t, builders.DependsOn("a"), builders.StartFrom("a", ""), builders.Suspended).finds("a", FoundTask{Task: a})
	s.o.Source = Source{Task: a, Checkpoint: checkpointOf(a, 5)}
	s.step().wantState(v1alpha1.ReasonSuspended)
	s.o.Source = Source{Task: a, Checkpoint: checkpointOf(a, 9)} // it got a follow-up
	s.change(builders.Running).step()
	s.wantStarted(1)
	if s.status().Source.Checkpoint != 5 {
		t.Errorf("it starts from checkpoint %d, want 5", s.status().Source.Checkpoint)
	}
}

// checkpointOf returns a durable checkpoint of a task.
func checkpointOf(t *v1alpha1.Task, number int64) *v1alpha1.Checkpoint {
	return &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Name: resources.CheckpointName(t.Name, number)}, Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: t.Name}},
		Status: v1alpha1.CheckpointStatus{TaskUID: string(t.UID), Number: number, Conditions: []metav1.Condition{{Type: v1alpha1.CheckpointDurable, Status: metav1.ConditionTrue}}},
	}
}

func TestATaskThatHasBegunWaitsForNoOthers(t *testing.T) {
	t.Run("its status was restored from an older copy", func(t *testing.T) {
		s := newScene(t, builders.DependsOn("a")).finds("a", FoundTask{Known: true})
		s.o.History.State.Attempt = 3
		s.step()
		s.wantStarted(4)
	})
	t.Run("and what it starts from is looked for although the other one runs again", func(t *testing.T) {
		s := newScene(t, builders.DependsOn("a"), builders.StartFrom("a", "")).exists("a", metav1.ConditionUnknown, v1alpha1.ReasonRunning)
		if !AwaitsTasks(s.o) {
			t.Error("a new task does not wait")
		}
		s.o.History.State.Attempt = 1
		if AwaitsTasks(s.o) {
			t.Error("a task that has begun waits")
		}
	})
	t.Run("it has an attempt", func(t *testing.T) {
		s := running(t)
		s.change(builders.DependsOn("a")).finds("a", FoundTask{Known: true}).step()
		s.wantState(v1alpha1.ReasonRunning)
		if len(Awaited(s.o.Task)) != 0 {
			t.Error("it still waits")
		}
	})
}

func TestADependencyIsWaitedForBeforeItIsTheSource(t *testing.T) {
	s := newScene(t, builders.DependsOn("a"), builders.StartFrom("a", "")).exists("a", metav1.ConditionUnknown, v1alpha1.ReasonRunning)
	s.step()
	s.wantState(v1alpha1.ReasonWaitingForTasks)
	if !AwaitsTasks(s.o) || s.status().Source != nil {
		t.Errorf("the source %+v was resolved while the task waits", s.status().Source)
	}
	a := other("a", metav1.ConditionTrue, v1alpha1.ReasonCompleted)
	a.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Name: "a-7", Number: 7}
	s.finds("a", FoundTask{Task: a})
	if AwaitsTasks(s.o) {
		t.Error("it waits for a task that has completed")
	}
	s.o.Source = Source{Task: a, Checkpoint: checkpointOf(a, 7)}
	s.step()
	s.wantStarted(1)
	if s.status().Source.Checkpoint != 7 {
		t.Errorf("it starts from checkpoint %d", s.status().Source.Checkpoint)
	}
}

func TestAWrongTemplateIsToldBeforeTheWait(t *testing.T) {
	s := newScene(t, builders.DependsOn("a")).finds("a", FoundTask{Known: true})
	s.o.TemplateProblem = "it has no agent"
	s.step()
	s.wantState(v1alpha1.ReasonInvalidTemplate)
}

func TestCircles(t *testing.T) {
	long := map[string][]string{}
	for i := range 30 {
		long[fmt.Sprintf("t%d", i)] = []string{fmt.Sprintf("t%d", (i+1)%30)}
	}
	cases := map[string]struct {
		awaiting map[string][]string
		of, want string
	}{
		"of two":                   {map[string][]string{"a": {"b"}, "b": {"a"}}, "a", "a → b → a"},
		"of three":                 {map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"a"}}, "a", "a → b → c → a"},
		"as another one sees it":   {map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"a"}}, "b", "b → c → a → b"},
		"the shortest":             {map[string][]string{"a": {"b", "c"}, "b": {"c"}, "c": {"a"}}, "a", "a → c → a"},
		"among many":               {map[string][]string{"a": {"x", "b"}, "x": {"y", "z"}, "b": {"y", "a"}}, "a", "a → b → a"},
		"itself":                   {map[string][]string{"a": {"a"}}, "a", "a → a"},
		"none":                     {map[string][]string{"a": {"b", "c"}, "b": {"c"}}, "a", ""},
		"one of others":            {map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"b"}}, "a", ""},
		"of nothing":               {nil, "a", ""},
		"of so many that some are": {long, "t0", "t0 → t1 → t2 → t3 → t4 → t5 → t6 → t7 → … → t0"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := drawn(Circle(c.of, c.awaiting)); got != c.want {
				t.Errorf("the circle is %q, want %q", got, c.want)
			}
		})
	}
}

func TestACircleIsDrawn(t *testing.T) {
	s := newScene(t, builders.DependsOn("b")).exists("b", metav1.ConditionUnknown, v1alpha1.ReasonWaitingForTasks)
	s.step()
	s.o.Awaiting = map[string][]string{"tidy-up": {"b"}, "b": {"c"}, "c": {"tidy-up"}}
	s.step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonDependencyCircle, "tidy-up → b → c → tidy-up", "take one of them out")
	s.wantEntries(v1alpha1.EventTaskWaiting, v1alpha1.EventTaskHindered)
	s.o.Awaiting = map[string][]string{"tidy-up": {"b"}}
	s.step()
	s.wantState(v1alpha1.ReasonWaitingForTasks)
}

func TestAFailedTaskSaysWhoWaitsForIt(t *testing.T) {
	cases := map[string]struct {
		waiters []string
		want    string
	}{
		"one":   {[]string{"b"}, "; task b waits for it"},
		"two":   {[]string{"b", "c"}, "; tasks b and c wait for it"},
		"five":  {[]string{"b", "c", "d", "e", "f"}, "; tasks b, c, d, e and f wait for it"},
		"eight": {[]string{"b", "c", "d", "e", "f", "g", "h", "i"}, "; tasks b, c, d, e, f and 3 more wait for it"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := running(t, builders.BackoffLimit(0))
			s.o.Waiters = c.waiters
			s.step()
			if message := s.wantCondition(v1alpha1.TaskSucceeded).Message; strings.Contains(message, "wait") {
				t.Errorf("a task that runs says %q", message)
			}
			s.agentExits(3)
			s.podFinishes()
			message := s.wantCondition(v1alpha1.TaskSucceeded).Message
			if !strings.HasSuffix(message, c.want) {
				t.Errorf("the message %q does not end with %q", message, c.want)
			}
			s.o.Waiters = nil
			s.after(s.o.Limits.RefreshEvery).step()
			if message := s.wantCondition(v1alpha1.TaskSucceeded).Message; strings.Contains(message, "wait") {
				t.Errorf("none waits any more, and the message is %q", message)
			}
		})
	}
}

// TestAFailedTaskIsNotWrittenForEachThatBeginsToWaitForIt: a pipeline applies a thousand at once.
func TestAFailedTaskIsNotWrittenForEachThatBeginsToWaitForIt(t *testing.T) {
	for name, said := range map[string]string{"with few words": "it broke", "with many": strings.Repeat("x", 2000)} {
		t.Run(name, func(t *testing.T) {
			s := running(t, builders.BackoffLimit(0))
			s.o.History.State.AgentEnd = &history.AgentEnd{Attempt: 1, ExitCode: 3, Message: said}
			s.agentExits(3)
			s.podFinishes()
			before := s.writes
			for n := range 100 {
				s.o.Waiters = append(s.o.Waiters, fmt.Sprintf("w%02d", n))
				s.after(10 * time.Millisecond).step()
			}
			last := s.plans[len(s.plans)-1]
			if s.writes != before || last.RequeueAfter <= 0 || last.RequeueAfter > s.o.Limits.RefreshEvery {
				t.Errorf("it is written %d times within a second, and looks again after %s", s.writes-before, last.RequeueAfter)
			}
			s.after(last.RequeueAfter).step()
			if message := s.wantCondition(v1alpha1.TaskSucceeded).Message; s.writes != before+1 || !strings.HasSuffix(message, "w04 and 95 more wait for it") {
				t.Errorf("after %d writes, the message is %q", s.writes-before, message)
			}
		})
	}
}

func TestALongFailureDoesNotPushOutWhoWaits(t *testing.T) {
	s := running(t, builders.BackoffLimit(0))
	s.o.Waiters = []string{"b"}
	s.o.History.State.AgentEnd = &history.AgentEnd{Attempt: 1, ExitCode: 3, Message: strings.Repeat("x", 2000)}
	s.agentExits(3)
	s.podFinishes()
	if message := s.wantCondition(v1alpha1.TaskSucceeded).Message; !strings.HasSuffix(message, "; task b waits for it") {
		t.Errorf("the message is %q", message)
	}
}

func TestManyDependenciesFitIntoAMessage(t *testing.T) {
	var names []string
	for i := range 32 {
		names = append(names, fmt.Sprintf("%s%02d", strings.Repeat("n", 44), i))
	}
	s := newScene(t, builders.DependsOn(names...))
	for _, name := range names {
		failed := other(name, metav1.ConditionFalse, v1alpha1.ReasonAgentFailed)
		failed.Status.Attempts[0].Message = strings.Repeat("m", 1000)
		s.finds(name, FoundTask{Task: failed})
	}
	s.o.Task.UID = types.UID("uid")
	s.step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonDependencyFailed, "and 29 more", "goes on by itself when they have completed")
	if !slices.ContainsFunc(s.status().Dependencies, func(d v1alpha1.DependencyStatus) bool { return d.Name == names[31] }) {
		t.Error("the last one is missing in the status")
	}
}

func TestAPauseIsNotLookedAtTwice(t *testing.T) {
	s := newScene(t, builders.DependsOn("a")).exists("a", metav1.ConditionUnknown, v1alpha1.ReasonRunning)
	s.step()
	writes := s.writes
	s.after(time.Hour).step()
	if s.writes != writes || s.plans[0].RequeueAfter != 0 {
		t.Errorf("a task that waits was written again, or looks again after %s", s.plans[0].RequeueAfter)
	}
}
