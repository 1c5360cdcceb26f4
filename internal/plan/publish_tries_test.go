package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

// told returns what the only pod is told that publishes.
func (s *scene) told() daemonapi.PublishConfig {
	s.Helper()
	if len(s.o.Publishers) != 1 {
		s.Fatalf("%d pods publish, want one", len(s.o.Publishers))
	}
	config, err := daemonapi.DecodePublishConfig(s.o.Publishers[0].Spec.Containers[0].Env[0].Value)
	if err != nil {
		s.Fatal(err)
	}
	return config
}

func announced(commit, onto string) daemonapi.PublishResult {
	return daemonapi.PublishResult{NotPushed: true, Reason: v1alpha1.ReasonPushAnnounced, Message: "it is about to be pushed", Ref: somewhere, Commit: commit, Onto: onto}
}

// wantTries fails unless these are the tries in the status, and what the pod is told of them.
func wantTries(t *testing.T, status []v1alpha1.PublishTry, told daemonapi.PublishConfig, want ...v1alpha1.PublishTry) {
	t.Helper()
	if diff := cmp.Diff(want, status); diff != "" {
		t.Errorf("the tries of the status (-want +got):\n%s", diff)
	}
	var tries []int64
	var pushes, unreported []daemonapi.OwnPush
	for _, try := range want {
		if try.Commit == "" {
			tries = append(tries, try.Checkpoint)
			continue
		}
		pushes = append(pushes, daemonapi.OwnPush{Commit: try.Commit, Onto: try.Onto})
		if try.Outcome == v1alpha1.PublishTryUnknown {
			unreported = append(unreported, daemonapi.OwnPush{Commit: try.Commit, Onto: try.Onto})
		}
	}
	if diff := cmp.Diff([]any{true, tries, pushes, unreported}, []any{told.Announce, told.Tries, told.Announced, told.Unreported}); diff != "" {
		t.Errorf("what the pod is told (-want +got):\n%s", diff)
	}
}

// beingPublished is the scene of a task whose work is being published.
func beingPublished(t *testing.T) *scene {
	t.Helper()
	s := running(t, publishes())
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.told()
	return s
}

func TestWhatAPodMayPushIsOnRecordBeforeItStarts(t *testing.T) {
	s := beingPublished(t)
	first := v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 1}
	wantTries(t, s.status().Publish.Tries, s.told(), first)

	s.step() // it is seen
	s.o.Publishers = nil
	s.step()
	s.after(time.Minute).step()
	wantTries(t, s.status().Publish.Tries, s.told(), first)

	s.publisherEnds(pushed("c1"))
	if diff := cmp.Diff([]v1alpha1.PublishTry{first}, s.status().Publish.Tries); diff != "" {
		t.Errorf("after a push that was reported (-want +got):\n%s", diff)
	}
}

// Whose commit the ref has then, nobody could tell who only knows what was announced.
func TestAnAnnouncedPushMayHaveBeenMadeOnlyIfItsPodDoesNotSayThatItWasNot(t *testing.T) {
	s := beingPublished(t)
	first := v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 1}
	push := v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 1, Commit: "c1", Onto: "theirs"}
	s.publisherEnds(announced("c1", "theirs"))
	s.publisherEnds(daemonapi.PublishResult{Reason: v1alpha1.ReasonRepositoryUnreachable, NotPushed: true, Retryable: true, Ref: somewhere})
	s.after(time.Minute).step()
	wantTries(t, s.status().Publish.Tries, s.told(), first, push)

	s.step() // it is seen
	s.o.Publishers = nil
	s.step()
	s.after(time.Minute).step()
	push.Outcome = v1alpha1.PublishTryUnknown
	wantTries(t, s.status().Publish.Tries, s.told(), first, push)
	s.publisherEnds(announced("c1", "theirs"))
	wantTries(t, s.status().Publish.Tries, s.told(), first, push)
}

// A version that announces nothing may have started them, and pushed over commits of others.
func TestAPodIsNoTryIfAnEarlierOneOfItsCheckpointIsNotOnRecord(t *testing.T) {
	s := beingPublished(t)
	s.step() // it is seen
	s.o.Task.Status.Publish.Tries = nil
	s.o.Publishers = nil
	s.step()
	s.after(time.Minute).step()
	wantTries(t, s.status().Publish.Tries, s.told())
}

