package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// ended makes a child one that has ended.
func (c *call) ended(name string, status metav1.ConditionStatus, reason string) *v1alpha1.Task {
	return inState(c.Named[name], status, reason)
}

// suspended makes a child one that a field manager has suspended.
func (c *call) suspended(name, by string) *v1alpha1.Task {
	task := c.ended(name, metav1.ConditionUnknown, v1alpha1.ReasonSuspended)
	task.Spec.OperatingMode = v1alpha1.OperatingModeSuspended
	owns(task, by, `{"f:spec":{"f:operatingMode":{}}}`)
	return task
}

// wantSpec decides, and fails unless the child is to be changed like this, and in nothing else.
func (c *call) wantSpec(name string, change func(*v1alpha1.TaskSpec)) *v1alpha1.Task {
	c.Helper()
	want := c.Named[name].DeepCopy()
	change(&want.Spec)
	got := c.changed()
	if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
		c.Errorf("the child's spec (-want +got):\n%s", diff)
	}
	return got
}

func TestGoingOnWithAChild(t *testing.T) {
	const arguments = `{"task":"a","prompt":"Once more."}`
	resume := &v1alpha1.Resume{ID: "tool-one", Mode: v1alpha1.ResumeContinue, Prompt: "Once more."}
	for name, become := range map[string]func(c *call){
		"that has completed": func(c *call) { c.ended("a", metav1.ConditionTrue, v1alpha1.ReasonCompleted) },
		"that has failed":    func(c *call) { c.ended("a", metav1.ConditionFalse, v1alpha1.ReasonBackoffLimit) },
		"that was rewound":   func(c *call) { c.ended("a", metav1.ConditionUnknown, v1alpha1.ReasonRewound) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(t, v1alpha1.ToolTaskResume, arguments)
			become(c)
			c.wantSpec("a", func(s *v1alpha1.TaskSpec) {
				s.Resume, s.RequestedBy = resume, &v1alpha1.TaskRequesters{Resume: "task:lead"}
			})
		})
	}
	c := newCall(t, v1alpha1.ToolTaskResume, arguments)
	c.suspended("a", "task:lead")
	c.wantSpec("a", func(s *v1alpha1.TaskSpec) {
		s.Resume, s.OperatingMode = resume, v1alpha1.OperatingModeRunning
		s.RequestedBy = &v1alpha1.TaskRequesters{Resume: "task:lead", OperatingMode: "task:lead"}
	})
	c.Stamped = false
	c.wantSpec("a", func(s *v1alpha1.TaskSpec) { s.Resume, s.OperatingMode = resume, v1alpha1.OperatingModeRunning })
}

func TestAChildThatDoesNotGoOn(t *testing.T) {
	for name, test := range map[string]struct {
		arguments string
		become    func(c *call)
		words     string
	}{
		"one that works":            {`{"task":"a"}`, nil, "has not stopped (Running): wait for it with task_wait, or stop it with task_stop first"},
		"none of that name":         {`{"task":"x"}`, nil, "the task lead has no child x"},
		"the supervisor itself":     {`{"task":"self"}`, nil, "this tool is about its children"},
		"one that somebody applied": {`{"task":"c"}`, func(c *call) { c.ended("c", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed) }, "was applied by argocd, and a supervisor steers only the tasks that its own tools have made"},
		"one that somebody has given a Secret": {`{"task":"a"}`, func(c *call) {
			c.ended("a", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed)
			owns(c.Named["a"], "kubectl-edit", withSecret)
		}, "spec.template of the task a was changed by kubectl-edit, and a supervisor steers only what its own tools have made: ask them"},
		"one that is being deleted":           {`{"task":"a"}`, func(c *call) { c.Named["a"].DeletionTimestamp = ptr.To(metav1.Now()) }, "is being deleted"},
		"a completed one, with nothing to do": {`{"task":"a"}`, func(c *call) { c.ended("a", metav1.ConditionTrue, v1alpha1.ReasonCompleted) }, "goes on only with a prompt"},
		"one that a person suspended":         {`{"task":"a"}`, func(c *call) { c.suspended("a", "kubectl-patch") }, "was suspended by kubectl-patch, and not by its supervisor"},
		"one that a person must look at":      {`{"task":"a"}`, func(c *call) { c.ended("a", metav1.ConditionUnknown, v1alpha1.ReasonDriftDetected) }, "a person has to decide"},
		"one with a long prompt":              {`{"task":"a","prompt":"` + strings.Repeat("x", 32769) + `"}`, func(c *call) { c.ended("a", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed) }, "the prompt has 32769 bytes, and 32768 are possible"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(t, v1alpha1.ToolTaskResume, test.arguments)
			if test.become != nil {
				test.become(c)
			}
			c.wantRefusal(test.words)
		})
	}
}

