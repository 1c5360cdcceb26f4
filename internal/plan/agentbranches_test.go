package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

const branchCommit = "0123456789012345678901234567890123456789"

// branched returns a Checkpoint whose branches the gitstore has.
func branched(number int64, branches ...v1alpha1.CheckpointBranch) v1alpha1.Checkpoint {
	c := v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("fix-%d", number)}}
	c.Spec.TaskRef.Name, c.Status.TaskUID, c.Status.Number, c.Spec.Branches = "fix", "uid", number, branches
	for _, b := range branches {
		c.Status.Branches = append(c.Status.Branches, v1alpha1.CheckpointBranchStatus{Name: b.Name, State: v1alpha1.BranchMade, Commit: branchCommit})
	}
	return c
}

func checkedOut(name, id string) v1alpha1.CheckpointBranch {
	return v1alpha1.CheckpointBranch{Name: name, ID: id, Checkout: v1alpha1.CheckoutNextStart}
}

func names(branches []daemonapi.Branch) (list []string) {
	for _, b := range branches {
		list = append(list, b.Name)
	}
	return list
}

func TestWhichBranchesAPodLooksAfter(t *testing.T) {
	plain := func(names ...string) (list []v1alpha1.CheckpointBranch) {
		for _, n := range names {
			list = append(list, v1alpha1.CheckpointBranch{Name: n})
		}
		return list
	}
	agent := func(c v1alpha1.Checkpoint, i int, state v1alpha1.AgentBranchState, attempt int64) v1alpha1.Checkpoint {
		c.Status.Branches[i].Agent = &v1alpha1.AgentBranchStatus{State: state, Attempt: attempt}
		return c
	}
	refused, removed, deleted := branched(1, plain("refused")...), branched(1, plain("removed")...), branched(1, plain("deleted")...)
	refused.Status.Branches[0].State, removed.Spec.Branches, deleted.DeletionTimestamp = v1alpha1.BranchRefused, nil, &metav1.Time{Time: time.Unix(1, 0)}
	var many []v1alpha1.Checkpoint
	for i := range 15 {
		c := branched(int64(i+1), plain(strings.Split("a b c d e f g h i j", " ")...)...)
		for j := range c.Spec.Branches {
			name := fmt.Sprintf("%s%02d", c.Spec.Branches[j].Name, i)
			c.Spec.Branches[j].Name, c.Status.Branches[j].Name = name, name
			c = agent(c, j, v1alpha1.AgentBranchMade, int64(15-i))
		}
		many = append(many, c)
	}
	for name, test := range map[string]struct {
		of   []v1alpha1.Checkpoint
		want []string
	}{
		"none":                        {nil, nil},
		"those that the gitstore has": {[]v1alpha1.Checkpoint{refused, removed, deleted, branched(2, plain("b", "a")...)}, []string{"a", "b"}},
		"no ref that is no branch":    {[]v1alpha1.Checkpoint{branched(2, plain("refs/for/main", "refs/heads/x")...)}, []string{"refs/heads/x"}},
		"one of two checkpoints":      {[]v1alpha1.Checkpoint{branched(2, plain("a")...), branched(3, plain("a")...)}, []string{"a"}},
		"the lacking ones first": {[]v1alpha1.Checkpoint{
			agent(branched(2, plain("a")...), 0, v1alpha1.AgentBranchMade, 7), agent(branched(3, plain("b")...), 0, v1alpha1.AgentBranchPending, 8), agent(branched(4, plain("c")...), 0, v1alpha1.AgentBranchNameTaken, 5),
		}, []string{"b", "c", "a"}},
		"the one to check out before all": {[]v1alpha1.Checkpoint{branched(2, plain("a")...), branched(3, checkedOut("b", ""))}, []string{"b", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := AgentBranches(test.of)
			if diff := cmp.Diff(test.want, names(got)); diff != "" {
				t.Errorf("branches (-want +got):\n%s", diff)
			}
		})
	}
	got, _ := AgentBranches(many)
	if len(got) != maxAgentBranches || got[0].Name != "a14" {
		t.Errorf("of many it looks after %d, the first is %s", len(got), got[0].Name)
	}
	for i := range many {
		for j := range many[i].Spec.Branches {
			name := many[i].Spec.Branches[j].Name + strings.Repeat("x", 197)
			many[i].Spec.Branches[j].Name, many[i].Status.Branches[j].Name = name, name
		}
	}
	got, _ = AgentBranches(many)
	if text, _ := json.Marshal(got); len(got) < 50 || len(text) > maxAgentBranchBytes {
		t.Errorf("of many with long names it looks after %d, in %d bytes", len(got), len(text))
	}
}

