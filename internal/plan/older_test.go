package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// begins starts the agent of the newest attempt.
func begins(s *scene) {
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	s.o.History.State.Attempt = s.lastAttempt().Number
}

// putBack restores an older Task, without the pods that were created later. The history
// store is not put back.
func putBack(s *scene, backup *v1alpha1.Task) {
	s.o.Attempts = Attempts{Known: true, Highest: s.lastAttempt().Number}
	s.o.Task, s.o.Pods = backup, nil
	s.managerRestarts()
	for range 4 {
		s.after(time.Minute).step()
	}
}

// TestATaskThatCompletedAfterTheBackupOfItsStatusIsNotRunAgain: the Kubernetes API is put
// back to a time when an earlier attempt ran, or none.
func TestATaskThatCompletedAfterTheBackupOfItsStatusIsNotRunAgain(t *testing.T) {
	for name, ran := range map[string]bool{"in its first attempt": true, "before its first attempt": false} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			s := newScene(t)
			backup := s.o.Task.DeepCopy()
			s.step()
			begins(s)
			if ran {
				backup = s.o.Task.DeepCopy()
				s.podGone()
				s.after(time.Minute).step()
				begins(s)
			}
			s.record(v1alpha1.TriggerCompletion)
			s.agentExits(0)
			s.podFinishes()
			s.wantState(v1alpha1.ReasonCompleted)
			number := s.lastAttempt().Number
			putBack(s, backup)
			g.Expect(s.o.Pods).To(gomega.BeEmpty(), "the agent runs once more on completed work")
			s.wantState(v1alpha1.ReasonCompleted)
			g.Expect(s.lastAttempt().Number).To(gomega.Equal(number))
			g.Expect(s.lastAttempt().Message).To(gomega.ContainSubstring("restored from an older copy"))
		})
	}
}

// TestAPodThatIsInTheBackupIsStopped: its attempt is over, and a newer one has
// completed the task.
func TestAPodThatIsInTheBackupIsStopped(t *testing.T) {
	g := gomega.NewWithT(t)
	s := running(t)
	s.o.History.State.Attempt = 2
	s.o.History.State.Latest = &history.Checkpoint{Number: 1, Attempt: 2, Trigger: string(v1alpha1.TriggerCompletion), Time: s.now}
	s.step()
	g.Expect(s.pod().DeletionTimestamp).NotTo(gomega.BeNil())
	s.podGone()
	s.wantOutcomes(v1alpha1.AttemptPodLost, v1alpha1.AttemptCompleted)
	s.wantState(v1alpha1.ReasonCompleted)
}

// TestATaskThatFailedForGoodAfterTheBackupOfItsStatusIsNotRunAgain: a task that waits for
// a person keeps waiting.
func TestATaskThatFailedForGoodAfterTheBackupOfItsStatusIsNotRunAgain(t *testing.T) {
	g := gomega.NewWithT(t)
	s := newScene(t)
	s.o.Task.Spec.BackoffLimit = new(int32)
	backup := s.o.Task.DeepCopy()
	s.step()
	begins(s)
	s.o.History.State.AgentEnd = &history.AgentEnd{Attempt: 1, ExitCode: 3, Message: "it cannot be done"}
	s.agentExits(3)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonAgentFailed)
	putBack(s, backup)
	g.Expect(s.o.Pods).To(gomega.BeEmpty())
	s.wantState(v1alpha1.ReasonAgentFailed)
	g.Expect(s.wantCondition(v1alpha1.TaskSucceeded).Message).To(gomega.ContainSubstring("it cannot be done"))
}