func TestWhatAResumeWaitsFor(t *testing.T) {
	for name, become := range map[string]func(c *call){
		"its child is being stopped": func(c *call) {
			c.suspended("a", "task:lead")
			c.ended("a", metav1.ConditionUnknown, v1alpha1.ReasonSuspending)
		},
		"the child's controller has not seen its spec": func(c *call) {
			c.ended("a", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed).Generation = 9
		},
		"another resume has yet to be decided on": func(c *call) {
			c.ended("a", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed).Spec.Resume = &v1alpha1.Resume{ID: "by-a-person"}
		},
		"its own has": func(c *call) {
			c.ended("a", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed).Spec.Resume = &v1alpha1.Resume{ID: "tool-one"}
		},
		"its own is pending": func(c *call) {
			a := c.ended("a", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed)
			a.Spec.Resume, a.Status.Resume = &v1alpha1.Resume{ID: "tool-one"}, &v1alpha1.OperationStatus{ID: "tool-one", State: v1alpha1.OperationPending}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(t, v1alpha1.ToolTaskResume, `{"task":"a","prompt":"p"}`)
			become(c)
			c.wantWait()
		})
	}
}

func TestWhatComesOfAResume(t *testing.T) {
	resumed := func(op v1alpha1.OperationStatus) *call {
		c := newCall(t, v1alpha1.ToolTaskResume, `{"task":"a"}`)
		a := c.Named["a"]
		a.Spec.Resume, a.Status.Resume, a.Status.HandledOperations = &v1alpha1.Resume{ID: op.ID}, &op, []string{"Resume/tool-one"}
		return c
	}
	resumed(v1alpha1.OperationStatus{ID: "tool-one", State: v1alpha1.OperationInProgress}).wantAnswer("the task a goes on")
	resumed(v1alpha1.OperationStatus{ID: "tool-one", State: v1alpha1.OperationCompleted}).wantAnswer("the task a goes on")
	resumed(v1alpha1.OperationStatus{ID: "tool-one", State: v1alpha1.OperationRefused, Reason: "InvalidOperation", Message: "its deadline has passed"}).
		wantRefusal("the task a stays as it is (InvalidOperation): its deadline has passed")
	resumed(v1alpha1.OperationStatus{ID: "a-later-one", State: v1alpha1.OperationCompleted}).wantAnswer("has been told something else since")
}

