package plan

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// The Kubernetes API was restored from a copy of before the rewind was accepted, and the node with the volume and the
// attempt that had carried it out is lost, of which no end is recorded. The message leads to another checkpoint now.
func TestARewindThatIsDoneWentWhereTheHistoryHasIt(t *testing.T) {
	s := supervising(t)
	one := int64(1)
	again := &history.Checkpoint{Number: 9, Trigger: string(v1alpha1.TriggerRewound), Commit: "c9", Position: history.Position{Position: 10}}
	s.o.RewindPosition = RewindPosition{Known: true, Found: &history.Resolved{Asked: 10, Position: history.Position{Position: 10}, Checkpoint: again}}
	s.o.History.State.Attempt, s.o.History.State.CompletedOperations = 2, []string{"Rewind/back/done"}
	s.rewindTo("back", v1alpha1.RewindBoth, v1alpha1.RewindTarget{Message: &one}).step()
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationPending, v1alpha1.ReasonHistoryUnavailable)

	s.o.RewindDone = RewindDone{Known: true, Found: history.Rewind{ID: "back", Completed: true, Rewound: &history.Rewound{Scope: "Both", From: 8, To: 1}}}
	s.after(time.Minute).step()
	s.wantStarted(3)
	if op := s.status().Rewind; op.ToCheckpoint != 1 || op.MovedIn != 2 {
		t.Errorf("the rewind is %+v", op)
	}
	// The pod, on a new volume, knows its target only; one that an older manager has started knows another one.
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "back", ToCheckpoint: 9})
	op := s.status().Rewind
	s.wantOperation(op, "back", v1alpha1.OperationCompleted, "")
	if op.ToCheckpoint != 1 || op.FromCheckpoint != 8 {
		t.Errorf("the rewind is %+v", op)
	}
	if contract := s.status().Contract; contract.Phase != v1alpha1.PhaseResearch {
		t.Errorf("the contract is %+v", contract)
	}
}

// The history alone knows that the attempt has carried the operation out whose pod nobody saw: what its agent has made
// since is of the new try.
func TestNoOtherAttemptCarriesOnBeforeTheHistorySaysWhichOneHas(t *testing.T) {
	s := supervising(t)
	s.o.Children = []v1alpha1.Task{childIn("busy", metav1.ConditionUnknown, v1alpha1.ReasonRunning)}
	s.knows(1).after(time.Minute).change(restart("again", v1alpha1.PhaseResearch), builders.Running).step()
	s.wantStarted(2)
	s.o.History.Known = false
	s.o.Attempts.Known, s.o.Attempts.Highest = true, 2
	s.after(time.Minute).podGone()
	s.after(time.Hour).step()
	if p := s.started(); p != nil {
		t.Fatalf("the pod of attempt %d was started", p.Attempt)
	}
	s.o.History.Known, s.o.History.State.Attempt = true, 2
	s.o.History.State.CompletedOperations = []string{daemonapi.OperationKey(daemonapi.OperationResume, "again")}
	s.after(time.Minute).step()
	s.wantStarted(3)
	if op := s.status().Resume; op.MovedIn != 2 || op.Attempt != 3 {
		t.Errorf("the resume is %+v, want it carried out in attempt 2", op)
	}
}
