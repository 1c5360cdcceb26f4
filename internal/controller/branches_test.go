package controller_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/refname"
)

// fakeBranches stands for the branches of a gitstore.
type fakeBranches struct {
	mu sync.Mutex
	// at has what each branch was made of, by task UID and name.
	at map[string]gitstoreapi.BranchQuery
	// refuse is what it answers to all requests; nil for none. refused counts such answers.
	refuse  error
	refused int
	// slow holds up the requests of a namespace until it is closed; nil for none.
	slow map[string]chan struct{}
	// asked counts requests by namespace.
	asked map[string]int
	// adopted is what each task has adopted of another one, as "former to new".
	adopted []string
}

// AdoptTask implements codeadoption.Code.
func (f *fakeBranches) AdoptTask(_ context.Context, a gitstoreapi.TaskAdoption) (gitstoreapi.Adoption, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		f.refused++
		return gitstoreapi.Adoption{}, f.refuse
	}
	f.adopted = append(f.adopted, a.Former+" to "+a.UID)
	return gitstoreapi.Adoption{Refs: 1}, nil
}

// LackingAdoptions implements codeadoption.Code.
func (f *fakeBranches) LackingAdoptions(_ context.Context, known []gitstoreapi.TaskAdoption) (lacking []gitstoreapi.TaskAdoption, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		f.refused++
		return nil, f.refuse
	}
	for _, a := range known {
		if !slices.Contains(f.adopted, a.Former+" to "+a.UID) {
			lacking = append(lacking, a)
		}
	}
	return lacking, nil
}

// adoptions returns what was adopted, in order.
func (f *fakeBranches) adoptions() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.adopted)
}

// hold makes the requests of a namespace wait until it is released.
func (f *fakeBranches) hold(namespace string) (release func()) {
	held := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slow = map[string]chan struct{}{namespace: held}
	return sync.OnceFunc(func() { close(held) })
}

// arrive waits until a request of the namespace may be answered.
func (f *fakeBranches) arrive(ctx context.Context, namespace string) {
	f.mu.Lock()
	if f.asked == nil {
		f.asked = map[string]int{}
	}
	f.asked[namespace]++
	held := f.slow[namespace]
	f.mu.Unlock()
	if held == nil {
		return
	}
	select {
	case <-held:
	case <-ctx.Done():
	}
}

// requestsOf returns how many requests of a namespace there were.
func (f *fakeBranches) requestsOf(namespace string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[namespace]
}

// MakeBranch implements checkpoint.Gitstore.
func (f *fakeBranches) MakeBranch(ctx context.Context, namespace, uid string, q gitstoreapi.BranchQuery) (gitstoreapi.Branch, error) {
	f.arrive(ctx, namespace)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		f.refused++
		return gitstoreapi.Branch{}, f.refuse
	}
	if have, ok := f.at[uid+" "+q.Name]; ok && have != q {
		return gitstoreapi.Branch{}, gitstoreapi.New(gitstoreapi.RefExists, "it is taken")
	}
	if f.at == nil {
		f.at = map[string]gitstoreapi.BranchQuery{}
	}
	f.at[uid+" "+q.Name] = q
	return gitstoreapi.Branch{Ref: refname.Branch(q.Task, q.Name), Commit: fmt.Sprintf("%040d", q.Checkpoint)}, nil
}

// RemoveBranch implements checkpoint.Gitstore.
func (f *fakeBranches) RemoveBranch(_ context.Context, _, uid, _, name, commit string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		f.refused++
		return f.refuse
	}
	if commit == fmt.Sprintf("%040d", f.at[uid+" "+name].Checkpoint) {
		delete(f.at, uid+" "+name)
	}
	return nil
}

func (f *fakeBranches) answer(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse, f.refused = err, 0
}

// refusals returns how many requests were answered with the error.
func (f *fakeBranches) refusals() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refused
}

// restore puts it back to a copy without branches.
func (f *fakeBranches) restore() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = nil
}

// all returns the branches that there are.
func (f *fakeBranches) all() map[string]gitstoreapi.BranchQuery {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.at)
}

// branch sets the branches that a Checkpoint names.
func (w *world) branch(name string, branches ...string) {
	w.Helper()
	w.Eventually(func() error {
		c := w.checkpoint(name)
		c.Spec.Branches = nil
		for _, b := range branches {
			c.Spec.Branches = append(c.Spec.Branches, v1alpha1.CheckpointBranch{Name: b})
		}
		return w.client.Update(w.ctx, c)
	}).Should(Succeed())
}

// eventuallyBranches waits for the branches in the status of a Checkpoint.
func (w *world) eventuallyBranches(name string, want types.GomegaMatcher) {
	w.Helper()
	c := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	w.Eventually(w.objects.Object(c)).Should(HaveField("Status.Branches", want))
}

// made matches the status of a branch that the gitstore has.
func made(name string, number int64) types.GomegaMatcher {
	return And(HaveField("Name", name), HaveField("State", v1alpha1.BranchMade), HaveField("Ref", refname.Branch("work", name)), HaveField("Commit", fmt.Sprintf("%040d", number)))
}

