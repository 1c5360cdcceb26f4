package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func adopting(t *v1alpha1.Task) { t.Spec.Adopt = v1alpha1.AdoptLatest }

// adoptedFrom makes the task's history one that it has just adopted, after 3 attempts and 2
// checkpoints.
func (s *scene) adoptedFrom(former string, trigger v1alpha1.CheckpointTrigger) *scene {
	s.o.Adoption = Adoption{Known: true, Adoption: history.Adoption{Former: former, Done: true}}
	s.o.History.State = history.TaskState{
		Attempt: 3, LastSequence: 9, CheckpointCount: 2,
		Latest: &history.Checkpoint{Number: 2, Attempt: 3, Trigger: string(trigger), Commit: "c2", Durable: true},
	}
	return s
}

func TestNothingStartsBeforeItIsKnownWhatToAdopt(t *testing.T) {
	s := newScene(t, adopting)
	s.step()
	s.wantState(v1alpha1.ReasonHistoryUnavailable)
	if len(s.o.Pods) > 0 || s.o.Claim != nil {
		t.Error("something was made")
	}
}

func TestATaskWithNothingToAdoptStartsAnewAndSaysSo(t *testing.T) {
	s := newScene(t, adopting)
	s.o.Adoption = Adoption{Known: true}
	s.step()
	s.wantPod(Pod{Attempt: 1})
	s.wantEntries(v1alpha1.EventNothingAdopted, v1alpha1.EventTaskStarted)
	if a := s.status().Adoption; a == nil || a.TaskUID != "" {
		t.Errorf("the status says %+v", a)
	}
	s.o.Adoption = Adoption{Known: true, Adoption: history.Adoption{Former: "late"}}
	s.step()
	if s.status().Adoption.TaskUID != "" {
		t.Error("a task that has started adopts something")
	}
}

func TestATaskWaitsForTheGrantOfAHistoryUnlessItStartsAnew(t *testing.T) {
	s := newScene(t, adopting)
	s.o.Adoption = Adoption{Known: true, Elsewhere: true}
	if p := Decide(s.o, s.now); p.RequeueAfter == 0 {
		t.Error("nobody looks whether it was granted")
	}
	s.step()
	s.wantState(v1alpha1.ReasonHistoryNotGranted)
	if len(s.o.Pods) > 0 || s.status().Adoption != nil {
		t.Error("it was decided what to adopt")
	}
	s.o.Task.Spec.Adopt = v1alpha1.AdoptNever
	s.step()
	s.wantStarted(1)
}

func TestOperationsOfATaskThatAdoptsNothingAreNotApplicable(t *testing.T) {
	s := newScene(t, adopting, builders.Rewind("r", "tidy-up-1"), builders.Resume("s"))
	s.step() // waits for the history store
	s.o.Adoption = Adoption{Known: true}
	s.step()
	for kind, o := range map[string]*v1alpha1.OperationStatus{"rewind": s.status().Rewind, "resume": s.status().Resume} {
		if o == nil || o.State != v1alpha1.OperationNotApplicable {
			t.Errorf("the %s is %+v", kind, o)
		}
	}
}

func TestAHistoryIsAdoptedBeforeAnythingElse(t *testing.T) {
	s := newScene(t, adopting)
	s.o.Adoption = Adoption{Known: true, Adoption: history.Adoption{Former: "former"}}
	p := Decide(s.o, s.now)
	if p.Adopt != "former" || p.StartPod != nil || p.CreateClaim || p.RequeueAfter == 0 {
		t.Errorf("the plan is %+v", p)
	}
}

func TestATaskNamesTheFormerOnesWhoseHistoryItContinues(t *testing.T) {
	s := newScene(t, adopting)
	earlier := make([]string, 20)
	for i := range earlier {
		earlier[i] = fmt.Sprint("earlier-", i)
	}
	s.o.Adoption = Adoption{Known: true, Adoption: history.Adoption{Former: "former", Done: true}, Earlier: earlier}
	s.step()
	if got := s.status().Adoption.FormerUIDs(); len(got) != 17 || got[0] != "former" || got[16] != "earlier-15" {
		t.Errorf("they are %q", got)
	}
}

