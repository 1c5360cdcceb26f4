package cli

import (
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func taskWith(status metav1.ConditionStatus, reason string) *v1alpha1.Task {
	return &v1alpha1.Task{
		ObjectMeta: metav1.ObjectMeta{Name: "fix-login", Namespace: "team", UID: "uid-1"},
		Status: v1alpha1.TaskStatus{Conditions: []metav1.Condition{
			{Type: v1alpha1.TaskSucceeded, Status: status, Reason: reason},
		}},
	}
}

func TestCheckResumable(t *testing.T) {
	for _, test := range []struct {
		name string
		task *v1alpha1.Task
		want string // part of the error; empty if there is none
	}{
		{"suspended", taskWith(metav1.ConditionUnknown, v1alpha1.ReasonSuspended), ""},
		{"rewound", taskWith(metav1.ConditionUnknown, v1alpha1.ReasonRewound), ""},
		{"drifted", taskWith(metav1.ConditionUnknown, v1alpha1.ReasonDriftDetected), ""},
		{"failed", taskWith(metav1.ConditionFalse, v1alpha1.ReasonAgentFailed), ""},
		{"running", taskWith(metav1.ConditionUnknown, v1alpha1.ReasonRunning), "is already active (Running)"},
		{"completed", taskWith(metav1.ConditionTrue, v1alpha1.ReasonCompleted), "give it one with --prompt, or continue from a checkpoint with --from-checkpoint"},
		{"new", &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Name: "fix-login"}}, "has not started yet"},
	} {
		t.Run(test.name, func(t *testing.T) { wantError(t, (&resume{}).checkResumable(test.task), test.want) })
	}
}

func wantError(t *testing.T, err error, part string) {
	t.Helper()
	switch {
	case part == "" && err != nil:
		t.Errorf("unexpected error: %v", err)
	case part != "" && err == nil:
		t.Errorf("no error; want one containing %q", part)
	case part != "" && !strings.Contains(err.Error(), part):
		t.Errorf("error %q lacks %q", err, part)
	}
}

func TestFindCheckpoint(t *testing.T) {
	foreign := takenCheckpoint(7, "foreign")
	foreign.Status.TaskUID = "uid-0"
	damaged := takenCheckpoint(4, "damaged")
	damaged.Status.Conditions = append(damaged.Status.Conditions, metav1.Condition{Type: v1alpha1.CheckpointIntact, Status: metav1.ConditionFalse})
	asked := v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: "asked", Namespace: "team"}}
	list := &v1alpha1.CheckpointList{Items: []v1alpha1.Checkpoint{
		takenCheckpoint(1, "fix-login-1"), takenCheckpoint(2, "fix-login-2"), takenCheckpoint(3, "2"), damaged, takenCheckpoint(5, "17"), takenCheckpoint(6, "base"), foreign, asked,
	}}
	task := taskWith(metav1.ConditionUnknown, v1alpha1.ReasonRunning)
	for _, test := range []struct{ wanted, name, err string }{
		{"fix-login-1", "fix-login-1", ""},
		{"1", "fix-login-1", ""},
		{"#1", "fix-login-1", ""},
		{"2", "fix-login-2", ""}, // a number wins over a name
		{"3", "2", ""},
		{"latest", "base", ""},
		{"7", "", "belongs to an earlier task"},
		{"base", "", "has no checkpoint \"base\" (the Checkpoint named base is its checkpoint 6: name that by the number)"},
		{"17", "", "has no checkpoint number 17 (the Checkpoint named 17 is its checkpoint 5: name that by the number)"},
		{"damaged", "", "damaged; choose another"},
		{"foreign", "", "belongs to an earlier task"},
		{"asked", "", "has not been taken yet"},
		{"9", "", "its newest is 7"},
		{"nothing", "", `has no checkpoint "nothing"`},
	} {
		t.Run(test.wanted, func(t *testing.T) {
			found, err := findCheckpoint(list, task, test.wanted)
			wantError(t, err, test.err)
			if err == nil && found.Name != test.name {
				t.Errorf("found %s; want %s", found.Name, test.name)
			}
		})
	}
	_, err := findCheckpoint(&v1alpha1.CheckpointList{}, task, "1")
	wantError(t, err, "it has no checkpoints yet")
}

