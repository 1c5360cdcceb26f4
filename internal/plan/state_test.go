package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// stateInHistory returns the state of the task after its last entry.
func (s *scene) recordedState() (state string) {
	for _, e := range s.status().History {
		if after := StateAfter(s.status(), e); after != "" {
			state = after
		}
	}
	return state
}

// rewound makes the rewind's running pod carry it out.
func (s *scene) rewound() *scene {
	s.Helper()
	s.prepared(daemonapi.PrepareResult{Operation: "back", ToCheckpoint: 1})
	return s
}

func suspendedTask(t *testing.T) *scene {
	t.Helper()
	s := running(t)
	s.change(builders.Suspended).step()
	s.podGone()
	s.wantState(v1alpha1.ReasonSuspended)
	return s
}

func TestTheStateInTheHistoryIsTheCurrentOne(t *testing.T) {
	for name, c := range map[string]struct {
		scene     func(*testing.T) *scene
		recorded  string
		succeeded string
	}{
		"started": {func(t *testing.T) *scene { return running(t) }, "Running", v1alpha1.ReasonRunning},
		"rewound while it ran, and at work again": {func(t *testing.T) *scene {
			s := running(t)
			s.rewind("back", 1).step()
			s.podGone()
			s.rewound().agentRuns()
			return s
		}, "Running", v1alpha1.ReasonRunning},
		"rewound while it ran, and completed since": {func(t *testing.T) *scene {
			s := running(t)
			s.rewind("back", 1).step()
			s.podGone()
			s.rewound().agentRuns()
			s.record(v1alpha1.TriggerCompletion)
			s.agentExits(0)
			s.podFinishes()
			return s
		}, "Completed", v1alpha1.ReasonCompleted},
		"completed": {func(t *testing.T) *scene { return completedTask(t) }, "Completed", v1alpha1.ReasonCompleted},
		"rewound after it had completed": {func(t *testing.T) *scene {
			s := completedTask(t)
			s.rewind("back", 1).step()
			return s.rewound()
		}, "Rewound", v1alpha1.ReasonRewound},
		"rewound twice after it had completed": {func(t *testing.T) *scene {
			s := completedTask(t)
			s.rewind("back", 1).step()
			s.rewound()
			s.rewind("further", 1).step()
			s.prepared(daemonapi.PrepareResult{Operation: "further", ToCheckpoint: 1})
			return s
		}, "Rewound", v1alpha1.ReasonRewound},
		"resumed after a rewind": {func(t *testing.T) *scene {
			s := completedTask(t)
			s.rewind("back", 1).step()
			s.rewound()
			s.change(builders.Resume("on")).step()
			s.prepared(daemonapi.PrepareResult{Operation: "on"})
			s.agentRuns()
			return s
		}, "Running", v1alpha1.ReasonRunning},
		"suspended": {suspendedTask, "Suspended", v1alpha1.ReasonSuspended},
		"suspended between two attempts": {func(t *testing.T) *scene {
			s := running(t)
			s.agentExits(1)
			s.podFinishes()
			s.wantState(v1alpha1.ReasonRetrying)
			return s.change(builders.Suspended).step()
		}, "Suspended", v1alpha1.ReasonSuspended},
		"suspended between two attempts, and awake again": {func(t *testing.T) *scene {
			s := running(t)
			s.agentExits(1)
			s.podFinishes()
			s.change(builders.Suspended).step()
			s.change(builders.Running).after(time.Hour).step()
			s.prepared(daemonapi.PrepareResult{})
			s.agentRuns()
			return s
		}, "Running", v1alpha1.ReasonRunning},
		"suspended when a rewind had stopped it, which then failed": {func(t *testing.T) *scene {
			s := running(t)
			s.rewind("back", 1).step()
			s.podGone()
			s.change(builders.Suspended).step()
			s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonCheckpointCorrupted, Permanent: true})
			return s
		}, "Suspended", v1alpha1.ReasonSuspended},
		"rewound while it slept": {func(t *testing.T) *scene {
			s := suspendedTask(t)
			s.rewind("back", 1).step()
			return s.rewound()
		}, "Suspended", v1alpha1.ReasonSuspended},
		"suspended while the rewind was under way": {func(t *testing.T) *scene {
			s := running(t)
			s.rewind("back", 1).step()
			s.podGone()
			s.change(builders.Suspended).step()
			s.rewound()
			s.podGone()
			return s
		}, "Suspended", v1alpha1.ReasonSuspended},
		"not resumed, since its files had been changed": {func(t *testing.T) *scene {
			s := suspendedTask(t)
			s.change(builders.Running).step()
			s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonDriftDetected, Permanent: true, Message: "a.txt was changed"})
			return s
		}, "DriftDetected", v1alpha1.ReasonDriftDetected},
		"not rewound, since its files had been changed": {func(t *testing.T) *scene {
			s := completedTask(t)
			s.rewind("back", 1).step()
			s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonDriftDetected, Permanent: true, Message: "a.txt was changed"})
			return s
		}, "Completed", v1alpha1.ReasonCompleted},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			s := c.scene(t)
			s.wantState(c.succeeded)
			g.Expect(s.recordedState()).To(gomega.Equal(c.recorded))
		})
	}
}