// The gitstore is not asked again at once, nor is the status written each time that its sentence has
// other numbers.
func TestATaskWaitsForTheCheckpointsOfWhatItHasAdopted(t *testing.T) {
	s := newScene(t, adopting)
	waits := func(reason, message, want string) {
		t.Helper()
		s.o.Adoption = Adoption{Known: true, Adoption: history.Adoption{Former: "former"}, Code: &CodeProblem{Reason: reason, Message: message}}
		if p := Decide(s.o, s.now); p.Adopt != "" || p.RequeueAfter != s.o.Limits.RetryBase {
			t.Errorf("%+v", p)
		}
		s.step()
		s.wantState(v1alpha1.ReasonPending)
		if c := meta.FindStatusCondition(s.status().Conditions, v1alpha1.TaskSucceeded); !strings.HasSuffix(c.Message, want) {
			t.Errorf("the message is %q, want %q", c.Message, want)
		}
	}
	waits("QuotaExceeded", "they take 7 bytes", "QuotaExceeded: they take 7 bytes")
	waits("QuotaExceeded", "they take 8 bytes", "QuotaExceeded: they take 7 bytes")
	waits("VolumeFull", "9 bytes are free", "VolumeFull: 9 bytes are free")
	waits("", "", "does not answer, or has not finished")
	if len(s.o.Pods) > 0 || s.status().Adoption != nil {
		t.Error("the task has started")
	}
}

func TestAnAdoptedTaskGoesOnWithItsNextAttempt(t *testing.T) {
	s := newScene(t, adopting).adoptedFrom("former", v1alpha1.TriggerToolCalls)
	s.step()
	s.wantPod(Pod{Attempt: 4})
	s.wantEntries(v1alpha1.EventTaskAdopted, v1alpha1.EventTaskResumed)
	if a := s.status().Adoption; a == nil || a.TaskUID != "former" {
		t.Errorf("the status says %+v", a)
	}
}

func TestAnAdoptedTaskThatHadCompletedIsNotRunAgain(t *testing.T) {
	s := newScene(t, adopting, builders.Rewind("r", "tidy-up-1"), builders.Resume("s")).adoptedFrom("former", v1alpha1.TriggerCompletion)
	s.o.Adoption.Operations = []string{"Rewind/r/done", "Resume/s"}
	s.o.History.State.CompletedOperations = []string{"Rewind/r", "Rewind/r/done", "Resume/s"}
	s.step()
	if got := s.status().HandledOperations; !slices.Equal(got, []string{"Rewind/r", "Resume/s"}) {
		t.Errorf("the operations that came along are %v", got)
	}
	s.wantState(v1alpha1.ReasonCompleted)
	if len(s.o.Pods) > 0 {
		t.Error("a pod was made")
	}
	s.wantMessage(meta.FindStatusCondition(s.status().Conditions, v1alpha1.TaskSucceeded).Message, "an attempt of the former task")
}