func TestJudgeRewind(t *testing.T) {
	with := func(id string, state v1alpha1.OperationState, reason string) *v1alpha1.Task {
		task := taskWith(metav1.ConditionUnknown, v1alpha1.ReasonRewinding)
		task.Status.Rewind = &v1alpha1.OperationStatus{ID: id, State: state, Reason: reason, Message: "what happened"}
		return task
	}
	drifted := with("cli-1", v1alpha1.OperationFailed, v1alpha1.ReasonDriftDetected)
	drifted.Name = "walker"
	drifted.Status.Rewind.Message = "3 files were changed, for example \"a\": resume or rewind with onDrift Preserve to keep the changes, or Override to discard them"
	for _, test := range []struct {
		name string
		task *v1alpha1.Task
		done bool
		err  string
	}{
		{"not seen", taskWith(metav1.ConditionUnknown, v1alpha1.ReasonRunning), false, ""},
		{"another id", with("old", v1alpha1.OperationFailed, ""), false, ""},
		{"in progress", with("cli-1", v1alpha1.OperationInProgress, ""), false, ""},
		{"completed", with("cli-1", v1alpha1.OperationCompleted, ""), true, ""},
		{"failed", with("cli-1", v1alpha1.OperationFailed, v1alpha1.ReasonCheckpointCorrupted), false, "failed: what happened (CheckpointCorrupted)"},
		{"failed for drift", drifted, false, "rewind of task walker failed: 3 files were changed, for example \"a\" (DriftDetected); keep the changes with --on-drift preserve, or discard"},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := judgeRewind(test.task, "cli-1")
			if v.done != test.done {
				t.Errorf("done: got %v, want %v", v.done, test.done)
			}
			wantError(t, v.err, test.err)
			waiting := !v.done && v.err == nil
			if waiting && v.state == "" {
				t.Error("there is no state to show while waiting")
			}
		})
	}
}

func TestJudgeCheckpointAndFork(t *testing.T) {
	c := takenCheckpoint(1, "a")
	if v := judgeCheckpoint(&c); !v.done {
		t.Errorf("verdict on a durable checkpoint: got %+v, want done", v)
	}
	c.Status.Conditions = c.Status.Conditions[:1]
	if v := judgeCheckpoint(&c); v.done || !strings.Contains(v.state, "being pushed") {
		t.Errorf("verdict on a checkpoint that is not pushed: got %+v, want being pushed", v)
	}
	c.Status.Conditions[0] = metav1.Condition{Type: v1alpha1.CheckpointReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTaskNotFound, Message: "there is no task a"}
	wantError(t, judgeCheckpoint(&c).err, "there is no task a (TaskNotFound)")
	c.Status.Conditions[0].Reason, c.Status.Conditions[0].Message = v1alpha1.ReasonDriftDetected, "1 file was changed"
	wantError(t, judgeCheckpoint(&c).err, "the checkpoint was not taken: 1 file was changed (DriftDetected)")
	c.Status.Conditions[0].Reason, c.Status.Conditions[0].Message = v1alpha1.ReasonNoChildren, "none has run yet"
	if v := judgeCheckpoint(&c); v.err != nil || v.done || v.state != "none has run yet" {
		t.Errorf("verdict on a set that waits for a child: got %+v, want what it waits for", v)
	}
	c.Status.Conditions[0].Reason, c.Status.Conditions[0].Message = v1alpha1.ReasonTooManyChildren, "65 have run: delete some"
	if v := judgeCheckpoint(&c); v.err != nil || v.done || !v.doubtful || v.state != "65 have run: delete some" {
		t.Errorf("verdict on a set with too many children, which begins when some are gone: got %+v, want what it waits for, in doubt", v)
	}

	f := &v1alpha1.Fork{}
	if v := judgeFork(f); v.done || v.err != nil {
		t.Errorf("verdict on a new fork: got %+v, want neither done nor an error", v)
	}
	f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ForkComplete, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTaskExists, Message: "there is a task b"}}
	wantError(t, judgeFork(f).err, "there is a task b (TaskExists)")
	f.Status.Conditions[0].Reason, f.Status.Conditions[0].Message = v1alpha1.ReasonValuesNotKept, "values are not kept: TOKEN"
	wantError(t, judgeFork(f).err, "values are not kept: TOKEN (ValuesNotKept); with this command: another --name, and --variant name=TASK,env=VARIABLE=VALUE")
	f.Status.Conditions[0].Reason = v1alpha1.ReasonWaitingForSource
	if v := judgeFork(f); v.done || v.err != nil {
		t.Errorf("verdict on a waiting fork: got %+v, want neither done nor an error", v)
	}
}

func TestRandomID(t *testing.T) {
	pattern := regexp.MustCompile(`^cli-[a-z2-7]{8}$`)
	seen := map[string]bool{}
	for range 100 {
		id, err := randomID()
		if err != nil {
			t.Fatal(err)
		}
		if !pattern.MatchString(id) || seen[id] {
			t.Fatalf("id %q is repeated or does not match %v", id, pattern)
		}
		seen[id] = true
	}
}

// The newest checkpoint need not have an object.
func TestAvailableNumbers(t *testing.T) {
	task := &v1alpha1.Task{}
	task.Name, task.Namespace = "worker", "team"
	wantText(t, "without checkpoints", "it has no checkpoints yet: take one with `kubectl clew checkpoint create worker -n team`", availableNumbers(&v1alpha1.CheckpointList{}, task))
	task.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Number: 26}
	wantText(t, "with checkpoints", "its newest is 26: list them with `kubectl clew checkpoint list worker --all -n team`", availableNumbers(&v1alpha1.CheckpointList{}, task))
}