func TestAnAnnouncedPushIsMadeByAnotherPodAtOnce(t *testing.T) {
	s := beingPublished(t)
	s.publisherEnds(announced("c1", "theirs"))
	wantTries(t, s.status().Publish.Tries, s.told(), v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 1}, v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 1, Commit: "c1", Onto: "theirs"})
	if p := s.status().Publish; p.Number != 2 || p.Failures != 0 {
		t.Errorf("it is pod %d, after %d failures", p.Number, p.Failures)
	}
	s.publisherEnds(pushed("c1"))
	s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionTrue, v1alpha1.ReasonPublished, "c1")
	s.wantNoPublisher()
}

// The checkpoints of a task that works on must not keep it from being published.
func TestTheAnnouncedCheckpointIsPushedAlthoughThereIsANewerOne(t *testing.T) {
	s := running(t, publishes(func(p *v1alpha1.Publish) { p.When = v1alpha1.PublishCheckpoint }))
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	s.wantPublisher(1, 1, "")
	s.record(v1alpha1.TriggerToolCalls)
	s.publisherEnds(announced("c1", ""))
	s.wantPublisher(2, 1, "")
}

func TestAnAnnouncedCheckpointIsNotPushedOnceTheTaskWasRewound(t *testing.T) {
	s := running(t, publishes(func(p *v1alpha1.Publish) { p.When = v1alpha1.PublishCheckpoint }))
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	s.wantPublisher(1, 1, "")
	s.status().Rewind = &v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationCompleted, FromCheckpoint: 1}
	s.record(v1alpha1.TriggerToolCalls)
	s.publisherEnds(announced("c1", ""))
	s.wantPublisher(2, 2, "")
}

func TestOthersWhoKeepPushingAreGivenTime(t *testing.T) {
	s := beingPublished(t)
	for n := range maxAnnouncements {
		s.publisherEnds(announced("c1", fmt.Sprintf("theirs-%d", n)))
		s.told()
	}
	s.publisherEnds(announced("c1", "theirs-x"))
	s.wantNoPublisher()
	s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionFalse, v1alpha1.ReasonPublishFailed, "others keep pushing")
	s.after(time.Minute).step()
	s.told()
}

func TestTheTriesOfAStatusAreBounded(t *testing.T) {
	var tries []v1alpha1.PublishTry
	for n := range int64(maxTries + 5) {
		tries = addTry(tries, v1alpha1.PublishTry{Ref: somewhere, Checkpoint: n})
		tries = addTry(tries, v1alpha1.PublishTry{Ref: somewhere, Checkpoint: n})
	}
	if len(tries) != maxTries || tries[0].Checkpoint != 5 {
		t.Errorf("there are %d tries from checkpoint %d on", len(tries), tries[0].Checkpoint)
	}
}

func TestATryIsOnRecordWithAllPushesOfItsCheckpointOrNotAtAll(t *testing.T) {
	first := v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 5}
	for name, tt := range map[string]struct{ lost, kept bool }{"none was made": {lost: false, kept: true}, "any may have been made": {lost: true, kept: false}} {
		t.Run(name, func(t *testing.T) {
			tries := begin(nil, first, true)
			for n := range maxTries + 5 {
				tries, _ = announce(tries, 5, announced("c5", fmt.Sprintf("theirs-%d", n)))
				tries = begin(afterPod(tries, daemonapi.PublishResult{NotPushed: !tt.lost}), first, false)
			}
			if got := slices.Contains(tries, first); len(tries) != maxTries || got != tt.kept {
				t.Errorf("there are %d tries, and that there are no others is on record: %v, want %v", len(tries), got, tt.kept)
			}
			tries = begin(tries, v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 6}, true)
			if tt.lost && (len(tries) != 1 || tries[0].Checkpoint != 6) {
				t.Errorf("of the checkpoint before there are %+v", tries)
			}
		})
	}
}