// TestAnOperationThatWasCarriedOutAfterTheBackupOfTheStatusIsClosed: the agent continued
// from it and completed the task.
func TestAnOperationThatWasCarriedOutAfterTheBackupOfTheStatusIsClosed(t *testing.T) {
	completed := func(s *scene, keys ...string) {
		s.o.History.State.Attempt, s.o.History.State.CompletedOperations = 2, keys
		s.o.RewindDone.Known = true
		s.record(v1alpha1.TriggerCompletion)
		s.o.History.State.Latest.Attempt = 2
		s.o.Pods = nil
		s.managerRestarts().after(time.Minute).step()
		s.wantState(v1alpha1.ReasonCompleted)
		if p := s.started(); p != nil {
			s.Errorf("pod %d is started", p.Attempt)
		}
	}
	wantState := func(s *scene, op *v1alpha1.OperationStatus, id string, state v1alpha1.OperationState) {
		if op == nil {
			s.Fatalf("the operation %s has no status", id)
		}
		if op.ID != id || op.State != state {
			s.Errorf("the operation is %s, %s; want %s, %s", op.ID, op.State, id, state)
		}
	}
	for name, state := range map[string]v1alpha1.OperationState{"/done": v1alpha1.OperationCompleted, "/undone": v1alpha1.OperationFailed} {
		t.Run("a rewind that had not been accepted"+name, func(t *testing.T) {
			s := running(t)
			s.record(v1alpha1.TriggerToolCalls)
			s.rewind("r1", 1)
			completed(s, daemonapi.OperationKey(daemonapi.OperationRewind, "r1")+name)
			wantState(s, s.status().Rewind, "r1", state)
		})
	}
	t.Run("a rewind that was in progress", func(t *testing.T) {
		s := running(t)
		s.record(v1alpha1.TriggerToolCalls)
		s.rewind("r1", 1).step()
		completed(s)
		wantState(s, s.status().Rewind, "r1", v1alpha1.OperationCompleted)
	})
	t.Run("a resume that had not been accepted", func(t *testing.T) {
		s := running(t)
		s.change(builders.Resume("r1"))
		completed(s, daemonapi.OperationKey(daemonapi.OperationResume, "r1"))
		wantState(s, s.status().Resume, "r1", v1alpha1.OperationCompleted)
	})
}

// TestAPhaseThatBeganAgainAfterTheBackupOfTheStatusIsFollowed: the supervisor's conversation and files are
// back at its start, so its contract is in that phase and its children stop, as if nothing had been put back.
func TestAPhaseThatBeganAgainAfterTheBackupOfTheStatusIsFollowed(t *testing.T) {
	for name, accepted := range map[string]bool{"a resume that had not been accepted": false, "a resume that was in progress": true} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			s := supervising(t)
			s.o.Children = []v1alpha1.Task{childIn("busy", metav1.ConditionUnknown, v1alpha1.ReasonRunning)}
			s.knows(1).after(time.Minute).change(restart("again", v1alpha1.PhaseResearch))
			if accepted {
				s.step()
				s.wantStarted(2)
			}
			s.o.History.State.Attempt = 2
			s.o.History.State.CompletedOperations = []string{daemonapi.OperationKey(daemonapi.OperationResume, "again")}
			s.o.History.State.AgentEnd = &history.AgentEnd{Attempt: 2, ExitCode: 3, Message: "the model is away"}
			if accepted { // the copy is of before the attempt, and has the resume in progress
				s.o.Task.Status.Attempts, s.o.Task.Status.Resume.Attempt = s.o.Task.Status.Attempts[:1], 0
			}
			s.o.Pods = nil
			s.after(time.Minute).managerRestarts().step()
			s.wantOperation(s.status().Resume, "again", v1alpha1.OperationCompleted, "")
			contract := s.status().Contract
			g.Expect(contract.Restart).NotTo(gomega.BeNil(), "the children are not told")
			g.Expect(contract.Restart.Time.Time).To(gomega.Equal(s.now), "children that were made until the agent was stopped go on")
			g.Expect(contract.Restart.ID).To(gomega.Equal("again"))
			g.Expect(contract.Phase).To(gomega.Equal(v1alpha1.PhaseResearch))
			g.Expect(enteredPhases(contract)).To(gomega.Equal([]string{v1alpha1.PhaseResearch}))
			s.wantMessage(s.lastEntry(v1alpha1.EventPhaseChanged).Message, "begins phase Research again, from checkpoint 1", "its child busy")
		})
	}
}

