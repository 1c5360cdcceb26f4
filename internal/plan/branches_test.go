package plan

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// branchScene is a Checkpoint with branches that are decided on again and again.
type branchScene struct {
	*testing.T
	o      ObservedBranches
	now    time.Time
	events []BranchEvent
	after  time.Duration
}

// pushing is the scene of checkpoint 4 of a task with branches that are pushed to its repository.
func pushing(t *testing.T, branches ...string) *branchScene {
	task := builders.Task("fix", builders.WithUID("uid"))
	task.Spec.Repository = &v1alpha1.Repository{URL: "https://git.example.com/p.git"}
	c := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "fix-4", UID: "c4"}}
	now := time.Unix(1_700_000_000, 0)
	c.Spec.TaskRef.Name, c.Status.TaskUID, c.Status.Number = "fix", "uid", 4
	c.Status.Attempt, c.Status.Time = 1, &metav1.Time{Time: now}
	task.Status.Attempts = []v1alpha1.Attempt{{Number: 1, StartTime: c.Status.Time}}
	for _, name := range branches {
		c.Spec.Branches = append(c.Spec.Branches, v1alpha1.CheckpointBranch{Name: name, Push: v1alpha1.PushOrigin})
		c.Status.Branches = append(c.Status.Branches, v1alpha1.CheckpointBranchStatus{Name: name, State: v1alpha1.BranchMade})
	}
	return &branchScene{T: t, now: now, o: ObservedBranches{Checkpoint: c, Task: task, Limits: DefaultLimits()}}
}

// step decides, and does what was decided.
func (s *branchScene) step() *branchScene {
	s.Helper()
	p := DecideBranches(s.o, s.now)
	s.o.Refused, s.o.Reserved, s.after, s.o.Checkpoint.Status.Branches, s.o.Checkpoint.Status.BranchPushes = "", "", p.RequeueAfter, p.Branches, p.Pushes
	s.events = append(s.events, p.Events...)
	for _, ref := range p.StopPods {
		for i := range s.o.Publishers {
			if s.o.Publishers[i].Name == ref.Name {
				s.o.Publishers = append(s.o.Publishers[:i:i], s.o.Publishers[i+1:]...)
				break
			}
		}
	}
	if p.Start != nil {
		if len(s.o.Publishers) > 0 {
			s.Fatalf("a pod was started while %s pushes", s.o.Publishers[0].Name)
		}
		pod, err := resources.NewPublisher(resources.PublisherRequest{
			Task: s.o.Task, Branch: &resources.BranchRequest{Checkpoint: s.o.Checkpoint, Branch: p.Start.Branch},
			Number: p.Start.Number, Checkpoint: p.Start.Checkpoint, Replaces: p.Start.Replaces, Onto: p.Start.Onto, Earlier: p.Start.Earlier, Tries: p.Start.Tries, Announced: p.Start.Announced, Unreported: p.Start.Unreported,
		}, resources.Options{})
		if err != nil {
			s.Fatal(err)
		}
		pod.UID, pod.CreationTimestamp, pod.Status.Phase = types.UID("uid-of-"+pod.Name), metav1.NewTime(s.now), corev1.PodPending
		s.o.Publishers = append(s.o.Publishers, *pod)
	}
	return s
}

// told returns what the only pod is told.
func (s *branchScene) told() daemonapi.PublishConfig {
	s.Helper()
	if len(s.o.Publishers) != 1 {
		s.Fatalf("%d pods push, want one", len(s.o.Publishers))
	}
	config, err := daemonapi.DecodePublishConfig(s.o.Publishers[0].Spec.Containers[0].Env[0].Value)
	if err != nil {
		s.Fatal(err)
	}
	return config
}

// ends ends the only pod with a result, and decides.
func (s *branchScene) ends(result daemonapi.PublishResult) *branchScene {
	s.Helper()
	s.told()
	message, _ := json.Marshal(result)
	pod := &s.o.Publishers[0]
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: daemonapi.PublishContainer, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: string(message)},
	}}}
	return s.step()
}

