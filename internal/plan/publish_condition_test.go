package plan

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// wantPublished fails unless the condition Published is about the current generation, and has
// this status and reason, and a message with all of the given parts.
func (s *scene) wantPublished(status metav1.ConditionStatus, reason string, parts ...string) {
	s.Helper()
	s.wantStatus(v1alpha1.TaskPublished, status, reason, parts...)
	if c := s.wantCondition(v1alpha1.TaskPublished); c.ObservedGeneration != s.o.Task.Generation {
		s.Errorf("the condition is about generation %d, want %d", c.ObservedGeneration, s.o.Task.Generation)
	}
}

const whereFirst = "checkpoint 1 is at refs/heads/clew/work as c1"

func TestATaskThatWorksOnIsNotPublished(t *testing.T) {
	s := completedTask(t, publishes())
	s.publisherEnds(pushed("c1"))
	s.wantPublished(metav1.ConditionTrue, v1alpha1.ReasonPublished, whereFirst)
	s.change(builders.Resume("more"), func(t *v1alpha1.Task) { t.Spec.Resume.Prompt = "go on" }).step()
	s.wantPublished(metav1.ConditionUnknown, v1alpha1.ReasonPublishPending, "when it is completed", whereFirst)
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.Branch = "another" }).step()
	s.wantPublished(metav1.ConditionUnknown, v1alpha1.ReasonPublishPending, "when it is completed", whereFirst)
}

func TestNewerCheckpointsAreNotPublishedUntilTheIntervalHasPassed(t *testing.T) {
	s := running(t, publishes(everyCheckpoint))
	begun := s.now
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	s.publisherEnds(pushed("c1"))
	s.wantPublished(metav1.ConditionTrue, v1alpha1.ReasonPublished, whereFirst)
	s.record(v1alpha1.TriggerToolCalls)
	s.after(time.Minute).step()
	s.wantPublished(metav1.ConditionUnknown, v1alpha1.ReasonPublishPending,
		"newer checkpoints are published from "+begun.Add(s.o.Limits.PublishEvery).Format(time.RFC3339), whereFirst)
	before := s.wantCondition(v1alpha1.TaskPublished)
	s.record(v1alpha1.TriggerToolCalls)
	s.after(time.Minute).step()
	if after := s.wantCondition(v1alpha1.TaskPublished); after != before {
		t.Errorf("another checkpoint changed the condition from %+v to %+v", before, after)
	}
}

func TestARefusalHoldsUntilTheNextCheckpointIsPublished(t *testing.T) {
	s := running(t, publishes(everyCheckpoint))
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	s.publisherEnds(daemonapi.PublishResult{Reason: v1alpha1.ReasonDiverged, Message: "others have pushed"})
	s.record(v1alpha1.TriggerToolCalls)
	s.after(time.Minute).step()
	s.wantNoPublisher()
	s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonDiverged, "others have pushed")
}

func TestATaskThatChangedNothingIsPublished(t *testing.T) {
	s := completedTask(t, publishes())
	s.publisherEnds(daemonapi.PublishResult{Reason: v1alpha1.ReasonNothingToPublish, Message: "checkpoint 1 has nothing new"})
	s.wantPublished(metav1.ConditionTrue, v1alpha1.ReasonNothingToPublish, "checkpoint 1 has nothing new")
	s.after(time.Hour).step()
	s.wantNoPublisher()
}

func TestPublishingWaitsForTheGitStoreAndTheHistory(t *testing.T) {
	for name, lose := range map[string]func(s *scene){
		"not durable":     func(s *scene) { s.o.History.State.Latest.Durable = false },
		"history unknown": func(s *scene) { s.o.History = History{} },
	} {
		t.Run(name, func(t *testing.T) {
			s := completedTask(t, publishes())
			s.publisherEnds(pushed("c1"))
			s.managerRestarts().change(func(t *v1alpha1.Task) { t.Spec.Publish.Branch = "another" })
			lose(s)
			s.step()
			s.wantNoPublisher()
			s.wantPublished(metav1.ConditionUnknown, v1alpha1.ReasonPublishPending, "once the gitstore and the history store have it", whereFirst)
		})
	}
}

func TestWhatIsPublishedStaysSoWithoutTheHistory(t *testing.T) {
	s := completedTask(t, publishes())
	s.publisherEnds(pushed("c1"))
	s.o.History = History{}
	s.step()
	s.wantPublished(metav1.ConditionTrue, v1alpha1.ReasonPublished, whereFirst)
}

// inHistory makes the history store know of a publication by the pod with number 7.
func (s *scene) inHistory(commit, onto string) {
	s.o.Publication.Found = &history.Publication{Ref: somewhere, Commit: commit, Onto: onto, Checkpoint: 1, Number: 7}
}

