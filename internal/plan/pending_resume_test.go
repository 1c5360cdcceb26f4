package plan

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// The rewind waits for the history store, and the resume for the rewind: the agent must not go on before
// both, from where nobody wants it to.
func TestAResumeWaitsSuspendedForAPendingRewind(t *testing.T) {
	prompted := func(t *v1alpha1.Task) { t.Spec.Resume.Prompt = "The other way." }
	for name, resume := range map[string][]builders.TaskOption{
		"from a checkpoint": {builders.Resume("on"), fromNumber(1), prompted},
		"with a prompt":     {builders.Resume("on"), prompted},
	} {
		t.Run(name, func(t *testing.T) {
			s := atRestTask(t)
			s.o.Attempts = Attempts{Known: true, Highest: 1}
			s.o.History.Known = false
			s.rewind("back", 1).change(func(t *v1alpha1.Task) {
				t.Spec.Rewind.To = v1alpha1.RewindTarget{CheckpointNumber: ptr.To[int64](1)}
			}).step()
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationPending, v1alpha1.ReasonHistoryUnavailable)
			s.change(append(resume, builders.Running)...).step()
			if p := s.started(); p != nil {
				t.Errorf("the agent is started where it is: %+v, operation %+v", p, p.Operation)
			}
			s.wantOperation(s.status().Resume, "on", v1alpha1.OperationPending, v1alpha1.ReasonHistoryUnavailable)
			s.wantMessage(s.status().Resume.Message, "follows the rewind back")
			s.step()

			s.o.History.Known = true
			s.o.RewindRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 1, Commit: "c1"}}
			s.o.ResumeRecord = s.o.RewindRecord
			s.after(time.Minute).step()
			if p := s.wantStarted(2); !p.PrepareOnly {
				t.Error("the agent is started before the resume")
			}
			s.prepared(rewoundTo("back"))
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
			s.wantOperation(s.status().Resume, "on", v1alpha1.OperationInProgress, "")
			s.wantStarted(3)
		})
	}
}