func (s *branchScene) origin(i int) v1alpha1.OriginBranchStatus {
	s.Helper()
	if s.o.Checkpoint.Status.Branches[i].Origin == nil {
		s.Fatalf("nothing is known of branch %d at the repository", i)
	}
	return *s.o.Checkpoint.Status.Branches[i].Origin
}

// want fails unless a branch has this reason and a message with the part.
func (s *branchScene) want(i int, reason, part string) {
	s.Helper()
	if o := s.origin(i); o.Reason != reason || !strings.Contains(o.Message, part) {
		s.Errorf("branch %d is %s (%s), want %s (%s)", i, o.Reason, o.Message, reason, part)
	}
}

func (s *branchScene) wantNoPod() {
	s.Helper()
	if len(s.o.Publishers) != 0 {
		s.Errorf("the pod %s pushes", s.o.Publishers[0].Name)
	}
}

func at(ref, commit string) daemonapi.PublishResult {
	return daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: ref, Commit: commit, Onto: "theirs", Answer: "https://git.example.com/mr/1"}
}

func TestBranchesArePushedOneAfterTheOther(t *testing.T) {
	s := pushing(t, "a", "refs/for/main").step()
	if got := s.told(); got.Ref != "refs/heads/a" || got.Checkpoint != 4 || len(got.ProtectedPaths) == 0 || got.Setting != "branches[a]" {
		t.Errorf("the pod is told %+v", got)
	}
	s.want(0, v1alpha1.ReasonPublishing, "")
	s.want(1, v1alpha1.ReasonPublishPending, "will be pushed")
	s.step().ends(at("refs/heads/a", "c1"))
	want := v1alpha1.OriginBranchStatus{
		Reason: v1alpha1.ReasonPublished, Message: "checkpoint 4 is at refs/heads/a as c1", Request: s.origin(0).Request, Number: 1,
		Ref: "refs/heads/a", Commit: "c1", Onto: "theirs", Answer: "https://git.example.com/mr/1",
		Tries: []v1alpha1.PublishTry{{Ref: "refs/heads/a", Checkpoint: 4}},
	}
	if diff := cmp.Diff(want, s.origin(0)); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if got := s.told(); got.Ref != "refs/for/main" {
		t.Errorf("then %s is pushed to", got.Ref)
	}
	s.ends(at("refs/for/main", "c1")).wantNoPod()
	if PushesBranches(s.o.Checkpoint) || s.after != 0 {
		t.Error("there is still something to do")
	}
	var told []string
	for _, e := range s.events {
		told = append(told, e.Reason+" "+e.Branch)
	}
	if diff := cmp.Diff([]string{"BranchPublished a", "BranchPublished refs/for/main"}, told); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}

	s.o.Checkpoint.Spec.Branches[0].ID = "again"
	if got := s.step().told(); got.Replaces != "c1" || got.Onto != "theirs" {
		t.Errorf("the second push replaces %q on %q", got.Replaces, got.Onto)
	}
}