func TestWhatAPodMayPushOfABranchIsOnRecordBeforeItStarts(t *testing.T) {
	s := pushing(t, "a").step()
	first := v1alpha1.PublishTry{Ref: "refs/heads/a", Checkpoint: 4}
	wantTries(t, s.origin(0).Tries, s.told(), first)
	s.step() // it is seen
	s.o.Publishers = nil
	s.step()
	s.now = s.now.Add(time.Minute)
	s.step()
	wantTries(t, s.origin(0).Tries, s.told(), first)

	push := daemonapi.PublishResult{Reason: v1alpha1.ReasonPushAnnounced, NotPushed: true, Ref: "refs/heads/a", Commit: "c1", Onto: "theirs"}
	s.ends(push)
	wantTries(t, s.origin(0).Tries, s.told(), first, v1alpha1.PublishTry{Ref: "refs/heads/a", Checkpoint: 4, Commit: "c1", Onto: "theirs"})
	s.ends(at("refs/heads/a", "c1"))
	if diff := cmp.Diff([]v1alpha1.PublishTry{first}, s.origin(0).Tries); diff != "" {
		t.Errorf("after a push that was reported (-want +got):\n%s", diff)
	}
	for _, e := range s.events[1:] {
		if e.Reason == v1alpha1.EventBranchNotPublished {
			t.Errorf("an announcement counts as a failure: %+v", e)
		}
	}
}

func TestABranchThatOthersKeepMovingIsGivenTime(t *testing.T) {
	s := pushing(t, "a").step()
	for n := range maxAnnouncements + 1 {
		s.ends(daemonapi.PublishResult{Reason: v1alpha1.ReasonPushAnnounced, Ref: "refs/heads/a", Commit: "c1", Onto: fmt.Sprintf("theirs-%d", n)})
	}
	s.wantNoPod()
	s.want(0, v1alpha1.ReasonPublishFailed, "others keep pushing")
}

// A status that was lost knows of no pod that announced a push, and of none that made it.
func TestATryIsOnRecordOnlyIfTheStatusWouldKnowOfOthers(t *testing.T) {
	first := v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 1}
	for name, tt := range map[string]struct {
		change func(*scene)
		want   []v1alpha1.PublishTry
	}{
		"its own checkpoint":            {func(*scene) {}, []v1alpha1.PublishTry{first}},
		"a checkpoint of a former task": {func(s *scene) { s.o.History.State.Latest.Attempt = 7 }, nil},
		"an older copy, of an earlier pod": {func(s *scene) {
			s.o.Publication.Found = &history.Publication{Ref: somewhere, Commit: "c0", Number: 3}
		}, nil},
		"an older copy, of the same attempt": {func(s *scene) { s.after(time.Hour) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t, publishes(everyCheckpoint))
			s.record(v1alpha1.TriggerToolCalls)
			tt.change(s)
			s.step()
			wantTries(t, s.status().Publish.Tries, s.told(), tt.want...)
		})
	}
}

func TestAnAdoptedCheckpointIsNotTakenForNeverPublished(t *testing.T) {
	s := newScene(t, adopting, publishes()).adoptedFrom("former", v1alpha1.TriggerCompletion)
	s.o.History.State.Latest.Time = s.now
	s.step()
	wantTries(t, s.status().Publish.Tries, s.told())
}

func TestTheTriesOfAnOlderCopyMayBeMoreThanItKnows(t *testing.T) {
	s := beingPublished(t)
	s.publisherEnds(announced("c1", "theirs"))
	s.publisherEnds(daemonapi.PublishResult{Reason: v1alpha1.ReasonRepositoryUnreachable, NotPushed: true, Retryable: true, Ref: somewhere})
	s.o.Publication.Found = &history.Publication{Ref: somewhere, Commit: "c0", Number: 5}
	s.after(time.Minute).step()
	wantTries(t, s.status().Publish.Tries, s.told(), v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 1, Commit: "c1", Onto: "theirs", Outcome: v1alpha1.PublishTryUnknown})
}

func TestAPodThatIsForgottenMayHavePushed(t *testing.T) {
	s := beingPublished(t)
	s.publisherEnds(announced("c1", "theirs"))
	s.step() // it is seen
	s.o.Publishers = nil
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish = nil }).step()
	want := []v1alpha1.PublishTry{{Ref: somewhere, Checkpoint: 1}, {Ref: somewhere, Checkpoint: 1, Commit: "c1", Onto: "theirs", Outcome: v1alpha1.PublishTryUnknown}}
	if diff := cmp.Diff(want, s.status().Publish.Tries); diff != "" {
		t.Errorf("the tries of the status (-want +got):\n%s", diff)
	}
}