// TestOperationsHappenOnceAcrossAnAdoption: what the former task carried out is not carried
// out again, however long ago it was; the rest is.
func TestOperationsHappenOnceAcrossAnAdoption(t *testing.T) {
	for name, test := range map[string]struct {
		ended  []string
		rewind v1alpha1.OperationState
		resume v1alpha1.OperationState
	}{
		"both":        {[]string{"Rewind/r/done", "Resume/s"}, v1alpha1.OperationCompleted, v1alpha1.OperationCompleted},
		"undone":      {[]string{"Rewind/r/undone", "Resume/s"}, v1alpha1.OperationFailed, v1alpha1.OperationCompleted},
		"none":        {nil, v1alpha1.OperationInProgress, ""},
		"rewind only": {[]string{"Rewind/r/done"}, v1alpha1.OperationCompleted, v1alpha1.OperationInProgress},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, adopting, builders.Resume("s"), func(t *v1alpha1.Task) {
				number := int64(1)
				t.Spec.Rewind = &v1alpha1.Rewind{ID: "r", To: v1alpha1.RewindTarget{CheckpointNumber: &number}, Scope: v1alpha1.RewindBoth, Preserve: v1alpha1.PreserveBranch}
			}).adoptedFrom("former", v1alpha1.TriggerToolCalls)
			s.o.RewindRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 1, Commit: "c1", Durable: true}}
			s.o.Adoption.Operations = test.ended
			s.o.History.State.CompletedOperations = []string{"Rewind/old", "Rewind/old/done", "Resume/old", "Restore/3-uid"}
			s.step()
			state := func(o *v1alpha1.OperationStatus) v1alpha1.OperationState {
				if o == nil {
					return ""
				}
				return o.State
			}
			if rewind, resume := state(s.status().Rewind), state(s.status().Resume); rewind != test.rewind || resume != test.resume {
				t.Errorf("the rewind is %q, want %q; the resume is %q, want %q", rewind, test.rewind, resume, test.resume)
			}
			if kept := slices.Compact(slices.Sorted(slices.Values(s.status().HandledOperations))); len(kept) != len(s.status().HandledOperations) {
				t.Errorf("an operation is listed twice: %v", s.status().HandledOperations)
			}
			for _, key := range []string{"Rewind/old", "Resume/old"} {
				if !slices.Contains(s.status().HandledOperations, key) {
					t.Errorf("%s does not come along: %v", key, s.status().HandledOperations)
				}
			}
			s.wantStarted(4)
		})
	}
}

// Whoever was led by it then has followed the former task.
func TestARewindToASetThatTheFormerTaskHasEndedLeadsNobody(t *testing.T) {
	s := newScene(t, adopting, supervisor("")).adoptedFrom("former", v1alpha1.TriggerToolCalls)
	s.o.Contract.Room = true
	s.toSet("back", v1alpha1.SetTogether)
	s.o.Adoption.Operations = []string{daemonapi.OperationDoneKey(daemonapi.OperationRewind, "back")}
	s.step()
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
	if s.status().SetRewind != nil || RelationsOf(s.o.Task).Rewind != "" {
		t.Errorf("its children follow: %+v", s.status().SetRewind)
	}
}

// forkedFrom makes the task one that a Fork has made.
func forkedFrom(fork string) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		builders.StartFrom("source", "")(t)
		t.Spec.StartFrom.Fork = &v1alpha1.ForkOrigin{Name: fork, UID: "uid-of-fork"}
	}
}

func TestATaskThatStartsFromAnotherAdoptsWithoutItsSource(t *testing.T) {
	start := history.Start{Fork: "try", TaskUID: "uid-of-source", Checkpoint: 5, Commit: "c5", Position: 12}
	for name, option := range map[string]builders.TaskOption{"of a Fork": forkedFrom("try"), "by itself": builders.StartFrom("source", "")} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, adopting, option).adoptedFrom("former", v1alpha1.TriggerToolCalls)
			s.o.Adoption.Start = start
			s.step() // its source does not exist
			s.wantStarted(4)
			s.wantEntries(v1alpha1.EventTaskAdopted, v1alpha1.EventTaskResumed)
			want := v1alpha1.SourceStatus{TaskUID: "uid-of-source", Checkpoint: 5, Commit: "c5", Position: 12}
			if got := s.status().Source; got == nil || *got != want {
				t.Errorf("it started from %+v", got)
			}
		})
	}
}

func TestATaskOfAForkAdoptsOnlyWhatAForkOfThatNameHasMade(t *testing.T) {
	for name, former := range map[string]history.Start{"made for another Fork": {Fork: "other", TaskUID: "uid"}, "not made for a Fork": {}} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, adopting, forkedFrom("try"))
			s.o.Adoption = Adoption{Known: true, Adoption: history.Adoption{Former: "former", Start: former}}
			if p := Decide(s.o, s.now); p.Adopt != "" {
				t.Errorf("it adopts %s", p.Adopt)
			}
			s.step()
			if a := s.status().Adoption; a == nil || a.TaskUID != "" {
				t.Fatalf("the status says %+v", a)
			}
			s.wantMessage(s.status().Adoption.Message, "was not made for a Fork named try: the task starts from its source")
			s.wantEntries(v1alpha1.EventNothingAdopted)
		})
	}
}