// What the Task says of publishing holds for its Checkpoints' branches.
func TestABranchIsPushedAsTheTaskSays(t *testing.T) {
	s := pushing(t, "clew/fix")
	s.o.Task.Spec.Publish = &v1alpha1.Publish{
		Branch: "other", ProtectedPaths: []string{"ci/"}, ApprovedCommit: "of-the-task", OnDiverged: v1alpha1.DivergedForceWithLease,
		Message: "Fix it", Uncommitted: v1alpha1.PublishIgnore, PushOptions: []string{"ci.skip"},
	}
	s.o.Task.Status.Publish = &v1alpha1.PublishStatus{Ref: "refs/heads/clew/fix", Commit: "c0", Onto: "main"}
	s.o.Checkpoint.Spec.Branches[0].ApprovedCommit = "c1"
	got := s.step().told()
	want := daemonapi.PublishConfig{
		Task: "fix", TaskUID: "uid", Namespace: got.Namespace, Checkpoint: 4, GitStoreURL: got.GitStoreURL, Repository: daemonapi.Repository{URL: "https://git.example.com/p.git"},
		Ref: "refs/heads/clew/fix", Message: "Fix it", AuthorName: "Clew", AuthorEmail: "noreply@clew.dev", PushOptions: []string{"ci.skip"},
		ProtectedPaths: []string{"ci/"}, ApprovedCommit: "c1", Replaces: "c0", Onto: "main", Tries: []int64{4}, Announce: true, Setting: "branches[clew/fix]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

func TestABranchThatIsRefusedIsPushedAgainWhenItsEntryChanges(t *testing.T) {
	s := pushing(t, "a").step()
	s.ends(daemonapi.PublishResult{Reason: v1alpha1.ReasonProtectedPaths, Message: "it changes 1 file", Commit: "c1", Protected: []string{"ci/a"}}).wantNoPod()
	s.want(0, v1alpha1.ReasonProtectedPaths, "it changes 1 file")
	if o := s.origin(0); o.HeldCommit != "c1" || len(o.ProtectedFiles) != 1 {
		t.Errorf("%q is held, for %q", o.HeldCommit, o.ProtectedFiles)
	}
	s.step().wantNoPod()
	s.o.Checkpoint.Spec.Branches[0].ApprovedCommit = "c1"
	if got := s.step().told(); got.ApprovedCommit != "c1" {
		t.Errorf("the pod is told that %q is approved", got.ApprovedCommit)
	}
	s.ends(daemonapi.PublishResult{Reason: v1alpha1.ReasonDiverged, Message: "others have pushed"})
	s.want(0, v1alpha1.ReasonDiverged, "others have pushed")
	if o := s.origin(0); o.HeldCommit != "" || o.ProtectedFiles != nil {
		t.Errorf("%q is still held, for %q", o.HeldCommit, o.ProtectedFiles)
	}
}

func TestWhatMayPassIsTriedAgain(t *testing.T) {
	s := pushing(t, "a")
	s.step().ends(daemonapi.PublishResult{Reason: v1alpha1.ReasonRepositoryUnreachable, Message: "no route", Retryable: true}).wantNoPod()
	s.want(0, v1alpha1.ReasonRepositoryUnreachable, "no route; trying again")
	if s.after != s.o.Limits.RetryBase {
		t.Errorf("the next decision is after %s", s.after)
	}
	s.now = s.now.Add(s.after)
	s.step()
	s.o.Publishers = nil // somebody deleted it before it was seen
	s.step()
	s.told()
	s.step()
	s.o.Publishers = nil
	s.step()
	s.want(0, v1alpha1.ReasonPublishFailed, "is gone; trying again")
	s.now = s.now.Add(s.after)
	s.o.Publishers = s.step().o.Publishers[:0]
	s.o.Refused = "exceeded quota"
	s.step().wantNoPod()
	s.want(0, v1alpha1.ReasonPodRefused, "exceeded quota; trying again")
	if len(s.events) != 1 {
		t.Errorf("there are %d Events of a series of failures", len(s.events))
	}
}

func TestAFailureThatDoesNotPassIsNotTriedForEver(t *testing.T) {
	for reason, want := range map[string]int{v1alpha1.ReasonPublishFailed: maxUnknownFailures, v1alpha1.ReasonRepositoryUnreachable: branchFailures} {
		s, pods := pushing(t, "a").step(), 1
		for s.ends(daemonapi.PublishResult{Reason: reason, Message: "no", Retryable: true}); s.origin(0).RetryTime != nil; pods++ {
			s.now = s.now.Add(s.after)
			s.step().ends(daemonapi.PublishResult{Reason: reason, Message: "no", Retryable: true})
		}
		s.want(0, reason, "no; it is not tried again: remove the cause, then request it again")
		if pods != want {
			t.Errorf("%d pods failed with %s, want %d", pods, reason, want)
		}
	}
}

// A gitstore that was restored from an older copy may lack the checkpoint for a while.
func TestWhatIsAtTheRepositoryStaysKnown(t *testing.T) {
	s := pushing(t, "a").step().ends(at("refs/heads/a", "c1"))
	s.o.Checkpoint.Status.Branches[0].State = v1alpha1.BranchRefused
	s.o.Checkpoint.Spec.Branches[0].ID = "again"
	s.step().wantNoPod()
	s.want(0, v1alpha1.ReasonPublished, "c1")
	s.o.Checkpoint.Status.Branches[0].State = v1alpha1.BranchMade
	if got := s.step().told(); got.Replaces != "c1" {
		t.Errorf("it replaces %q", got.Replaces)
	}
}

func TestABranchThatIsNotToBePushedIsNot(t *testing.T) {
	for name, test := range map[string]struct {
		change       func(*ObservedBranches)
		reason, part string
	}{
		"no task":                 {func(o *ObservedBranches) { o.Task = nil }, v1alpha1.ReasonTaskNotFound, "is gone, and with it"},
		"a task made anew":        {func(o *ObservedBranches) { o.Task.UID = "other" }, v1alpha1.ReasonTaskNotFound, "is gone, and with it"},
		"no repository":           {func(o *ObservedBranches) { o.Task.Spec.Repository = nil }, v1alpha1.ReasonRepositoryNotFound, "has no repository"},
		"another is":              {func(o *ObservedBranches) { o.Busy = true }, v1alpha1.ReasonPublishPending, "another branch of the task"},
		"push is Never":           {func(o *ObservedBranches) { o.Checkpoint.Spec.Branches[0].Push = v1alpha1.PushNever }, "", ""},
		"the gitstore refuses it": {func(o *ObservedBranches) { o.Checkpoint.Status.Branches[0].State = v1alpha1.BranchRefused }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := pushing(t, "a")
			test.change(&s.o)
			s.step().step().wantNoPod()
			if test.reason != "" {
				s.want(0, test.reason, test.part)
			} else if s.o.Checkpoint.Status.Branches[0].Origin != nil {
				t.Error("the status says something of the repository")
			}
			if len(s.events) > 1 {
				t.Errorf("it was told %d times", len(s.events))
			}
		})
	}
}

func TestThePodOfABranchThatIsNoLongerPushedIsStopped(t *testing.T) {
	s := pushing(t, "a").step().step()
	s.told()
	s.o.Checkpoint.Spec.Branches = nil
	if !PushesBranches(s.o.Checkpoint) {
		t.Error("there is nothing to do")
	}
	s.step().wantNoPod()
}

// A pod with the name of an earlier one would be taken for it, and an event with the same key for
// one that is recorded already.
func TestTheNumbersOfPushesNeverBeginAnew(t *testing.T) {
	s := pushing(t, "a").step().ends(at("refs/heads/a", "c1"))
	s.o.Checkpoint.Spec.Branches[0].Push = v1alpha1.PushNever
	s.step()
	s.o.Checkpoint.Spec.Branches[0].Push = v1alpha1.PushOrigin
	s.step()
	if got := s.origin(0).Number; got != 2 {
		t.Errorf("the second push has the number %d", got)
	}
	s.ends(at("refs/heads/a", "c1"))
	s.o.Checkpoint.Spec.Branches, s.o.Checkpoint.Status.Branches = nil, nil // it is taken away
	again := pushing(t, "a")
	s.o.Checkpoint.Spec.Branches, s.o.Checkpoint.Status.Branches = again.o.Checkpoint.Spec.Branches, again.o.Checkpoint.Status.Branches
	s.step().ends(at("refs/heads/a", "c1"))
	if got := s.origin(0).Number; got != 3 {
		t.Errorf("the third push has the number %d", got)
	}
	keys := map[string]bool{}
	for _, e := range s.events {
		keys[e.Reason+e.Key] = true
	}
	if len(s.events) != 3 || len(keys) != 3 {
		t.Errorf("the events are %+v, want three that differ", s.events)
	}
}

func TestAnEarlierVersionHasCountedEachBranchApart(t *testing.T) {
	s := pushing(t, "a", "b").step()
	s.ends(at("refs/heads/a", "c1"))
	s.o.Checkpoint.Status.Branches[0].Origin.Number, s.o.Checkpoint.Status.BranchPushes = 6, 0
	s.o.Checkpoint.Spec.Branches[0].ID = "again"
	s.ends(at("refs/heads/b", "c1")).step()
	if got := s.origin(0).Number; got != 7 {
		t.Errorf("the next push has the number %d, want 7", got)
	}
}

func TestWhoAskedForABranchIsNamed(t *testing.T) {
	c := pushing(t, "a").o.Checkpoint
	c.Spec.Branches[0].RequestedBy, c.Spec.BranchesChangedBy = "ann", "ben"
	for branch, want := range map[string]string{"a": "ann", "removed": "ben"} {
		if got := BranchRequester(c, branch, true); got != want {
			t.Errorf("the branch %s was requested by %q, want %q", branch, got, want)
		}
		if got := BranchRequester(c, branch, false); got != Unknown {
			t.Errorf("without the policy, the branch %s was requested by %q", branch, got)
		}
	}
}

// TestABranchThatWaitsIsNotLookedAtAgain: the end of the pod that it waits for is observed. Only
// a pod that is being deleted may never end, if its node is lost.
func TestABranchThatWaitsIsNotLookedAtAgain(t *testing.T) {
	s := pushing(t, "a")
	s.o.Busy = true
	s.step().want(0, v1alpha1.ReasonPublishPending, "another branch of the task")
	p := DecideBranches(s.o, s.now)
	if p.Changes(s.o.Checkpoint) || p.RequeueAfter != 0 {
		t.Errorf("it changes %t, and is decided on again after %s", p.Changes(s.o.Checkpoint), p.RequeueAfter)
	}
	s.o.FreeAt = s.now.Add(time.Minute)
	if p := DecideBranches(s.o, s.now); p.Changes(s.o.Checkpoint) || p.RequeueAfter != time.Minute {
		t.Errorf("while the pod is deleted: it changes %t, and is decided on again after %s", p.Changes(s.o.Checkpoint), p.RequeueAfter)
	}
	s.o.Busy, s.o.FreeAt = false, time.Time{}
	if p := DecideBranches(s.o, s.now); p.Start == nil || !p.Changes(s.o.Checkpoint) {
		t.Error("it is not pushed when the other one is")
	}
}

func TestABranchOfADamagedCheckpointIsPushedOnceThatIsHealed(t *testing.T) {
	const held = "checkpoint 4 is damaged (a.txt is missing; checkpoint 3 is the nearest earlier one that is intact): the branch is pushed by itself once it is healed"
	damage := &history.Integrity{Damage: "a.txt is missing", IntactBefore: 3}
	for name, begin := range map[string]func(s *branchScene){
		"before a pod": func(s *branchScene) { s.o.Damage = damage },
		"by a pod": func(s *branchScene) {
			s.step().ends(cannotRead()).wantNoPod()
			s.want(0, v1alpha1.ReasonCheckpointCorrupted, "git cannot read a.txt; trying again")
			if found := s.origin(0).RetryTime; !found.Time.Equal(s.now) || s.after != s.o.Limits.RetryBase {
				t.Errorf("the damage was found at %v, and the next decision is after %s", found, s.after)
			}
			s.o.Damage = damage
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := pushing(t, "a")
			begin(s)
			for range 3 {
				s.now = s.now.Add(30 * time.Hour)
				s.step().wantNoPod()
				s.want(0, v1alpha1.ReasonCheckpointCorrupted, held)
			}
			if s.after != 0 || len(s.events) != 1 {
				t.Errorf("the next decision is after %s, and there are %d Events", s.after, len(s.events))
			}
			if !PushesBranches(s.o.Checkpoint) {
				t.Error("there is nothing to do once it is healed")
			}
			s.o.Damage = nil
			s.step().told()
			s.ends(at("refs/heads/a", "c1"))
			s.want(0, v1alpha1.ReasonPublished, "c1")
		})
	}
}
