package cli

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// childOf creates a child of a supervisor, whose agent runs.
func (b *bench) childOf(parent *v1alpha1.Task, name string) *v1alpha1.Task {
	b.Helper()
	child := builders.Task(name, builders.InNamespace(b.namespace), func(t *v1alpha1.Task) {
		t.Labels, t.Spec.ParentRef = map[string]string{v1alpha1.LabelParent: parent.Name}, &v1alpha1.NameReference{Name: parent.Name}
	})
	b.try(server.Client.Create(b.ctx, child))
	setSucceeded(child, v1alpha1.ReasonRunning)
	child.Status.Parent = &v1alpha1.ParentStatus{Name: parent.Name, UID: string(parent.UID), Depth: 1}
	b.try(server.Client.Status().Update(b.ctx, child))
	return child
}

// evening makes the supervisor's second checkpoint a set with the child docs, and one that is gone; the child
// since is not in it.
func (b *bench) evening(state v1alpha1.CheckpointSetState) (lead, docs *v1alpha1.Task) {
	b.Helper()
	lead = b.leader()
	docs = b.childOf(lead, "docs")
	b.childOf(lead, "since")
	c := &v1alpha1.Checkpoint{}
	b.try(server.Client.Get(b.ctx, client.ObjectKey{Namespace: b.namespace, Name: "lead-2"}, c))
	c.Status.Set = &v1alpha1.CheckpointSet{State: state, StartTime: &metav1.Time{Time: noon}, Members: []v1alpha1.CheckpointSetMember{
		{Task: "lead", UID: string(lead.UID), Checkpoint: "lead-2", Number: 2, State: v1alpha1.MemberTaken, HoldEnd: v1alpha1.HoldReleased},
		{Task: "docs", UID: string(docs.UID), Checkpoint: "docs-set-1", Number: 5, State: v1alpha1.MemberTaken, HoldEnd: v1alpha1.HoldExpired, Moment: v1alpha1.MomentInCall},
		{Task: "former", UID: "gone", Number: 7, State: v1alpha1.MemberAtRest},
	}}
	b.try(server.Client.Status().Update(b.ctx, c))
	return lead, docs
}

func TestASetIsRequestedOfASupervisor(t *testing.T) {
	b := newBench(t)
	b.leader()
	b.task("worker", v1alpha1.ReasonRunning)
	b.must("checkpoint", "create", "lead", "--contract", "--name", "evening", "--wait=false")
	c := &v1alpha1.Checkpoint{}
	b.try(server.Client.Get(b.ctx, client.ObjectKey{Namespace: b.namespace, Name: "evening"}, c))
	if c.Spec.Scope != v1alpha1.CheckpointOfContract {
		t.Errorf("the spec is %+v", c.Spec)
	}
	_, _, err := b.clew("", "checkpoint", "create", "worker", "--contract")
	wantError(t, err, "task worker is a worker, and has no children: leave --contract out")
}

func TestWhoIsNotInASetIsNamed(t *testing.T) {
	b := newBench(t)
	lead := b.leader()
	docs := b.childOf(lead, "docs")
	b.try(server.Client.Create(b.ctx, builders.Task("aside", builders.InNamespace(b.namespace), func(t *v1alpha1.Task) {
		t.Labels = map[string]string{v1alpha1.LabelContract: "port"}
	})))
	playManager(b, &v1alpha1.CheckpointList{}, func(c *v1alpha1.Checkpoint) bool {
		if c.Name != "evening" {
			return false
		}
		c.Status = takenCheckpoint(3, "any").Status
		for i := range c.Status.Conditions {
			c.Status.Conditions[i].LastTransitionTime = metav1.NewTime(noon)
		}
		c.Status.Set = &v1alpha1.CheckpointSet{State: v1alpha1.SetTogether, Members: []v1alpha1.CheckpointSetMember{
			{Task: "lead", UID: string(lead.UID), Number: 3, State: v1alpha1.MemberTaken}, {Task: "docs", UID: string(docs.UID), Number: 5, State: v1alpha1.MemberTaken}}}
		return true
	})
	_, errOut := b.must("checkpoint", "create", "lead", "--contract", "--name", "evening")
	wantParts(t, "what is told", errOut, "Not in the set", ": aside\n")
}