func TestWhichBranchIsCheckedOut(t *testing.T) {
	settled := func(c v1alpha1.Checkpoint, id string, state v1alpha1.CheckoutState) v1alpha1.Checkpoint {
		request := daemonapi.CheckoutID(c.Status.Number, c.Spec.Branches[0].Name, id)
		c.Status.Branches[0].Agent = &v1alpha1.AgentBranchStatus{State: v1alpha1.AgentBranchMade, Checkout: &v1alpha1.CheckoutStatus{Request: request, State: state}}
		return c
	}
	for name, test := range map[string]struct {
		of   []v1alpha1.Checkpoint
		want string
	}{
		"none":                  {[]v1alpha1.Checkpoint{branched(2, v1alpha1.CheckpointBranch{Name: "a", Checkout: v1alpha1.CheckoutNever})}, ""},
		"the only one":          {[]v1alpha1.Checkpoint{branched(2, checkedOut("a", ""))}, "a"},
		"neither of two":        {[]v1alpha1.Checkpoint{branched(2, checkedOut("a", "")), branched(3, checkedOut("b", ""))}, ""},
		"one that two name":     {[]v1alpha1.Checkpoint{branched(2, checkedOut("a", "")), branched(2, checkedOut("a", ""))}, "a"},
		"none that was":         {[]v1alpha1.Checkpoint{settled(branched(2, checkedOut("a", "1")), "1", v1alpha1.CheckoutDone)}, ""},
		"none that was refused": {[]v1alpha1.Checkpoint{settled(branched(2, checkedOut("a", "1")), "1", v1alpha1.CheckoutRefused)}, ""},
		"one that waits":        {[]v1alpha1.Checkpoint{settled(branched(2, checkedOut("a", "1")), "1", v1alpha1.CheckoutPending)}, "a"},
		"one with a new id":     {[]v1alpha1.Checkpoint{settled(branched(2, checkedOut("a", "2")), "1", v1alpha1.CheckoutDone)}, "a"},
		"the newer of two":      {[]v1alpha1.Checkpoint{settled(branched(2, checkedOut("a", "")), "", v1alpha1.CheckoutDone), branched(3, checkedOut("b", ""))}, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			_, got := AgentBranches(test.of)
			if got == nil && test.want == "" {
				return
			}
			if got == nil || got.Name != test.want || got.Checkpoint == 0 || got.ID == "" {
				t.Errorf("the checkout is %+v, want that of %q", got, test.want)
			}
		})
	}
}

