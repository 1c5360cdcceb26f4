package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/cached"
	"github.com/clew-dev/clew/internal/controller/lookup"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/testing/apiserver"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// behind is a client whose cache shows nothing of what it creates.
type behind struct {
	client.Client
	created []string
	// refused is the name of an object that it may not create.
	refused string
}

func (b *behind) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (b *behind) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	if object.GetName() == b.refused {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "checkpoints"}, b.refused, errors.New("exceeded quota: clew"))
	}
	b.created = append(b.created, object.GetName())
	return nil
}

// holds is a client that reads one Checkpoint.
type holds struct {
	client.Client
	is *v1alpha1.Checkpoint
}

func (h holds) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if is, ok := into.(*metav1.PartialObjectMetadata); ok {
		h.is.ObjectMeta.DeepCopyInto(&is.ObjectMeta)
		return nil
	}
	h.is.DeepCopyInto(into.(*v1alpha1.Checkpoint))
	return nil
}

// TestAMemberThatCameToRestHasItsLastCheckpoint, also if the set has ended before its object was looked at.
func TestAMemberThatCameToRestHasItsLastCheckpoint(t *testing.T) {
	g := gomega.NewWithT(t)
	set := evening(v1alpha1.SetTogether)
	set.Status.Set.Members[1].State, set.Status.Set.Members[1].Number = v1alpha1.MemberAtRest, 4
	r := &Reconciler{Client: holds{is: cached.Slim(set)}, Live: holds{is: set}}
	member := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: "docs-set-1"},
		Spec: v1alpha1.CheckpointSpec{PartOf: &v1alpha1.CheckpointSetRef{Name: "evening", UID: "uid-evening"}}}
	over, err := r.endedWithout(t.Context(), member)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(over).To(gomega.HaveValue(gomega.Equal(endedSet{number: 4})))
	set.Status.Set.Members[1].State = v1alpha1.MemberFailed
	over, err = r.endedWithout(t.Context(), member)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(over.why).To(gomega.ContainSubstring("has ended without it"))
}

func evening(state v1alpha1.CheckpointSetState) *v1alpha1.Checkpoint {
	return &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "evening", UID: "uid-evening"},
		Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "lead"}, Scope: v1alpha1.CheckpointOfContract},
		Status: v1alpha1.CheckpointStatus{Set: &v1alpha1.CheckpointSet{State: state, Members: []v1alpha1.CheckpointSetMember{
			{Task: "lead", UID: "uid-lead", Checkpoint: "evening", State: v1alpha1.MemberPending},
			{Task: "docs", UID: "uid-docs", Checkpoint: "docs-set-1", State: v1alpha1.MemberPending},
		}}},
	}
}

// night is another set of the same supervisor, which has yet to begin.
func night() *v1alpha1.Checkpoint {
	c := evening("")
	c.Name, c.UID, c.Status = "night", "uid-night", v1alpha1.CheckpointStatus{}
	return c
}

// nothing is a store that knows of no checkpoint.
type nothing struct{ Store }

func (nothing) CheckpointsAfter(context.Context, string, int64, int) ([]history.Checkpoint, error) {
	return nil, nil
}

func (nothing) TaskState(context.Context, string) (history.TaskState, error) {
	return history.TaskState{}, history.ErrNotFound
}

func (nothing) RecordEvents(context.Context, []history.Event) error { return nil }

// TestTheObjectOfAMemberIsMadeOnce: a set is looked at again with every change of each of its tasks.
func TestTheObjectOfAMemberIsMadeOnce(t *testing.T) {
	g := gomega.NewWithT(t)
	b := &behind{}
	r, set := &Reconciler{Client: b}, evening(v1alpha1.SetTaking)
	for range 100 {
		g.Expect(r.makeMembers(t.Context(), set, set.Status.Set)).To(gomega.BeEmpty())
	}
	g.Expect(b.created).To(gomega.Equal([]string{"docs-set-1"}))
	r.begun.gone(&v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: "docs-set-1"},
		Spec: v1alpha1.CheckpointSpec{PartOf: &v1alpha1.CheckpointSetRef{Name: "evening", UID: "uid-evening"}}})
	g.Expect(r.makeMembers(t.Context(), set, set.Status.Set)).To(gomega.BeEmpty())
	g.Expect(b.created).To(gomega.HaveLen(2), "it is made again once it was deleted")
}

