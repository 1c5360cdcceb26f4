package crash_test

import (
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// chapter is a part of the scenario.
type chapter struct {
	name string
	tell func(r *run)
}

// scenario uses every verb.
var scenario = []chapter{
	{"create, checkpoint, complete, follow up, delete", work},
	{"branches, keep, prune, restore", checkpoints},
	{"rewind and undo", rewinds},
	{"suspend and resume", resumes},
	{"reach the deadline", deadlines},
	{"fork, pick and publish", forks},
	{"start from a gone task, with copied files", copies},
	{"publish", publishes},
	{"adopt", adopts},
	{"check out a branch", checksOut},
	{"call a supervisor's tools", supervises},
	{"take checkpoints together", takesTogether},
}

func checkpointName(task string, number int) string {
	return resources.CheckpointName(task, int64(number))
}

func manual(name, task string) *v1alpha1.Checkpoint {
	return &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: task}}}
}

func work(r *run) {
	r.apply("work", func(t *v1alpha1.Task) { t.Spec.Conversation.SnapshotEveryMessages = ptr.To[int32](5) })
	r.works("work", 1)
	r.create(&v1alpha1.ConversationSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: v1alpha1.ConversationSnapshotSpec{
		TaskRef: v1alpha1.NameReference{Name: "work"}, CheckpointRef: &v1alpha1.NameReference{Name: "work-1"},
	}})
	r.completes("work")
	r.create(manual("last", "work"))
	r.untilCheckpoint("last")
	r.resumes("work", v1alpha1.Resume{ID: "more", Prompt: "And now the tests."})
	for number := 3; number <= 5; number++ {
		r.works("work", number)
	}
	r.completes("work")
	r.apply("gone")
	r.works("gone", 1)
	r.deletes("gone")
}

func checkpoints(r *run) {
	r.apply("work", builders.KeepLast(1))
	r.works("work", 1)
	r.changeCheckpoint("work-1", func(c *v1alpha1.Checkpoint) {
		c.Spec.Retention = v1alpha1.CheckpointKept
		c.Spec.Branches = []v1alpha1.CheckpointBranch{{Name: "try/a"}, {Name: "b"}}
	})
	r.Eventually(r.checkpoint).WithArguments("work-1").Should(HaveField("Status.Branches", HaveLen(2)))
	r.works("work", 2)
	r.works("work", 3)
	r.untilPruned("work-2")
	r.changeCheckpoint("work-1", func(c *v1alpha1.Checkpoint) { c.Spec.Branches = c.Spec.Branches[:1] })
	r.Eventually(r.checkpoint).WithArguments("work-1").Should(HaveField("Status.Branches", HaveLen(1)))
	restored := manual("work-2", "work")
	restored.Spec.Number = ptr.To[int64](2)
	r.create(restored)
	r.untilCheckpoint("work-2")
	r.completes("work")
}

func rewinds(r *run) {
	r.apply("work")
	r.works("work", 1)
	r.works("work", 2)
	to := func(number int64) v1alpha1.RewindTarget { return v1alpha1.RewindTarget{CheckpointNumber: &number} }
	r.rewinds("work", v1alpha1.ReasonRunning, v1alpha1.Rewind{ID: "back", To: to(1)})
	r.rewinds("work", v1alpha1.ReasonRunning, v1alpha1.Rewind{ID: "undo", To: v1alpha1.RewindTarget{UndoOf: "back"}})
	r.rewinds("work", v1alpha1.ReasonRunning, v1alpha1.Rewind{ID: "paths", To: to(1), Scope: v1alpha1.RewindCode, Paths: []string{"src"}})
	r.rewinds("work", v1alpha1.ReasonRunning, v1alpha1.Rewind{
		ID: "commit", To: v1alpha1.RewindTarget{Commit: "0123456789012345678901234567890123456789"}, Scope: v1alpha1.RewindCode,
	})
	r.completes("work")
	r.rewinds("work", v1alpha1.ReasonRewound, v1alpha1.Rewind{ID: "talk", To: to(2), Scope: v1alpha1.RewindConversation})
}

func resumes(r *run) {
	r.apply("work")
	r.works("work", 1)
	r.suspends("work")
	r.resumes("work", v1alpha1.Resume{ID: "on", Mode: v1alpha1.ResumeContinue})
	r.suspends("work")
	r.resumes("work", v1alpha1.Resume{ID: "clean", Mode: v1alpha1.ResumeClean})
	r.suspends("work")
	r.resumes("work", v1alpha1.Resume{ID: "from", Mode: v1alpha1.ResumeFromCheckpoint, CheckpointNumber: ptr.To[int64](1)})
	r.completes("work")
}