func TestAChildFollowsARewindThatOnlyTheHistoryKnowsToBeComplete(t *testing.T) {
	for name, accepted := range map[string]bool{"a rewind that had not been accepted": false, "a rewind that was in progress": true} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			s := supervising(t)
			s.o.Children = []v1alpha1.Task{childIn("docs", metav1.ConditionUnknown, v1alpha1.ReasonRunning)}
			s.knows(1).after(time.Minute).toSet("back", v1alpha1.SetTogether)
			s.change(func(t *v1alpha1.Task) { t.Spec.OperatingMode = v1alpha1.OperatingModeRunning })
			if accepted {
				s.step()
				s.wantStarted(2)
				s.o.Task.Status.Attempts, s.o.Task.Status.Rewind.Attempt = s.o.Task.Status.Attempts[:1], 0
			}
			s.o.History.State.Attempt = 2
			s.o.History.State.CompletedOperations = []string{daemonapi.OperationDoneKey(daemonapi.OperationRewind, "back")}
			s.o.RewindDone.Known = true
			s.o.History.State.AgentEnd = &history.AgentEnd{Attempt: 2, ExitCode: 3, Message: "the model is away"}
			s.o.Pods = nil
			s.managerRestarts().step()
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
			g.Expect(s.status().SetRewind).To(gomega.HaveField("State", v1alpha1.OperationCompleted), "the children are not told")
			g.Expect(RelationsOf(s.o.Task).Rewind).To(gomega.Equal("back"))
			s.wantMessage(s.status().Rewind.Message, "docs to checkpoint 5")
		})
	}
}

func TestPhasesAreTakenBackByWhatOnlyTheHistoryKnowsToBeComplete(t *testing.T) {
	one := int64(1)
	rewind := func(t *v1alpha1.Task) {
		t.Spec.Rewind = &v1alpha1.Rewind{ID: "back", To: toNumber(one), Scope: v1alpha1.RewindBoth, Preserve: v1alpha1.PreserveBranch}
	}
	resume := func(t *v1alpha1.Task) {
		t.Spec.Resume = &v1alpha1.Resume{ID: "back", Mode: v1alpha1.ResumeFromCheckpoint, CheckpointNumber: &one}
	}
	for name, c := range map[string]struct {
		request  builders.TaskOption
		key      string
		accepted bool
		known    bool
		phase    string
	}{
		"a rewind that was in progress":       {rewind, "Rewind/back/done", true, true, v1alpha1.PhaseResearch},
		"a rewind that had not been accepted": {rewind, "Rewind/back/done", false, true, v1alpha1.PhaseResearch},
		"a rewind to nobody knows where":      {rewind, "Rewind/back/done", false, false, v1alpha1.PhaseSpecify},
		"a resume that was in progress":       {resume, "Resume/back", true, true, v1alpha1.PhaseResearch},
		"a resume that had not been accepted": {resume, "Resume/back", false, true, v1alpha1.PhaseResearch},
		"a resume from nobody knows where":    {resume, "Resume/back", false, false, v1alpha1.PhaseSpecify},
	} {
		t.Run(name, func(t *testing.T) {
			s := supervising(t).knows(1)
			s.o.RewindRecord = s.o.ResumeRecord
			if !c.known {
				s.o.RewindRecord, s.o.ResumeRecord = RewindRecord{}, RewindRecord{}
			}
			s.change(c.request, builders.Running)
			if c.accepted {
				s.step()
				s.wantStarted(2)
				s.o.Task.Status.Attempts = s.o.Task.Status.Attempts[:1]
				for _, op := range []*v1alpha1.OperationStatus{s.status().Rewind, s.status().Resume} {
					if op != nil {
						op.Attempt = 0
					}
				}
			}
			s.o.History.State.Attempt, s.o.History.State.CompletedOperations = 2, []string{c.key}
			s.o.RewindDone.Known = true
			s.o.History.State.AgentEnd = &history.AgentEnd{Attempt: 2, ExitCode: 3, Message: "the model is away"}
			s.o.Pods = nil
			s.managerRestarts().step()
			op := s.status().Rewind
			if op == nil {
				op = s.status().Resume
			}
			s.wantOperation(op, "back", v1alpha1.OperationCompleted, "")
			if contract := s.status().Contract; contract.Phase != c.phase || contract.Find(v1alpha1.PhaseSpecify) >= 0 != (c.phase == v1alpha1.PhaseSpecify) {
				t.Errorf("the contract is %+v, want it in %s", contract, c.phase)
			}
			if back := c.known || op == s.status().Rewind; op.Attempt != 2 || takenBack(s.status(), 1) != back {
				t.Errorf("what was called in attempt 1 counts: %+v", op)
			}
		})
	}
}