func TestATryOfABranchIsOnRecordOnlyIfTheStatusWouldKnowOfOthers(t *testing.T) {
	first := v1alpha1.PublishTry{Ref: "refs/heads/a", Checkpoint: 4}
	for name, tt := range map[string]struct {
		change func(*branchScene)
		want   []v1alpha1.PublishTry
	}{
		"its own checkpoint":            {func(*branchScene) {}, []v1alpha1.PublishTry{first}},
		"a checkpoint of a former task": {func(s *branchScene) { s.o.Task.Status.Attempts = nil }, nil},
		"a checkpoint of long ago":      {func(s *branchScene) { s.now = s.now.Add(time.Hour) }, nil},
		"a branch that was taken away meanwhile": {func(s *branchScene) {
			s.step().told()
			branches := s.o.Checkpoint.Spec.Branches
			s.o.Checkpoint.Spec.Branches = nil
			s.step().wantNoPod()
			s.o.Checkpoint.Spec.Branches = branches
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := pushing(t, "a")
			tt.change(s)
			s.step()
			wantTries(t, s.origin(0).Tries, s.told(), tt.want...)
		})
	}
}

// The manager is killed after it has created the pod, which pushes, and is deleted before the next
// manager looks.
func TestThePodOfAnotherManagerThatIsGoneMayHavePushed(t *testing.T) {
	s := beingPublished(t)
	first := v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 1}
	push := v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 1, Commit: "c1", Onto: "theirs", Outcome: v1alpha1.PublishTryUnknown}
	s.publisherEnds(announced("c1", "theirs"))
	s.status().Publish.PodUID, s.o.Publishers = "", nil
	s.managerRestarts().step()
	s.wantPublisher(3, 1, "")
	wantTries(t, s.status().Publish.Tries, s.told(), first, push)
	if p := s.status().Publish; p.Failures != 0 {
		t.Errorf("it counts as %d failures", p.Failures)
	}
}

func TestThePodOfABranchThatIsGoneMayHavePushed(t *testing.T) {
	first := v1alpha1.PublishTry{Ref: "refs/heads/a", Checkpoint: 4}
	push := v1alpha1.PublishTry{Ref: "refs/heads/a", Checkpoint: 4, Commit: "c1", Onto: "theirs"}
	begun := func(t *testing.T) *branchScene {
		s := pushing(t, "a").step()
		s.ends(daemonapi.PublishResult{Reason: v1alpha1.ReasonPushAnnounced, NotPushed: true, Ref: push.Ref, Commit: "c1", Onto: "theirs"})
		s.o.Publishers = nil
		return s
	}
	t.Run("unless this process knows that it was never created", func(t *testing.T) {
		s := begun(t)
		s.o.Reserved = s.origin(0).PodName
		s.step()
		wantTries(t, s.origin(0).Tries, s.told(), first, push)
		if got := s.origin(0).Number; got != 2 {
			t.Errorf("it is pod %d, want the same", got)
		}
	})
	s := begun(t).step()
	push.Outcome = v1alpha1.PublishTryUnknown
	wantTries(t, s.origin(0).Tries, s.told(), first, push)
	if o := s.origin(0); o.Number != 3 || o.Failures != 0 {
		t.Errorf("it is pod %d, after %d failures", o.Number, o.Failures)
	}
}

// Between the two pods the history store may not answer.
func TestAPushThatIsAnnouncedIsAboutToBeMade(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonPushAnnounced, v1alpha1.ReasonPublishPending} { // that of an earlier version's pod
		t.Run(reason, func(t *testing.T) {
			s := beingPublished(t)
			s.o.Publication.Known = false
			result := announced("c1", "theirs")
			result.Reason = reason
			s.publisherEnds(result)
			s.wantNoPublisher()
			s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionUnknown, v1alpha1.ReasonPushAnnounced, "about to be pushed")
			s.status().Publish.Reason = reason // an earlier version has written it
			s.o.Publication.Known = true
			s.step()
			s.wantPublisher(2, 1, "")
		})
	}
}