func TestASetIsShownWithItsMembers(t *testing.T) {
	b := newBench(t)
	b.evening(v1alpha1.SetApart)
	out, _ := b.must("checkpoint", "show", "lead-2")
	wantParts(t, "output", squeezed(out), "Taken of 3 tasks (Apart):", "lead 2 lead-2 was taken; the agent stood still until all were taken",
		"docs 5 docs-set-1 was taken in the middle of a call of a tool; the agent continued before all were taken", "former 7 is that of a task at rest")
}

func TestARewindTakesTheChildrenOfASetAlong(t *testing.T) {
	b := newBench(t)
	lead, _ := b.evening(v1alpha1.SetTogether)
	r := b.withHistory(map[string]any{"GET tasks/lead/diff/rewind": effect(), "GET tasks/docs/diff/rewind": effect()})
	_, errOut := b.must("rewind", "lead", "--to", "lead-2", "--children", "rewind", "--yes", "--wait=false")
	wantParts(t, "the preview", squeezed(errOut), "Then, of its children", "docs to its checkpoint 5; its agent is stopped first", "former is gone", "since stays as it is")
	wantParts(t, "the requests", strings.Join(r.asked, "\n"), "docs/diff/rewind?checkpointNumber=5&id=parent-cli-abcdefgh")
	b.get(lead)
	if got := lead.Spec.Rewind; got.Children != v1alpha1.ChildrenRewind || got.To.CheckpointRef == nil || got.To.CheckpointRef.Name != "lead-2" {
		t.Errorf("spec.rewind is %+v", got)
	}
}

// eveningWasBack is evening with a supervisor that was rewound to the set. The child docs has followed it.
func (b *bench) eveningWasBack() (lead, docs *v1alpha1.Task) {
	b.Helper()
	lead, docs = b.evening(v1alpha1.SetTogether)
	rewound := func(task *v1alpha1.Task, id string, from, to int64) {
		task.Status.Rewind = &v1alpha1.OperationStatus{ID: id, State: v1alpha1.OperationCompleted, FromCheckpoint: from, ToCheckpoint: to}
		task.Status.HandledOperations = []string{"Rewind/" + id}
	}
	rewound(docs, "parent-back", 8, 5)
	b.try(server.Client.Status().Update(b.ctx, docs))
	b.get(lead)
	rewound(lead, "back", 3, 2)
	lead.Status.SetRewind = &v1alpha1.SetRewind{LedRewind: v1alpha1.LedRewind{ID: "back", Set: "lead-2", State: v1alpha1.OperationCompleted,
		Children: []v1alpha1.SetRewindChild{{Name: "docs", UID: string(docs.UID), Checkpoint: 5}, {Name: "former", UID: "gone", Checkpoint: 7}}}}
	b.try(server.Client.Status().Update(b.ctx, lead))
	return lead, docs
}

func TestAnUndoTakesTheChildrenBack(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		moved bool
		want  v1alpha1.RewindChildren
		shown []string
	}{
		"that have followed":        {nil, false, v1alpha1.ChildrenRewind, []string{"Then, of its children", "docs to its checkpoint 8; its agent is stopped first", "former is gone", "since stays as it is: it is not in the set"}},
		"unless they have moved on": {nil, true, v1alpha1.ChildrenRewind, []string{"docs stays as it is: it was rewound or resumed by another request since"}},
		"unless they are to stay":   {[]string{"--children", "keep"}, false, v1alpha1.ChildrenKeep, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			lead, docs := b.eveningWasBack()
			if c.moved {
				docs.Status.HandledOperations = append(docs.Status.HandledOperations, "Rewind/own")
				docs.Status.Rewind.ID = "own"
				b.try(server.Client.Status().Update(b.ctx, docs))
			}
			answer := effect()
			answer.UndoOf = "back"
			r := b.withHistory(map[string]any{"GET tasks/lead/diff/rewind": answer, "GET tasks/docs/diff/rewind": effect()})
			_, errOut := b.must(append([]string{"undo", "lead", "--yes", "--wait=false"}, c.args...)...)
			wantParts(t, "the preview", squeezed(errOut), c.shown...)
			if follows := c.want == v1alpha1.ChildrenRewind && !c.moved; follows != strings.Contains(strings.Join(r.asked, "\n"), "docs/diff/rewind?id=parent-cli-abcdefgh&limit=1&preserve=Branch&undoOf=parent-back") {
				t.Errorf("what docs would do is asked: %v; the requests are %v", !follows, r.asked)
			}
			b.get(lead)
			if got := lead.Spec.Rewind; got.Children != c.want || got.To.UndoOf != "back" {
				t.Errorf("spec.rewind is %+v", got)
			}
		})
	}
}