// TestAMemberWhoseObjectIsRefusedHidesNoOther: the others are requested, and it is told who was not, and why.
func TestAMemberWhoseObjectIsRefusedHidesNoOther(t *testing.T) {
	g := gomega.NewWithT(t)
	b := &behind{refused: "docs-set-1"}
	set := evening(v1alpha1.SetTaking)
	set.Status.Set.Members = append(set.Status.Set.Members,
		v1alpha1.CheckpointSetMember{Task: "tests", UID: "uid-tests", Checkpoint: "tests-set-1", State: v1alpha1.MemberPending})
	refused, err := (&Reconciler{Client: b}).makeMembers(t.Context(), set, set.Status.Set)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(b.created).To(gomega.Equal([]string{"tests-set-1"}))
	g.Expect(refused).To(gomega.HaveKeyWithValue("uid-docs", gomega.ContainSubstring("exceeded quota: clew")))
}

// TestASetOfWhichAMemberIsRefusedFailsInTheSameStep: no agent is kept waiting for it, and the object says why.
func TestASetOfWhichAMemberIsRefusedFailsInTheSameStep(t *testing.T) {
	g := gomega.NewWithT(t)
	set := evening(v1alpha1.SetTaking)
	set.Status.Set.StartTime = ptr.To(metav1.Now())
	docs := inTeam("docs")
	docs.Status.Attempts = []v1alpha1.Attempt{{Number: 1}}
	c := sets(t, set, inTeam("lead"), docs)
	r := &Reconciler{Client: refuses{c}, Live: c, Store: nothing{}, Events: events.NewFakeRecorder(1)}
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
	_, err := r.reconcile(t.Context(), set)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
	g.Expect(set.Status.Set.State).To(gomega.Equal(v1alpha1.SetReleasing))
	g.Expect(set.Status.Set.Members[1]).To(gomega.And(gomega.HaveField("State", v1alpha1.MemberFailed),
		gomega.HaveField("Message", gomega.ContainSubstring("exceeded quota: clew"))))
	_, err = r.reconcile(t.Context(), set)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
	g.Expect(set.Status.Conditions).To(gomega.ContainElement(gomega.And(gomega.HaveField("Reason", v1alpha1.ReasonNotTakenTogether),
		gomega.HaveField("Message", gomega.ContainSubstring("none could be requested of docs (checkpoints")))))
}

// refuses is a client that may create nothing.
type refuses struct{ client.Client }

func (refuses) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "checkpoints"}, object.GetName(), errors.New("exceeded quota: clew"))
}

// inTeam is a Task in the namespace of the sets.
func inTeam(name string) *v1alpha1.Task {
	task := builders.Task(name, builders.WithUID("uid-"+name))
	task.Namespace = "team"
	return task
}

// sets is a client of an API server with these objects.
func sets(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	return fake.NewClientBuilder().WithScheme(apiserver.Scheme()).WithObjects(objects...).WithStatusSubresource(&v1alpha1.Checkpoint{}).
		WithIndex(&v1alpha1.Task{}, childrenOf, parentOf).WithIndex(&v1alpha1.Checkpoint{}, setsOf, supervisorOf).Build()
}

func TestOneSetOfASupervisorBeginsAtATimeWhateverTheCacheShows(t *testing.T) {
	g := gomega.NewWithT(t)
	set, other := evening(""), night()
	r := &Reconciler{Live: holds{is: set}}
	begins := func(c *v1alpha1.Checkpoint) string {
		after, err := r.begin(t.Context(), c)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		return after
	}
	g.Expect(begins(set)).To(gomega.BeEmpty())
	g.Expect(begins(set)).To(gomega.BeEmpty(), "after its status could not be written")
	g.Expect(begins(other)).To(gomega.Equal("evening"))
	r.begun.gone(set)
	g.Expect(begins(other)).To(gomega.BeEmpty())
}

// TestASetWhoseDeletionWasSeenBeforeItBeganBlocksNoOther: its deletion is told once.
func TestASetWhoseDeletionWasSeenBeforeItBeganBlocksNoOther(t *testing.T) {
	anew := evening("")
	anew.UID = "uid-of-another-object"
	for name, live := range map[string]client.Reader{"no object has its name": &behind{}, "another object has its name": holds{is: anew}} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			r := &Reconciler{Live: live}
			r.begun.gone(evening(""))
			_, ok := r.begun.begins(evening(""))
			g.Expect(ok).To(gomega.BeTrue())
			g.Expect(r.begin(t.Context(), night())).To(gomega.BeEmpty())
		})
	}
}