func deadlines(r *run) {
	r.apply("work")
	r.works("work", 1)
	r.change("work", builders.Deadline(1))
	r.until("work", v1alpha1.ReasonDeadlineExceeded)
	r.change("work", builders.Deadline(3600), builders.Resume("on"))
	r.until("work", v1alpha1.ReasonRunning)
	r.completes("work")
}

func forks(r *run) {
	r.apply("work")
	r.works("work", 1)
	f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: "try"}, Spec: v1alpha1.ForkSpec{
		SourceRef: v1alpha1.NameReference{Name: "work"}, At: &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](1)},
		Variants: []v1alpha1.ForkVariant{{Name: "one"}, {Name: "two", Prompt: ptr.To("The other way.")}, {Name: "three"}},
	}}
	r.create(f)
	r.untilTrue(f, v1alpha1.ForkComplete)
	for _, v := range f.Spec.Variants {
		r.until(v.Name, v1alpha1.ReasonRunning)
	}
	r.suspends("one")
	r.suspends("three")
	r.completes("two")
	r.change("two", func(t *v1alpha1.Task) { t.Spec.Publish = &v1alpha1.Publish{Branch: "clew/two"} })
	r.untilPublished("two", "clew/two")
	r.suspends("work")
}

func copies(r *run) {
	r.apply("work")
	r.works("work", 1)
	uid := r.uid("work")
	r.deletes("work")
	r.apply("next", func(t *v1alpha1.Task) {
		t.Spec.StartFrom = &v1alpha1.StartFrom{
			TaskRef: v1alpha1.NameReference{Name: "work"}, TaskUID: uid,
			At: &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](1)}, CopyFiles: []string{"docs/**"},
		}
	})
	r.completes("next")
}

func publishes(r *run) {
	r.apply("work", func(t *v1alpha1.Task) { t.Spec.Publish = &v1alpha1.Publish{Branch: "clew/work"} })
	r.completes("work")
	r.untilPublished("work", "clew/work")
	r.change("work", func(t *v1alpha1.Task) { t.Spec.Publish.Branch = "clew/again" })
	r.untilPublished("work", "clew/again")
}

func adopts(r *run) {
	r.apply("work")
	r.works("work", 1)
	r.rewinds("work", v1alpha1.ReasonRunning, v1alpha1.Rewind{ID: "back", To: v1alpha1.RewindTarget{CheckpointNumber: ptr.To[int64](1)}})
	r.deletes("work")
	r.apply("work", func(t *v1alpha1.Task) {
		t.Spec.Adopt = v1alpha1.AdoptLatest
		t.Spec.Rewind = &v1alpha1.Rewind{ID: "back", To: v1alpha1.RewindTarget{CheckpointNumber: ptr.To[int64](1)}}
	})
	r.works("work", 5)
	r.completes("work")
}

func checksOut(r *run) {
	r.apply("work")
	r.works("work", 1)
	r.changeCheckpoint("work-1", func(c *v1alpha1.Checkpoint) {
		c.Spec.Branches = []v1alpha1.CheckpointBranch{{Name: "try", Checkout: v1alpha1.CheckoutNextStart}}
	})
	until := func(state v1alpha1.CheckoutState) {
		r.Helper()
		r.Eventually(r.checkpoint).WithArguments("work-1").Should(HaveField("Status.Branches", HaveExactElements(
			HaveField("Agent", HaveValue(HaveField("Checkout", HaveValue(HaveField("State", state))))))))
	}
	until(v1alpha1.CheckoutPending)
	r.suspends("work")
	r.resumes("work", v1alpha1.Resume{ID: "on", Mode: v1alpha1.ResumeContinue})
	until(v1alpha1.CheckoutDone)
	r.suspends("work")
	r.resumes("work", v1alpha1.Resume{ID: "again", Mode: v1alpha1.ResumeContinue})
	r.completes("work")
}

// untilPublished waits until a task's work is published to a branch, and no pod is left.
func (r *run) untilPublished(task, branch string) {
	r.Helper()
	r.Eventually(r.current).WithArguments(task).Should(HaveField("Status.Publish", HaveValue(HaveField("Ref", "refs/heads/"+branch))))
	r.untilTrue(r.task(task), v1alpha1.TaskPublished)
}

// untilPruned waits until a Checkpoint's object is gone.
func (r *run) untilPruned(checkpoint string) {
	r.Helper()
	r.Eventually(func() error {
		_, err := r.checkpoint(checkpoint)
		return err
	}).Should(MatchError(apierrors.IsNotFound, "IsNotFound"), "checkpoint %s is pruned", checkpoint)
}

func (r *run) task(name string) *v1alpha1.Task {
	r.Helper()
	t, err := r.current(name)
	r.Expect(err).NotTo(HaveOccurred())
	return t
}

func (r *run) uid(task string) string {
	r.Helper()
	return string(r.task(task).UID)
}