// After etcd was restored, the status has what was published earlier or nothing.
func TestWhatTheHistorySaysWasPublishedIsReplaced(t *testing.T) {
	for name, restore := range map[string]func(*v1alpha1.TaskStatus){
		"the status has nothing": func(s *v1alpha1.TaskStatus) { s.Publish = nil },
		"it is an older copy":    func(s *v1alpha1.TaskStatus) { s.Publish.Request = "v1.older.older" },
		"it has another ref": func(s *v1alpha1.TaskStatus) {
			s.Publish.Request, s.Publish.Ref = "v1.older.older", "refs/heads/another"
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := completedTask(t, publishes())
			s.publisherEnds(pushed("c1"))
			restore(s.status())
			s.inHistory("c2", "theirs")
			s.managerRestarts().step()
			s.wantKnown("c2", "theirs")
		})
	}
}

func TestWhatAFormerTaskHasPublishedIsNoNewEntry(t *testing.T) {
	for commit, entries := range map[string]int{"c1": 0, "c2": 1} {
		s := running(t, publishes())
		s.inHistory("c1", "")
		s.record(v1alpha1.TriggerCompletion)
		s.agentExits(0)
		s.podFinishes()
		s.publisherEnds(pushed(commit))
		s.wantPublished(metav1.ConditionTrue, v1alpha1.ReasonPublished, "checkpoint 1 is at refs/heads/clew/work as "+commit)
		if got := s.entries(v1alpha1.EventTaskPublished); len(got) != entries {
			t.Errorf("%s: the entries are %+v", commit, got)
		}
	}
}

// wantKnown fails unless the only pod that publishes, whose number is above all that are known,
// takes the commit for one that the task has pushed.
func (s *scene) wantKnown(commit, onto string) {
	s.Helper()
	if len(s.o.Publishers) != 1 || s.o.Publishers[0].Name != resources.PublisherName(s.o.Task.Name, 8) {
		s.Fatalf("%d pods publish, want one with the number 8", len(s.o.Publishers))
	}
	config, err := daemonapi.DecodePublishConfig(s.o.Publishers[0].Spec.Containers[0].Env[0].Value)
	if err != nil {
		s.Fatal(err)
	}
	known := append(config.Earlier, daemonapi.OwnPush{Commit: config.Replaces, Onto: config.Onto})
	if !slices.Contains(known, daemonapi.OwnPush{Commit: commit, Onto: onto}) {
		s.Errorf("the pod knows of %v, want %s onto %q", known, commit, onto)
	}
}

// Either store may be an older copy, and a manager of an earlier version writes only one of them.
func TestWhatEitherOfStatusAndHistorySaysWasPublishedIsReplaced(t *testing.T) {
	s := completedTask(t, publishes())
	s.inHistory("c0", "theirs")
	s.after(time.Hour).publisherEnds(pushed("c1"))
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.ID = "again" }).step()
	s.wantKnown("c0", "theirs")
	s.wantKnown("c1", "")
}

func TestNothingIsPublishedUntilTheHistoryHasSaidWhatWas(t *testing.T) {
	s := completedTask(t, publishes())
	s.publisherEnds(pushed("c1"))
	s.o.Publication.Known = false
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.ID = "again" }).step()
	s.wantNoPublisher()
	s.wantPublished(metav1.ConditionUnknown, v1alpha1.ReasonPublishPending, "the history store")
	s.o.Publication.Known = true
	s.step()
	s.wantPublisher(2, 1, "c1")
}

// What is asked for is compared by what it says: this is what status.publish of every task has.
func TestARequestStaysTheSameInLaterVersions(t *testing.T) {
	for want, spec := range map[string]v1alpha1.Publish{
		"v1.ac8d7a403623a4824c2050eb.74234e98afe7498fb5daf1f3": {Branch: "clew/work"},
		"v1.69426e843d8ff8cda5e39c86.36d556e61f4f37938f4a020a": {Branch: "clew/work", ID: "again", When: v1alpha1.PublishCheckpoint, Uncommitted: v1alpha1.PublishIgnore, OnDiverged: v1alpha1.DivergedForceWithLease,
			Message: "Fix it", Author: &v1alpha1.CommitAuthor{Name: "Bot", Email: "bot@example.com"}, PushOptions: []string{"merge_request.create"},
			ProtectedPaths: []string{}, ApprovedCommit: "c0ffee"},
	} {
		if got := requestOf(&spec).String(); got != want {
			t.Errorf("the request of %+v is %s, want %s", spec, got, want)
		}
	}
}

func TestDefaultsAreNoPartOfARequest(t *testing.T) {
	defaulted := v1alpha1.Publish{Branch: "clew/work", When: v1alpha1.PublishCompleted, Uncommitted: v1alpha1.PublishCommit, OnDiverged: v1alpha1.DivergedFail}
	if bare := (v1alpha1.Publish{Branch: "clew/work"}); requestOf(&defaulted) != requestOf(&bare) {
		t.Error("the schema's defaults change the request")
	}
}