// The message is in the conversation that the rewind has made, too, with its own checkpoint there.
func TestPhasesAreTakenBackByWhatTheHistoryHasOfARewindToAMessage(t *testing.T) {
	for name, c := range map[string]struct {
		scope    v1alpha1.RewindScope
		to       int64
		accepted bool
	}{
		"that had not been accepted":                         {v1alpha1.RewindBoth, 1, false},
		"that was in progress":                               {v1alpha1.RewindBoth, 1, true},
		"before the first checkpoint, and was not accepted":  {v1alpha1.RewindConversation, 0, false},
		"before the first checkpoint, which was in progress": {v1alpha1.RewindConversation, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := supervising(t)
			one := int64(1)
			again := &history.Checkpoint{Number: 9, Trigger: string(v1alpha1.TriggerRewound), Commit: "c9", Position: history.Position{Position: 10}}
			s.o.RewindPosition = RewindPosition{Known: true, Found: &history.Resolved{Asked: 10, Position: history.Position{Position: 10}, Checkpoint: again}}
			s.rewindTo("back", c.scope, v1alpha1.RewindTarget{Message: &one}).change(builders.Running)
			if c.accepted {
				s.o.Task.Status.HandledOperations = append(s.o.Task.Status.HandledOperations, "Rewind/back")
				s.o.Task.Status.Rewind = &v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationInProgress, Scope: c.scope, ToCheckpoint: c.to}
			}
			s.o.History.State.Attempt, s.o.History.State.CompletedOperations = 2, []string{"Rewind/back/done"}
			s.o.History.State.AgentEnd = &history.AgentEnd{Attempt: 2, ExitCode: 3, Message: "the model is away"}
			s.o.Pods = nil
			attempts, writes := len(s.status().Attempts), s.writes
			s.managerRestarts().step()
			if len(s.status().Attempts) != attempts || s.writes != writes || len(s.o.Pods) > 0 {
				t.Fatalf("it does not wait until the history says what the rewind has done: %+v", s.status().Attempts)
			}
			s.o.RewindDone = RewindDone{Known: true, Found: history.Rewind{ID: "back", Completed: true, Rewound: &history.Rewound{Scope: string(c.scope), From: 8, To: c.to}}}
			s.step()
			op := s.status().Rewind
			s.wantOperation(op, "back", v1alpha1.OperationCompleted, "")
			if op.ToCheckpoint != c.to || op.FromCheckpoint != 8 || op.Scope != c.scope || op.ToCommit != "" || op.ToPosition != 0 {
				t.Errorf("the rewind is %+v", op)
			}
			contract := s.status().Contract
			if contract.Phase != v1alpha1.PhaseResearch || contract.Entered[len(contract.Entered)-1].At != 8 {
				t.Errorf("the contract is %+v", contract)
			}
		})
	}
}

// TestAResumeByAnIdThatWasUsedBeforeTheStatusWasPutBackIsRefused: the volume has the id as
// completed, so its prompt would be ignored.
func TestAResumeByAnIdThatWasUsedBeforeTheStatusWasPutBackIsRefused(t *testing.T) {
	g := gomega.NewWithT(t)
	s := running(t, builders.BackoffLimit(0))
	s.agentExits(1)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonAgentFailed)
	s.o.History.State.CompletedOperations = []string{daemonapi.OperationKey(daemonapi.OperationResume, "r1")}
	s.change(builders.Resume("r1")).step()
	g.Expect(s.started()).To(gomega.BeNil())
	g.Expect(s.status().Resume.State).To(gomega.Equal(v1alpha1.OperationRefused))
	g.Expect(s.status().Resume.Message).To(gomega.ContainSubstring("request it again with a new id"))
	s.change(builders.Resume("r2")).step()
	g.Expect(s.started()).NotTo(gomega.BeNil())
}

// TestATaskWhoseHistoryWasDeletedIsNotStarted: the Task was restored since. None of its
// pods could be prepared, however often that is tried.
func TestATaskWhoseHistoryWasDeletedIsNotStarted(t *testing.T) {
	g := gomega.NewWithT(t)
	s := newScene(t)
	s.o.History.Deleted = true
	for range 3 {
		s.step().after(time.Minute)
		g.Expect(s.o.Pods).To(gomega.BeEmpty())
	}
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonHistoryDeleted)
	g.Expect(s.writes).To(gomega.Equal(1))
}