func TestASuspensionIsRecordedOnce(t *testing.T) {
	s := suspendedTask(t)
	s.after(time.Hour).step()
	s.rewind("back", 1).step()
	s.rewound()
	s.after(time.Hour).step()
	if n := len(s.entries(v1alpha1.EventTaskSuspended)); n != 1 {
		t.Errorf("the suspension was recorded %d times, want once", n)
	}
	s = running(t)
	s.agentExits(1)
	s.podFinishes()
	s.o.Stamped, s.o.Task.Spec.RequestedBy = true, &v1alpha1.TaskRequesters{OperatingMode: "ann"}
	s.change(builders.Suspended).step()
	s.recorded()
	s.after(time.Hour).step()
	if entries := s.entries(v1alpha1.EventTaskSuspended); len(entries) != 1 || entries[0].Actor != "ann" {
		t.Errorf("the entries are %+v", entries)
	}
}

// The history has who resumed a task, whatever its last attempt was.
func TestWhoResumesATaskIsRecorded(t *testing.T) {
	for name, asleep := range map[string]func(t *testing.T) *scene{
		"suspended at work": func(t *testing.T) *scene { return suspendedTask(t) },
		"suspended between two attempts": func(t *testing.T) *scene {
			s := running(t)
			s.agentExits(1)
			s.podFinishes()
			return s.change(builders.Suspended).step()
		},
		"suspended between two attempts, so long ago that the status has it no more": func(t *testing.T) *scene {
			s := running(t)
			s.agentExits(1)
			s.podFinishes()
			s.change(builders.Suspended).step()
			s.recorded()
			s.after(time.Hour).step()
			s.status().History = nil
			return s
		},
		"rewound while it slept": func(t *testing.T) *scene {
			s := suspendedTask(t)
			s.rewind("back", 1).step()
			return s.rewound()
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			s := asleep(t)
			s.o.Stamped, s.o.Task.Spec.RequestedBy = true, &v1alpha1.TaskRequesters{OperatingMode: "ann"}
			s.change(builders.Running).after(time.Hour).step()
			entries := s.entries(v1alpha1.EventTaskResumed)
			g.Expect(entries).To(gomega.HaveLen(1))
			g.Expect(entries[0].Actor).To(gomega.Equal("ann"))
			g.Expect(s.entries(v1alpha1.EventTaskRetried)).To(gomega.BeEmpty())
		})
	}
}

// However often a task that has ended is rewound, the rewinds do not start its agent.
func TestATaskThatHasEndedStaysSoThroughAnyNumberOfRewinds(t *testing.T) {
	g := gomega.NewWithT(t)
	s := completedTask(t)
	for n := range maxAttempts + 10 {
		id := fmt.Sprint("back-", n)
		s.rewind(id, 1).step()
		g.Expect(s.started().PrepareOnly).To(gomega.BeTrue(), id)
		if n%2 == 1 {
			s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonCheckpointCorrupted, Permanent: true})
		} else {
			s.prepared(daemonapi.PrepareResult{Operation: id, ToCheckpoint: 1})
		}
		s.recorded()
		s.wantState(v1alpha1.ReasonRewound)
	}
	g.Expect(s.recordedState()).To(gomega.Equal("Rewound"))
	g.Expect(len(s.status().Attempts)).To(gomega.Equal(maxAttempts))
	g.Expect(s.status().Attempts[0].Number).To(gomega.BeEquivalentTo(1), "the one that has completed")
}