func TestAnUndoThatCannotTakeTheChildrenBackSaysSoIfItIsToldTo(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		refuse bool
	}{
		"where nothing was said":    {nil, false},
		"where they are to stay":    {[]string{"--children", "keep"}, false},
		"where they are to go back": {[]string{"--children", "rewind"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			lead, _ := b.eveningWasBack()
			lead.Status.SetRewind.ID = "before-that"
			b.try(server.Client.Status().Update(b.ctx, lead))
			answer := effect()
			answer.UndoOf = "back"
			b.withHistory(map[string]any{"GET tasks/lead/diff/rewind": answer})
			_, _, err := b.clew("", append([]string{"undo", "lead", "--yes", "--wait=false"}, c.args...)...)
			b.get(lead)
			if c.refuse {
				wantError(t, err, "rewind back of task lead is not its last one that took children along")
				if lead.Spec.Rewind != nil {
					t.Errorf("requested %+v", lead.Spec.Rewind)
				}
				return
			}
			if b.try(err); lead.Spec.Rewind.Children != v1alpha1.ChildrenKeep {
				t.Errorf("requested %+v", lead.Spec.Rewind)
			}
		})
	}
}

func TestAChildThatContinuesAMemberOfASetIsTakenAlong(t *testing.T) {
	b := newBench(t)
	_, docs := b.evening(v1alpha1.SetTogether)
	c := &v1alpha1.Checkpoint{}
	b.try(server.Client.Get(b.ctx, client.ObjectKey{Namespace: b.namespace, Name: "lead-2"}, c))
	c.Status.Set.Members[1].UID = "uid-before"
	b.try(server.Client.Status().Update(b.ctx, c))
	docs.Status.Adoption = &v1alpha1.AdoptionStatus{TaskUID: "uid-before"}
	b.try(server.Client.Status().Update(b.ctx, docs))
	b.withHistory(map[string]any{"GET tasks/lead/diff/rewind": effect(), "GET tasks/docs/diff/rewind": effect()})
	_, errOut := b.must("rewind", "lead", "--to", "lead-2", "--children", "rewind", "--yes", "--wait=false")
	wantParts(t, "the preview", squeezed(errOut), "docs to its checkpoint 5", "former is gone", "since stays as it is")
	if strings.Contains(squeezed(errOut), "docs stays") || strings.Contains(squeezed(errOut), "docs is gone") {
		t.Errorf("docs is listed twice:\n%s", errOut)
	}
}

func TestToWhatNoChildrenAreTakenAlong(t *testing.T) {
	b := newBench(t)
	b.evening(v1alpha1.SetApart)
	for _, test := range []struct{ task, to, err string }{
		{"lead", "lead-2", "were not taken together"},
		{"lead", "lead-1", "--children rewind needs the name of a set of checkpoints in --to; `kubectl clew checkpoint create lead --contract"},
		{"docs", "docs-1", "task docs is a worker, and has no children"},
	} {
		if test.task == "docs" {
			docs := &v1alpha1.Task{}
			b.try(server.Client.Get(b.ctx, client.ObjectKey{Namespace: b.namespace, Name: "docs"}, docs))
			b.checkpoint(docs, 1)
		}
		_, _, err := b.clew("", "rewind", test.task, "--to", test.to, "--children", "rewind", "--yes")
		wantError(t, err, test.err)
	}
}