func TestEveryFieldThatMattersIsPartOfTheRequest(t *testing.T) {
	plain := requestOf(&v1alpha1.Publish{Branch: "clew/work"})
	for name, c := range map[string]struct {
		spec    v1alpha1.Publish
		content bool
	}{
		"branch":         {v1alpha1.Publish{Branch: "another"}, true},
		"id":             {v1alpha1.Publish{Branch: "clew/work", ID: "again"}, true},
		"uncommitted":    {v1alpha1.Publish{Branch: "clew/work", Uncommitted: v1alpha1.PublishIgnore}, true},
		"message":        {v1alpha1.Publish{Branch: "clew/work", Message: "Fix it"}, true},
		"author":         {v1alpha1.Publish{Branch: "clew/work", Author: &v1alpha1.CommitAuthor{Name: "Bot", Email: "bot@example.com"}}, true},
		"pushOptions":    {v1alpha1.Publish{Branch: "clew/work", PushOptions: []string{"ci.skip"}}, true},
		"onDiverged":     {v1alpha1.Publish{Branch: "clew/work", OnDiverged: v1alpha1.DivergedForceWithLease}, false},
		"protectedPaths": {v1alpha1.Publish{Branch: "clew/work", ProtectedPaths: []string{}}, false},
		"approvedCommit": {v1alpha1.Publish{Branch: "clew/work", ApprovedCommit: "c1"}, false},
	} {
		got := requestOf(&c.spec)
		if got == plain {
			t.Errorf("%s is not part of the request", name)
		}
		if changed := got.content != plain.content; changed != c.content {
			t.Errorf("%s changes what is pushed: %v, want %v", name, changed, c.content)
		}
	}
}

func TestConsentIsNoReasonToPublishAgain(t *testing.T) {
	s := completedTask(t, publishes())
	s.publisherEnds(pushed("c1"))
	s.change(func(t *v1alpha1.Task) {
		t.Spec.Publish.OnDiverged, t.Spec.Publish.ProtectedPaths = v1alpha1.DivergedForceWithLease, []string{"ci/"}
	}).step()
	s.wantNoPublisher()
	s.wantPublished(metav1.ConditionTrue, v1alpha1.ReasonPublished, whereFirst)
}

// The next version of Clew may identify requests in another way.
func TestAnUpgradePublishesNothingAgain(t *testing.T) {
	s := completedTask(t, publishes())
	s.publisherEnds(pushed("c1"))
	p := s.status().Publish
	p.Request, p.Reason = "0123456789abcdef0123456789abcdef", ""
	s.managerRestarts().step()
	s.wantNoPublisher()
	s.wantPublished(metav1.ConditionTrue, v1alpha1.ReasonPublished, whereFirst)
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.ID = "again" }).step()
	s.wantPublisher(2, 1, "c1")
}

func unreachable() daemonapi.PublishResult {
	return daemonapi.PublishResult{Reason: v1alpha1.ReasonRepositoryUnreachable, Message: "no route", Retryable: true}
}

func TestPublishingIsTriedForADay(t *testing.T) {
	s := completedTask(t, publishes())
	begun := s.now
	for s.now.Sub(begun) < publishFor {
		s.publisherEnds(unreachable())
		s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonRepositoryUnreachable, "no route; trying again")
		s.after(s.status().Publish.RetryTime.Sub(s.now)).step()
	}
	s.publisherEnds(unreachable())
	s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonRepositoryUnreachable, "no route; it is not tried again: remove the cause, then request it again")
	s.after(24 * time.Hour).step()
	s.wantNoPublisher()
	if e := s.entries(v1alpha1.EventTaskNotPublished); len(e) != 2 {
		t.Errorf("the entries are %+v, want one about the first failure and one about the last", e)
	}
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.ID = "again" }).step()
	s.publisherEnds(unreachable())
	s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonRepositoryUnreachable, "trying again")
}

func TestAnUnknownFailureIsTriedTenTimes(t *testing.T) {
	s := completedTask(t, publishes())
	unknown := daemonapi.PublishResult{Reason: v1alpha1.ReasonPublishFailed, Message: "git was killed", Retryable: true}
	for range maxUnknownFailures - 1 {
		s.publisherEnds(unknown)
		s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonPublishFailed, "git was killed; trying again")
		s.after(s.o.Limits.RetryCap).step()
	}
	s.publisherEnds(unknown)
	s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonPublishFailed, "git was killed; it is not tried again")
	s.after(time.Hour).step()
	s.wantNoPublisher()
}

func TestAfterTheLastTryTheNextCheckpointIsTriedOnce(t *testing.T) {
	s := running(t, publishes(everyCheckpoint))
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	s.publisherEnds(unreachable())
	s.after(publishFor).step()
	s.publisherEnds(unreachable())
	s.record(v1alpha1.TriggerToolCalls)
	s.after(s.o.Limits.PublishEveryCap).step()
	s.wantPublisher(3, 2, "")
	s.publisherEnds(unreachable())
	s.after(publishFor).step()
	s.wantNoPublisher()
}