// podWith returns a pod that was told of branches.
func podWith(t *testing.T, branches []daemonapi.Branch, checkout *daemonapi.Checkout) *corev1.Pod {
	t.Helper()
	pod, err := resources.NewPod(resources.PodRequest{Task: builders.Task("fix", builders.WithUID("uid")), Attempt: 3, Branches: branches, Checkout: checkout}, resources.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestWhatAPodReportsOfBranches(t *testing.T) {
	a := daemonapi.Branch{Name: "a", Checkpoint: 2}
	made := daemonapi.BranchResult{Outcome: daemonapi.OutcomeMade, Commit: branchCommit}
	checkout := &daemonapi.Checkout{ID: "c", Branch: a}
	for outcome, want := range map[daemonapi.BranchOutcome]v1alpha1.AgentBranchState{
		daemonapi.OutcomeMade: v1alpha1.AgentBranchMade, daemonapi.OutcomePresent: v1alpha1.AgentBranchMade, daemonapi.OutcomeTaken: v1alpha1.AgentBranchNameTaken,
		daemonapi.OutcomeConflicts: v1alpha1.AgentBranchRefused, daemonapi.OutcomeInvalidName: v1alpha1.AgentBranchRefused,
		daemonapi.OutcomeUnsuitedRepository: v1alpha1.AgentBranchRefused, daemonapi.OutcomeNoCommit: v1alpha1.AgentBranchRefused,
		daemonapi.OutcomeGivenUp: v1alpha1.AgentBranchRefused, daemonapi.OutcomeNotFetched: v1alpha1.AgentBranchPending, "Unheard": v1alpha1.AgentBranchPending,
	} {
		result := daemonapi.BranchResult{Outcome: outcome}
		if want == v1alpha1.AgentBranchMade {
			result.Commit = branchCommit
		}
		got, _ := agentBranchesOf(3, podWith(t, []daemonapi.Branch{a}, nil), daemonapi.PrepareResult{Branches: []daemonapi.BranchResult{result}})
		if len(got) != 1 || got[0].State != want || got[0].Message == "" || got[0].Attempt != 3 || got[0].Checkpoint != 2 || got[0].Commit != result.Commit {
			t.Errorf("%s becomes %+v, want %s", outcome, got, want)
		}
	}
	for name, result := range map[string]daemonapi.PrepareResult{"of an older daemon": {}, "of another pod": {Branches: []daemonapi.BranchResult{made, made}}} {
		if got, ok := agentBranchesOf(3, podWith(t, []daemonapi.Branch{a}, nil), result); ok {
			t.Errorf("the result %s becomes %+v", name, got)
		}
	}
	// What was made before is not in the status once more.
	for name, result := range map[string]daemonapi.PrepareResult{"none": {}, "one that is the agent's": {Branches: []daemonapi.BranchResult{{Outcome: daemonapi.OutcomePresent}}}} {
		var told []daemonapi.Branch
		for range result.Branches {
			told = append(told, daemonapi.Branch{Name: "a", Checkpoint: 2, Made: true})
		}
		if got, ok := agentBranchesOf(3, podWith(t, told, nil), result); !ok || len(got) > 0 {
			t.Errorf("of %s the status says %+v (%v)", name, got, ok)
		}
	}
	for name, test := range map[string]struct {
		result *daemonapi.CheckoutResult
		want   *v1alpha1.CheckoutStatus
	}{
		"none":          {nil, nil},
		"of another":    {&daemonapi.CheckoutResult{ID: "d"}, nil},
		"done":          {&daemonapi.CheckoutResult{ID: "c", FromCheckpoint: 5, ToCheckpoint: 6}, &v1alpha1.CheckoutStatus{Request: "c", State: v1alpha1.CheckoutDone, Attempt: 3, FromCheckpoint: 5, ToCheckpoint: 6, Message: "the agent's HEAD was brought to the branch a; a rewind to checkpoint 5 takes that back"}},
		"there already": {&daemonapi.CheckoutResult{ID: "c"}, &v1alpha1.CheckoutStatus{Request: "c", State: v1alpha1.CheckoutDone, Attempt: 3, Message: "the agent's HEAD is on the branch a"}},
		"refused":       {&daemonapi.CheckoutResult{ID: "c", Reason: "InvalidState", Message: "rewind to it first"}, &v1alpha1.CheckoutStatus{Request: "c", State: v1alpha1.CheckoutRefused, Attempt: 3, Reason: "InvalidState", Message: "the agent's HEAD stays where it is: rewind to it first"}},
	} {
		got, _ := agentBranchesOf(3, podWith(t, []daemonapi.Branch{a}, checkout), daemonapi.PrepareResult{Branches: []daemonapi.BranchResult{made}, Checkout: test.result})
		if diff := cmp.Diff(test.want, got[0].Checkout); diff != "" {
			t.Errorf("%s: the checkout (-want +got):\n%s", name, diff)
		}
	}
}

// agentScene is the scene of a Checkpoint whose branches are not pushed.
func agentScene(t *testing.T, c v1alpha1.Checkpoint) *branchScene {
	return &branchScene{T: t, now: time.Unix(1_700_000_000, 0), o: ObservedBranches{Checkpoint: &c, Task: builders.Task("fix", builders.WithUID("uid")), Limits: DefaultLimits()}}
}

// reports has the Task's status say what a pod has reported.
func (s *branchScene) reports(attempt int64, state v1alpha1.AgentBranchState, checkout *v1alpha1.CheckoutStatus) *branchScene {
	b := v1alpha1.AgentBranch{Name: "a", Checkpoint: 2, AgentBranchStatus: v1alpha1.AgentBranchStatus{State: state, Message: "as reported", Attempt: attempt, Checkout: checkout}}
	if state == v1alpha1.AgentBranchMade {
		b.Commit = branchCommit
	}
	s.o.Task.Status.AgentBranches = []v1alpha1.AgentBranch{b}
	return s.step()
}

func (s *branchScene) agent() *v1alpha1.AgentBranchStatus {
	return s.o.Checkpoint.Status.Branches[0].Agent
}

func (s *branchScene) reasons() (list []string) {
	for _, e := range s.events {
		list = append(list, e.Reason)
	}
	return list
}

func TestTheStatusFollowsTheAgentsRepository(t *testing.T) {
	s := agentScene(t, branched(2, checkedOut("a", ""))).step()
	request := daemonapi.CheckoutID(2, "a", "")
	if a := s.agent(); a.State != v1alpha1.AgentBranchPending || a.Checkout.State != v1alpha1.CheckoutPending || a.Checkout.Request != request || len(s.events) > 0 {
		t.Errorf("before a start the status is %+v, %+v, with %v", a, a.Checkout, s.events)
	}
	done := &v1alpha1.CheckoutStatus{Request: request, State: v1alpha1.CheckoutDone, Attempt: 3, Message: "it was"}
	s.reports(3, v1alpha1.AgentBranchMade, done).step()
	if diff := cmp.Diff(&v1alpha1.AgentBranchStatus{State: v1alpha1.AgentBranchMade, Commit: branchCommit, Message: "as reported", Attempt: 3, Checkout: done}, s.agent()); diff != "" {
		t.Errorf("after the start (-want +got):\n%s", diff)
	}
	s.o.Checkpoint.Spec.Branches[0].ID = "again"
	s.step()
	if got := s.agent().Checkout; got.State != v1alpha1.CheckoutPending || got.Request == request {
		t.Errorf("with a new id the checkout is %+v", got)
	}
	s.reports(6, v1alpha1.AgentBranchNameTaken, &v1alpha1.CheckoutStatus{Request: s.agent().Checkout.Request, State: v1alpha1.CheckoutRefused, Reason: "BranchExists"})
	s.o.Checkpoint.Spec.Branches[0].Checkout = v1alpha1.CheckoutNever
	if s.step(); s.agent().Checkout != nil {
		t.Errorf("without a request the checkout is %+v", s.agent().Checkout)
	}
	want := []string{v1alpha1.EventAgentBranchMade, v1alpha1.EventBranchCheckedOut, v1alpha1.EventBranchNotCheckedOut}
	if diff := cmp.Diff(want, s.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestABranchThatWasMadeIsTheAgents: whatever it does with it, the status stays what it is, and is
// not written again, and nobody is warned. The checkout is not asked for again, either.
func TestABranchThatWasMadeIsTheAgents(t *testing.T) {
	request := daemonapi.CheckoutID(2, "a", "")
	s := agentScene(t, branched(2, checkedOut("a", ""))).reports(3, v1alpha1.AgentBranchMade, &v1alpha1.CheckoutStatus{Request: request, State: v1alpha1.CheckoutDone})
	was, events := s.agent().DeepCopy(), len(s.events)
	s.reports(4, v1alpha1.AgentBranchMade, nil).reports(5, v1alpha1.AgentBranchNameTaken, nil).reports(6, v1alpha1.AgentBranchPending, nil)
	s.o.Task.Status.AgentBranches = nil
	if diff := cmp.Diff(was, s.step().agent()); diff != "" || len(s.events) != events {
		t.Errorf("later the status is (-was +is):\n%s, with %v", diff, s.reasons())
	}
	branches, checkout := AgentBranches([]v1alpha1.Checkpoint{*s.o.Checkpoint})
	if diff := cmp.Diff([]daemonapi.Branch{{Name: "a", Checkpoint: 2, Made: true}}, branches); diff != "" || checkout != nil {
		t.Errorf("the next pod is told (-want +got):\n%s, and of the checkout %v", diff, checkout)
	}
}

// TestABranchThatCouldNotBeMadeIsSaidOnce: until it is made, or something else is in the way.
func TestABranchThatCouldNotBeMadeIsSaidOnce(t *testing.T) {
	s := agentScene(t, branched(2, v1alpha1.CheckpointBranch{Name: "a"}))
	s.reports(3, v1alpha1.AgentBranchNameTaken, nil).reports(4, v1alpha1.AgentBranchNameTaken, nil)
	if a := s.agent(); a.State != v1alpha1.AgentBranchNameTaken || a.Attempt != 3 {
		t.Errorf("the status is %+v", a)
	}
	s.reports(5, v1alpha1.AgentBranchRefused, nil).reports(6, v1alpha1.AgentBranchMade, nil)
	want := []string{v1alpha1.EventAgentBranchNotMade, v1alpha1.EventAgentBranchNotMade, v1alpha1.EventAgentBranchMade}
	if diff := cmp.Diff(want, s.reasons()); diff != "" || s.agent().Attempt != 6 {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestWhoseRepositoryTheStatusIsAbout(t *testing.T) {
	s := agentScene(t, branched(2, v1alpha1.CheckpointBranch{Name: "a"})).reports(3, v1alpha1.AgentBranchMade, nil)
	other := s.o.Task.DeepCopy()
	other.UID, other.Status.AgentBranches = "other", nil
	for _, s.o.Task = range []*v1alpha1.Task{other, nil} {
		if s.step(); s.agent() == nil || s.agent().Attempt != 3 {
			t.Errorf("without its task the status is %+v", s.agent())
		}
	}
	moved := agentScene(t, branched(2, v1alpha1.CheckpointBranch{Name: "a"}))
	moved.o.Checkpoint.Status.Number = 3
	if moved.reports(3, v1alpha1.AgentBranchMade, nil); moved.agent().State != v1alpha1.AgentBranchPending {
		t.Errorf("of another checkpoint's branch the status says %+v", moved.agent())
	}
	for name, c := range map[string]v1alpha1.Checkpoint{"a ref that is no branch": branched(2, v1alpha1.CheckpointBranch{Name: "refs/for/main"}), "a refused branch": branched(2, v1alpha1.CheckpointBranch{Name: "a"})} {
		if name == "a refused branch" {
			c.Status.Branches[0].State = v1alpha1.BranchRefused
		}
		if s := agentScene(t, c).step(); s.agent() != nil {
			t.Errorf("%s is said to be %+v", name, s.agent())
		}
	}
}

func TestTwoCheckoutsWaitForOneAnother(t *testing.T) {
	mine, other := branched(2, checkedOut("a", "")), branched(3, checkedOut("b", ""))
	s := agentScene(t, mine)
	s.o.Checkouts = Checkouts([]v1alpha1.Checkpoint{mine, other})
	if s.step(); !strings.Contains(s.agent().Checkout.Message, "checkpoint 3 asks for a checkout of its branch b as well") {
		t.Errorf("the message is %q", s.agent().Checkout.Message)
	}
	s.o.Checkouts = Checkouts([]v1alpha1.Checkpoint{mine})
	if s.step(); strings.Contains(s.agent().Checkout.Message, "as well") {
		t.Errorf("the message is still %q", s.agent().Checkout.Message)
	}
}

// TestAStateOfAnEarlierManagerIsWrittenAsItIsCalledNow: the API server refuses the earlier word.
func TestAStateOfAnEarlierManagerIsWrittenAsItIsCalledNow(t *testing.T) {
	s := agentScene(t, branched(2, v1alpha1.CheckpointBranch{Name: "a"})).reports(3, "Kept", nil)
	if a := s.agent(); a.State != v1alpha1.AgentBranchNameTaken || a.Attempt != 3 {
		t.Errorf("the status is %+v", a)
	}
}

// TestTheOrderInWhichCheckpointsAreListedChangesNothing: a cache lists them in another one each time,
// and each change of a status would be another reason to look.
func TestTheOrderInWhichCheckpointsAreListedChangesNothing(t *testing.T) {
	two := branched(2, checkedOut("a", ""), checkedOut("c", ""))
	three, four := branched(3, checkedOut("b", "")), branched(4, checkedOut("a", ""))
	want := Checkouts([]v1alpha1.Checkpoint{two, three, four})
	first := agentScene(t, three)
	first.o.Checkouts = want
	first.step()
	for _, list := range [][]v1alpha1.Checkpoint{{two, four, three}, {three, two, four}, {three, four, two}, {four, two, three}, {four, three, two}} {
		if got := Checkouts(list); len(got) != 4 || !slices.Equal(got, want) {
			t.Errorf("the checkouts are %v, and in another order of the list %v", want, got)
		}
		s := agentScene(t, three)
		s.o.Checkouts = Checkouts(list)
		if s.step(); s.agent().Checkout.Message != first.agent().Checkout.Message {
			t.Errorf("the message is %q, and in another order %q", first.agent().Checkout.Message, s.agent().Checkout.Message)
		}
	}
}

// TestTheTaskKeepsWhatItsPodReports: until the next pod that was told of branches.
func TestTheTaskKeepsWhatItsPodReports(t *testing.T) {
	s := newScene(t).step()
	pod := podWith(t, []daemonapi.Branch{{Name: "a", Checkpoint: 2}}, nil)
	s.pod().Spec.InitContainers = pod.Spec.InitContainers
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Branches: []daemonapi.BranchResult{{Outcome: daemonapi.OutcomeMade, Commit: branchCommit}}})
	s.agentRuns()
	if got := s.status().AgentBranches; len(got) != 1 || got[0].State != v1alpha1.AgentBranchMade {
		t.Errorf("the Task's status has %+v", got)
	}
}