// TestATaskWhoseHistoryALaterOneHasAdoptedIsNotStarted: the Task was restored from a copy of before
// that. None of its pods could be prepared, however often that is tried.
func TestATaskWhoseHistoryALaterOneHasAdoptedIsNotStarted(t *testing.T) {
	g := gomega.NewWithT(t)
	s := newScene(t)
	s.o.History.ContinuedBy = "later-uid"
	s.o.Task.Status.RecordSequence = 7
	for range 3 {
		s.step().after(time.Minute)
		g.Expect(s.o.Pods).To(gomega.BeEmpty())
	}
	s.wantState(v1alpha1.ReasonHistoryContinued)
	waits := s.wantCondition(v1alpha1.TaskSucceeded)
	g.Expect(waits.Message).To(gomega.SatisfyAll(gomega.ContainSubstring("later-uid"), gomega.ContainSubstring("adopt: Latest")))
	lacks := s.wantCondition(v1alpha1.TaskHistoryComplete)
	g.Expect(lacks.Reason).To(gomega.Equal(v1alpha1.ReasonHistoryContinued), "no pod resends what it lacks")
	g.Expect(s.writes).To(gomega.Equal(1))
}

// TestANumberThatOnlyVolumeAndGitstoreHaveSeenIsSkippedAtOnce: the Kubernetes API and the
// history store were restored from older copies. It counts as no failure, and the next
// attempt continues what the refused one was for.
func TestANumberThatOnlyVolumeAndGitstoreHaveSeenIsSkippedAtOnce(t *testing.T) {
	refused := func(s *scene) {
		s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonFenced, Message: "attempt 7 has been seen", NewestAttempt: 7})
		s.step()
		s.o.Pods = slices.DeleteFunc(s.o.Pods, func(pod corev1.Pod) bool { return inspect(&pod).finished })
		s.step()
	}
	t.Run("a start", func(t *testing.T) {
		g := gomega.NewWithT(t)
		s := newScene(t)
		s.o.Task.Spec.BackoffLimit = new(int32)
		s.step()
		refused(s)
		g.Expect(s.lastAttempt().Number).To(gomega.Equal(int64(8)))
		s.wantOutcomes(v1alpha1.AttemptPrepareFailed, v1alpha1.AttemptPodLost, "")
		g.Expect(s.status().Failures).To(gomega.BeZero())
		g.Expect(s.o.Pods).To(gomega.HaveLen(1))
		// A volume that has seen no newer attempt changes nothing.
		s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonFenced, NewestAttempt: 8})
		s.after(time.Minute).step()
		g.Expect(s.lastAttempt().Number).To(gomega.Equal(int64(9)))
	})
	t.Run("a rewind of a task at rest", func(t *testing.T) {
		g := gomega.NewWithT(t)
		s := completedTask(t)
		s.o.Pods = nil
		s.rewind("r1", 1).step()
		g.Expect(inspect(s.pod()).prepareOnly).To(gomega.BeTrue())
		refused(s)
		g.Expect(s.lastAttempt().Number).To(gomega.Equal(int64(8)))
		g.Expect(inspect(s.pod()).prepareOnly).To(gomega.BeTrue(), "the agent of a completed task is started")
		g.Expect(s.status().Rewind.Attempt).To(gomega.Equal(int64(8)))
	})
}

// The manager is killed after it has written that the attempt has ended, and before it stops the pod.
func TestThePodOfAnAttemptThatAnotherOneFollowedIsStopped(t *testing.T) {
	s := newScene(t)
	s.step()
	begins(s)
	s.record(v1alpha1.TriggerCompletion)
	s.o.History.State.Attempt++
	s.o.History.State.Latest.Attempt = s.o.History.State.Attempt
	pod := PodRef{Name: s.o.Pods[0].Name, UID: string(s.o.Pods[0].UID)}
	first := Decide(s.o, s.now)
	if !slices.Contains(first.StopPods, pod) {
		t.Fatalf("the pods to stop are %+v", first.StopPods)
	}
	s.o.Task.Status = first.Status
	s.managerRestarts()
	if again := Decide(s.o, s.now); !slices.Contains(again.StopPods, pod) {
		t.Errorf("the pods to stop are then %+v, want %+v among them", again.StopPods, pod)
	}
}