func TestTakingAChildBack(t *testing.T) {
	number := ptr.To[int64](2)
	t.Run("one that works is rewound", func(t *testing.T) {
		c := newCall(t, v1alpha1.ToolTaskRewind, `{"task":"a","checkpoint":2}`)
		c.wantSpec("a", func(s *v1alpha1.TaskSpec) {
			s.Rewind = &v1alpha1.Rewind{ID: "tool-one", To: v1alpha1.RewindTarget{CheckpointNumber: number}}
			s.RequestedBy = &v1alpha1.TaskRequesters{Rewind: "task:lead"}
		})
		a := c.Named["a"]
		a.Spec.Rewind = &v1alpha1.Rewind{ID: "tool-one"}
		c.wantWait()
		a.Status.Rewind, a.Status.HandledOperations = &v1alpha1.OperationStatus{ID: "tool-one", State: v1alpha1.OperationInProgress, ToCheckpoint: 2}, []string{"Rewind/tool-one"}
		c.wantAnswer("the task a goes back to checkpoint 2")
		a.Status.Rewind.State, a.Status.Rewind.Reason, a.Status.Rewind.Message = v1alpha1.OperationRefused, "CheckpointLost", "it is lost"
		c.wantRefusal("stays as it is (CheckpointLost): it is lost")
	})
	t.Run("one that has stopped is resumed from there", func(t *testing.T) {
		c := newCall(t, v1alpha1.ToolTaskRewind, `{"task":"a","checkpoint":2,"prompt":"Otherwise."}`)
		c.ended("a", metav1.ConditionTrue, v1alpha1.ReasonCompleted)
		c.wantSpec("a", func(s *v1alpha1.TaskSpec) {
			s.Resume = &v1alpha1.Resume{ID: "tool-one", Mode: v1alpha1.ResumeFromCheckpoint, CheckpointNumber: number, Prompt: "Otherwise."}
			s.RequestedBy = &v1alpha1.TaskRequesters{Resume: "task:lead"}
		})
	})
	t.Run("one that works and gets another prompt is stopped first, once", func(t *testing.T) {
		c := newCall(t, v1alpha1.ToolTaskRewind, `{"task":"a","checkpoint":2,"prompt":"Otherwise."}`)
		c.Named["a"] = c.wantSpec("a", func(s *v1alpha1.TaskSpec) {
			s.OperatingMode, s.RequestedBy = v1alpha1.OperatingModeSuspended, &v1alpha1.TaskRequesters{OperatingMode: "task:lead"}
		})
		c.wantWait() // until it has stopped
		c.suspended("a", "task:lead")
		c.wantSpec("a", func(s *v1alpha1.TaskSpec) {
			s.OperatingMode = v1alpha1.OperatingModeRunning
			s.Resume = &v1alpha1.Resume{ID: "tool-one", Mode: v1alpha1.ResumeFromCheckpoint, CheckpointNumber: number, Prompt: "Otherwise."}
			s.RequestedBy = &v1alpha1.TaskRequesters{OperatingMode: "task:lead", Resume: "task:lead"}
		})
		c.Named["a"].Spec.OperatingMode = v1alpha1.OperatingModeRunning // by a person, meanwhile
		c.ended("a", metav1.ConditionUnknown, v1alpha1.ReasonRunning).Generation += 2
		c.Named["a"].Status.ObservedGeneration += 2
		c.wantRefusal("the task a was to be stopped, and somebody has changed it since, so that it works")
	})
	for name, test := range map[string]struct {
		arguments string
		become    func(c *call)
		words     string
	}{
		"to no checkpoint":       {`{"task":"a","checkpoint":0}`, nil, "the newest checkpoint of the task a is 3, and there is no checkpoint 0"},
		"to one that is to come": {`{"task":"a","checkpoint":4}`, nil, "there is no checkpoint 4: name one that it has"},
		"without any":            {`{"task":"b","checkpoint":1}`, nil, "the task b has no checkpoint yet"},
		"while it is taken back": {`{"task":"a","checkpoint":1}`, func(c *call) {
			c.Named["a"].Status.Rewind = &v1alpha1.OperationStatus{ID: "other", State: v1alpha1.OperationInProgress}
		}, "is being rewound already"},
		"of somebody else": {`{"task":"c","checkpoint":1}`, nil, "was applied by argocd"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(t, v1alpha1.ToolTaskRewind, test.arguments)
			if test.become != nil {
				test.become(c)
			}
			c.wantRefusal(test.words)
		})
	}
}

func TestStoppingAChild(t *testing.T) {
	c := newCall(t, v1alpha1.ToolTaskStop, `{"task":"a"}`)
	stopped := c.wantSpec("a", func(s *v1alpha1.TaskSpec) {
		s.OperatingMode, s.RequestedBy = v1alpha1.OperatingModeSuspended, &v1alpha1.TaskRequesters{OperatingMode: "task:lead"}
	})
	stopped.Generation++
	c.Named["a"] = stopped
	c.wantWait()
	stopped.Status.ObservedGeneration++
	c.ended("a", metav1.ConditionUnknown, v1alpha1.ReasonSuspending)
	c.wantAnswer("the task a is being stopped with a checkpoint")
	c.ended("a", metav1.ConditionUnknown, v1alpha1.ReasonSuspended)
	c.wantAnswer("the task a has stopped (Suspended)")
	c.ended("a", metav1.ConditionUnknown, v1alpha1.ReasonRunning).Spec.OperatingMode = v1alpha1.OperatingModeRunning
	c.wantRefusal("the task a was to be stopped, and somebody has changed it since, so that it works") // the call takes effect once

	c = newCall(t, v1alpha1.ToolTaskStop, `{"task":"a"}`)
	c.ended("a", metav1.ConditionTrue, v1alpha1.ReasonCompleted)
	c.wantAnswer("the task a has stopped (Completed)")
	newCall(t, v1alpha1.ToolTaskStop, `{"task":"c"}`).wantRefusal("was applied by argocd")
}