var _ = Describe("the branches of checkpoints", func() {
	It("are made and removed as the spec says, also of a completed task, and keep the object", func() {
		w := newWorld()
		p := w.running("work")
		w.store.AddCheckpoint(w.id("work"), history.Checkpoint{
			Attempt: 1, Trigger: string(v1alpha1.TriggerToolCalls), GitHead: "abc", Base: "def",
		})
		w.branch("work-1", "try/a", "b")
		w.complete("work", p)
		w.Expect(w.branches.all()).To(BeEmpty(), "the gitstore does not have the checkpoint yet")

		w.store.SetDurable(w.id("work"), 1)
		w.eventuallyBranches("work-1", HaveExactElements(made("b", 1), made("try/a", 1)))
		w.Expect(w.branches.all()).To(HaveKeyWithValue(w.id("work").UID+" b", gitstoreapi.BranchQuery{Task: "work", Name: "b", Checkpoint: 1, Head: "abc", Base: "def"}))

		By("removing one, with the gitstore gone for a while")
		w.branches.answer(errors.New("it cannot be reached"))
		w.branch("work-1", "try/a")
		w.Eventually(w.branches.refusals).Should(BeNumerically(">", 0))
		w.restartManager()
		w.branches.answer(errors.New("it cannot be reached yet"))
		w.Eventually(w.branches.refusals).Should(BeNumerically(">", 0), "the new process tries as well")
		w.Expect(w.branches.all()).To(HaveLen(2))
		w.branches.answer(nil)
		w.eventuallyBranches("work-1", HaveExactElements(made("try/a", 1)))
		w.Expect(w.branches.all()).To(HaveLen(1))
	})

	It("say why they were refused, and are tried again when that may help", func() {
		w := newWorld()
		w.running("work")
		w.recordMany("work", 2)
		w.branch("work-1", "b")
		w.eventuallyBranches("work-1", HaveExactElements(made("b", 1)))
		w.branch("work-2", "b")
		w.eventuallyBranches("work-2", HaveExactElements(And(HaveField("State", v1alpha1.BranchRefused), HaveField("Message", "it is taken"), HaveField("ObservedGeneration", BeEquivalentTo(2)))))
		w.branch("work-2")
		w.eventuallyBranches("work-2", BeEmpty())
		w.Expect(w.branches.all()).To(HaveLen(1), "a branch that was refused takes that of another checkpoint with it")

		w.branches.answer(gitstoreapi.New(gitstoreapi.NotFound, "it does not have the checkpoint"))
		w.branch("work-2", "c")
		w.eventuallyBranches("work-2", HaveExactElements(And(HaveField("State", v1alpha1.BranchRefused), HaveField("ObservedGeneration", BeZero()))))
		w.branches.answer(nil)
		w.eventuallyBranches("work-2", HaveExactElements(made("c", 2)))
	})

	It("are made again after the gitstore was restored from an older copy", func() {
		w := newWorld()
		w.running("work")
		w.recordMany("work", 1)
		w.branch("work-1", "a", "b")
		w.eventuallyBranches("work-1", HaveExactElements(made("a", 1), made("b", 1)))
		before := w.branches.all()
		w.branches.answer(gitstoreapi.New(gitstoreapi.NotFound, "it does not have the checkpoint"))
		w.branches.restore()
		w.stop()
		w.makeAgain = 100 * time.Millisecond
		w.startManager()
		w.eventuallyBranches("work-1", HaveEach(HaveField("State", v1alpha1.BranchRefused)))
		w.branches.answer(nil)
		w.eventuallyBranches("work-1", HaveExactElements(made("a", 1), made("b", 1)))
		w.Expect(w.branches.all()).To(Equal(before))
		w.branches.restore()
		w.Eventually(w.branches.all).Should(Equal(before))
	})

	It("are in the timeline, with who asked for them and who removed them", func() {
		w := newWorld()
		w.running("work")
		w.recordMany("work", 1)
		w.actAs("ann")
		w.branch("work-1", "b")
		w.eventuallyBranches("work-1", HaveExactElements(made("b", 1)))
		w.actAs("ben")
		w.branch("work-1")
		w.eventuallyBranches("work-1", BeEmpty())
		w.branches.answer(gitstoreapi.New(gitstoreapi.RefExists, "it is taken"))
		w.actAs("carol")
		w.branch("work-1", "c")
		w.Eventually(func() map[string]string { return w.actors("work") }).Should(And(
			HaveKeyWithValue(v1alpha1.EventBranchMade, "ann"),
			HaveKeyWithValue(v1alpha1.EventBranchRemoved, "ben"),
			HaveKeyWithValue(v1alpha1.EventBranchRefused, "carol"),
		))
		w.Eventually(w.notes).Should(ContainElement(ContainSubstring("it is taken")))
	})

	It("of another namespace are made while the gitstore is slow for one", func() {
		w := newWorld()
		w.neighbour = w.newNamespace()
		w.restartManager()
		w.running("work")
		w.recordMany("work", 5)
		release := w.branches.hold(w.namespace)
		DeferCleanup(release)
		for n := range 5 {
			w.branch(fmt.Sprintf("work-%d", n+1), fmt.Sprintf("b%d", n))
		}
		w.Eventually(func() int { return w.branches.requestsOf(w.namespace) }).Should(Equal(1))

		other := w.in(w.neighbour)
		other.running("work")
		other.recordMany("work", 1)
		other.branch("work-1", "b")
		other.eventuallyBranches("work-1", HaveExactElements(made("b", 1)))
		w.Expect(w.branches.requestsOf(w.namespace)).To(Equal(1), "a namespace has one request at a time")

		release()
		for n := range 5 {
			w.eventuallyBranches(fmt.Sprintf("work-%d", n+1), HaveExactElements(made(fmt.Sprintf("b%d", n), int64(n+1))))
		}
	})
})