// TestASetThatCannotBeginBlocksNoOther, though it was noted as begun: it could not be written at once, it is
// being deleted, or its object is gone.
func TestASetThatCannotBeginBlocksNoOther(t *testing.T) {
	lead := inTeam("lead")
	lead.Spec.Role = v1alpha1.RoleSupervisor
	lead.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Name: "lead-1", Number: 1}
	docs := inTeam("docs")
	docs.Status.Parent = &v1alpha1.ParentStatus{UID: "uid-lead"}
	docs.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Name: "docs-1", Number: 1}
	for name, change := range map[string]func(*v1alpha1.Checkpoint){
		"somebody has labelled it": func(c *v1alpha1.Checkpoint) {
			c.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy}
		},
		"it is being deleted": func(c *v1alpha1.Checkpoint) {
			c.Finalizers, c.DeletionTimestamp = []string{"x.example/y"}, ptr.To(metav1.Now())
		},
		"its object is gone": func(c *v1alpha1.Checkpoint) { c.Name = "gone" },
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			set := evening("")
			set.Status = v1alpha1.CheckpointStatus{}
			change(set)
			objects := []client.Object{lead, docs}
			if set.Name != "gone" {
				objects = append(objects, set)
			}
			c := sets(t, objects...)
			r := &Reconciler{Client: c, Live: c}
			_, ok := r.begun.begins(set)
			g.Expect(ok).To(gomega.BeTrue())
			if set.Name != "gone" {
				g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
			}
			_, err := r.reconcile(t.Context(), set)
			g.Expect(client.IgnoreNotFound(err)).NotTo(gomega.HaveOccurred())
			_, ok = r.begun.begins(night())
			g.Expect(ok).To(gomega.BeTrue())
		})
	}
}

// TestSetsThatWaitAreLookedAtWhenTheOneBeforeEnds, and no sooner.
func TestSetsThatWaitAreLookedAtWhenTheOneBeforeEnds(t *testing.T) {
	g := gomega.NewWithT(t)
	r, wakes := &Reconciler{}, lookup.Request(ofHistory, "team", "lead")
	g.Expect(r.related(t.Context(), evening(v1alpha1.SetReleasing))).NotTo(gomega.ContainElement(wakes))
	g.Expect(r.related(t.Context(), evening(v1alpha1.SetApart))).To(gomega.ContainElement(wakes))
	g.Expect(unsettled(night())).To(gomega.ContainElement("lead"), "by which they are found")
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	r.deleted(t.Context(), event.DeleteEvent{Object: evening(v1alpha1.SetTaking)}, queue)
	g.Expect(queue.Len()).To(gomega.Equal(2), "its name, and the sets that wait")
}

// TestOfAMemberThatIsReadLittleIsKept: a set has up to 65, and any of them may be large.
func TestOfAMemberThatIsReadLittleIsKept(t *testing.T) {
	g := gomega.NewWithT(t)
	task := &v1alpha1.Task{ObjectMeta: builders.Hostile("docs")}
	task.Status.Attempts = []v1alpha1.Attempt{{Number: 1, Outcome: v1alpha1.AttemptCompleted}, {Number: 2}}
	task.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Name: "docs-4", Number: 4}
	is := memberOf(task)
	text, err := json.Marshal(is)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(len(text)).To(gomega.BeNumerically("<", 4<<10))
	g.Expect(is.UID).To(gomega.Equal(task.UID))
	g.Expect(is.Status.Attempts).To(gomega.HaveExactElements(gomega.HaveField("Number", int64(2))))
	g.Expect(is.Status.LatestCheckpoint.Number).To(gomega.Equal(int64(4)))
}

func TestASetThatHasEndedIsNotLookedAtAnyMore(t *testing.T) {
	g := gomega.NewWithT(t)
	g.Expect(unsettled(evening(v1alpha1.SetTaking))).To(gomega.ConsistOf("lead", "docs"))
	untaken := evening(v1alpha1.SetApart)
	untaken.Status.Conditions = []metav1.Condition{plan.SetReady(untaken.Status.Set)}
	g.Expect(unsettled(untaken)).To(gomega.BeEmpty(), "none was taken of the supervisor")
	apart := untaken.DeepCopy()
	apart.Status.Number = 3
	g.Expect(unsettled(apart)).To(gomega.ConsistOf("lead"), "the gitstore does not have it yet")
	apart.Status.Conditions = append(apart.Status.Conditions, metav1.Condition{Type: v1alpha1.CheckpointDurable, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPushed})
	g.Expect(unsettled(apart)).To(gomega.BeEmpty())
	member := &v1alpha1.Checkpoint{Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "docs"}, PartOf: &v1alpha1.CheckpointSetRef{Name: "evening"}}}
	g.Expect(unsettled(member)).To(gomega.ConsistOf("docs"))
	member.Status.Conditions = []metav1.Condition{{Type: v1alpha1.CheckpointReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotTakenTogether}}
	g.Expect(unsettled(member)).To(gomega.BeEmpty())
}
