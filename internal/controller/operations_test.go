package controller_test

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/go-logr/logr"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/checkpoint"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

func testLogger() logr.Logger { return logr.Discard() }

func (w *world) create(object client.Object) {
	w.Helper()
	object.SetNamespace(w.namespace)
	w.Expect(w.client.Create(w.ctx, object)).To(Succeed())
}

func manual(name, task string) *v1alpha1.Checkpoint {
	return &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: task}, Message: "by hand"},
	}
}

// latest returns the name of the task's latest checkpoint; "" for none.
func (w *world) latest(name string) string {
	w.Helper()
	if c := w.task(name).Status.LatestCheckpoint; c != nil {
		return c.Name
	}
	return ""
}

// rewind returns the outcome of the task's last rewind; the zero value for none.
func (w *world) rewind(name string) v1alpha1.OperationStatus {
	w.Helper()
	if r := w.task(name).Status.Rewind; r != nil {
		return *r
	}
	return v1alpha1.OperationStatus{}
}

// recordedState returns the state of the task in the history.
func (w *world) recordedState(name string) (state string) {
	for _, e := range w.store.Events(string(w.task(name).UID)) {
		state = cmp.Or(e.State, state)
	}
	return state
}

// checkpointWrites returns the methods of the writes of Checkpoints.
func (w *world) checkpointWrites() (methods []string) {
	for _, request := range w.requests.list() {
		if strings.Contains(request, "/checkpoints") {
			methods = append(methods, strings.Fields(request)[0])
		}
	}
	return methods
}

// lagging is a client whose cache has not seen the newest version of a Checkpoint.
type lagging struct {
	client.Client
	seen *v1alpha1.Checkpoint
}

func (l lagging) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if c, ok := object.(*v1alpha1.Checkpoint); ok {
		l.seen.DeepCopyInto(c)
		return nil
	}
	return l.Client.Get(ctx, key, object, options...)
}

var _ = Describe("a rewind", func() {
	It("stops a running task, and starts it again", func() {
		w := newWorld()
		p := w.running("work")
		w.record("work", v1alpha1.TriggerToolCalls, 1)
		target := w.checkpoint("work-1")
		By("requesting the rewind")
		w.change("work", builders.Rewind("back", "work-1"))
		w.until("work", v1alpha1.ReasonRewinding)
		w.untilStopped(p)

		p = w.pod("work", 2)
		op := w.operation(p)
		w.Expect(*op).To(Equal(daemonapi.Operation{
			Kind: daemonapi.OperationRewind, ID: "back", OnDrift: "Fail", Checkpoint: 1, Commit: target.Status.Commit, CheckpointPosition: 4,
			Scope: "Both", Preserve: "Branch", Branch: "clew/before-back",
		}))
		By("preparing the workspace")
		w.Expect(w.kubelet.Prepared(w.ctx, p, 0, daemonapi.PrepareResult{Operation: "back", FromCheckpoint: 2, ToCheckpoint: 1, Preserved: "clew/before-back"})).To(Succeed())
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Rewind", HaveValue(HaveField("State", v1alpha1.OperationCompleted))))
		By("starting the agent")
		w.Expect(w.kubelet.AgentRuns(w.ctx, p)).To(Succeed())
		task := w.until("work", v1alpha1.ReasonRunning)
		w.untilRecorded("work")
		w.Expect(w.recordedState("work")).To(Equal("Running"))
		w.Expect(task.Status.Rewind.Preserved).To(Equal("clew/before-back"))
		w.Expect(task.Status.Attempts[0].Outcome).To(Equal(v1alpha1.AttemptStopped))
	})

	It("of a completed task does not start its agent", func() {
		w := newWorld()
		w.complete("work", w.running("work"))
		w.checkpoint("work-1")
		By("requesting the rewind")
		w.change("work", builders.Rewind("back", "work-1"))
		p := w.pod("work", 2)
		w.Expect(p.Spec.InitContainers).To(BeEmpty())
		w.Expect(p.Spec.Containers).To(HaveLen(1))
		w.Expect(w.kubelet.Prepared(w.ctx, p, 0, daemonapi.PrepareResult{Operation: "back", ToCheckpoint: 1})).To(Succeed())
		w.until("work", v1alpha1.ReasonRewound)
		w.untilRecorded("work")
		w.Expect(w.recordedState("work")).To(Equal("Rewound"))
		By("resuming the task")
		w.change("work", builders.Resume("on"))
		w.Expect(w.operation(w.pod("work", 3))).To(HaveField("Kind", daemonapi.OperationResume))
	})

	It("without a target is refused and changes nothing", func() {
		w := newWorld()
		w.complete("work", w.running("work"))
		w.change("work", builders.Rewind("nowhere", "work-99"))
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Rewind", HaveValue(SatisfyAll(
			HaveField("State", v1alpha1.OperationRefused), HaveField("Reason", v1alpha1.ReasonCheckpointNotFound),
		))))
		w.until("work", v1alpha1.ReasonCompleted)
		w.Expect(w.task("work").Status.Attempts).To(HaveLen(1))
	})

	It("marks a checkpoint that proves damaged", func() {
		w := newWorld()
		w.complete("work", w.running("work"))
		c := w.checkpoint("work-1")
		By("a rewind that finds the damage")
		w.change("work", builders.Rewind("back", "work-1"))
		w.Expect(w.kubelet.Prepared(w.ctx, w.pod("work", 2), 1, daemonapi.PrepareResult{
			Reason: v1alpha1.ReasonCheckpointCorrupted, Permanent: true, Message: "an object of checkpoint 1 is damaged",
		})).To(Succeed())
		w.Eventually(w.objects.Object(c)).Should(HaveReason(v1alpha1.CheckpointIntact, v1alpha1.ReasonCorrupted))
		w.until("work", v1alpha1.ReasonCompleted)
		By("rewinding to the damaged checkpoint again")
		w.change("work", builders.Rewind("again", "work-1"))
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Rewind", HaveValue(HaveField("ID", "again"))))
		w.Expect(w.rewind("work").State).To(Equal(v1alpha1.OperationRefused))
		w.Expect(w.rewind("work").Reason).To(Equal(v1alpha1.ReasonCheckpointCorrupted))
	})
})

var _ = Describe("the verification of a checkpoint", func() {
	It("is shown by its object, with the nearest earlier checkpoint that is intact, and by Events", func() {
		w := newWorld()
		w.complete("work", w.running("work"))
		c := w.checkpoint("work-1")
		told := func(g Gomega) (reasons []string) {
			list := &eventsv1.EventList{}
			g.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
			for _, e := range list.Items {
				if e.Regarding.Name == "work-1" {
					reasons = append(reasons, e.Reason)
				}
			}
			return reasons
		}
		intact := func(status metav1.ConditionStatus, message string) {
			GinkgoHelper()
			w.Eventually(w.objects.Object(c)).Should(HaveField("Status.Conditions", ContainElement(SatisfyAll(
				HaveField("Type", v1alpha1.CheckpointIntact), HaveField("Status", status), HaveField("Message", ContainSubstring(message))))))
		}
		w.Expect(meta.FindStatusCondition(c.Status.Conditions, v1alpha1.CheckpointIntact)).To(BeNil(), "nothing is known before it was verified")
		w.store.SetIntegrity(w.id("work"), 1, history.Integrity{Verified: time.Now()})
		intact(metav1.ConditionTrue, "verified once a day")
		By("finding damage")
		w.store.SetIntegrity(w.id("work"), 1, history.Integrity{Verified: time.Now(), Damage: "in the gitstore, a.txt is missing", IntactBefore: 7})
		intact(metav1.ConditionFalse, "a.txt is missing; checkpoint 7 is the nearest earlier one that is intact")
		w.Eventually(told).Should(ContainElement(v1alpha1.EventCheckpointCorrupted))
		By("refusing to use it")
		w.change("work", builders.Rewind("back", "work-1"))
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Rewind", HaveValue(SatisfyAll(
			HaveField("State", v1alpha1.OperationRefused), HaveField("Reason", v1alpha1.ReasonCheckpointCorrupted),
			HaveField("Message", ContainSubstring("checkpoint 7 is the nearest"))))))
		By("healing it")
		w.store.SetIntegrity(w.id("work"), 1, history.Integrity{Verified: time.Now()})
		intact(metav1.ConditionTrue, "as it was stored")
		w.Eventually(told).Should(ContainElement(v1alpha1.EventCheckpointHealed))
	})

	It("clears what a rewind reported", func() {
		w := newWorld()
		w.complete("work", w.running("work"))
		c := w.checkpoint("work-1")
		w.change("work", builders.Rewind("back", "work-1"))
		w.Expect(w.kubelet.Prepared(w.ctx, w.pod("work", 2), 1, daemonapi.PrepareResult{
			Reason: v1alpha1.ReasonCheckpointCorrupted, Permanent: true, Message: "an object of checkpoint 1 is damaged",
		})).To(Succeed())
		w.Eventually(w.objects.Object(c)).Should(HaveReason(v1alpha1.CheckpointIntact, v1alpha1.ReasonCorrupted))
		w.store.SetIntegrity(w.id("work"), 1, history.Integrity{Verified: time.Now().Add(time.Minute)})
		w.Eventually(w.objects.Object(c)).Should(HaveReason(v1alpha1.CheckpointIntact, v1alpha1.ReasonVerified))
	})
})

var _ = Describe("a checkpoint", func() {
	It("gets an object", func() {
		w := newWorld()
		w.create(manual("work-2", "other")) // somebody else's object has the name of the second
		w.running("work")
		for range 3 {
			w.record("work", v1alpha1.TriggerToolCalls, 1)
		}
		first := w.checkpoint("work-1")
		w.Expect(first.Status.Number).To(BeEquivalentTo(1))
		w.Expect(first.Status.Conversation.Position).To(BeEquivalentTo(4))
		w.Expect(first.Status.Code.FilesChanged).To(BeEquivalentTo(2))
		w.Expect(first).To(HaveCondition(v1alpha1.CheckpointDurable, metav1.ConditionTrue))
		w.checkpoint("work-3")
		second := w.checkpoint("work-2-" + string(w.task("work").UID)[:5])
		w.Expect(second.Status.Number).To(BeEquivalentTo(2))
		w.Eventually(func() string { return w.latest("work") }).Should(Equal("work-3"))
	})

	It("has one object, although its name becomes free before the manager that made it under another one has written so", func() {
		w := newWorld()
		squatter := manual("work-1", "other")
		w.create(squatter)
		w.running("work")
		w.requests.setSpoil(func(r *http.Request) error {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/status") && strings.Contains(r.URL.Path, "/tasks/") {
				return errors.New("the manager dies here")
			}
			return nil
		})
		w.record("work", v1alpha1.TriggerToolCalls, 1)
		name := "work-1-" + string(w.task("work").UID)[:5]
		w.checkpoint(name)
		w.stop()
		w.Expect(w.client.Delete(w.ctx, squatter)).To(Succeed())
		w.requests.setSpoil(nil)
		w.startManager()
		w.Eventually(func() string { return w.latest("work") }).Should(Equal(name))
		list := &v1alpha1.CheckpointList{}
		w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
		w.Expect(list.Items).To(HaveLen(1))
	})

	It("costs one status write if it is pushed at once", func() {
		w := newWorld()
		w.stop()
		w.pushTime = time.Hour
		w.startManager()
		w.running("work")
		w.store.AddCheckpoint(w.id("work"), history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerToolCalls), Time: time.Now()})
		By("creating the object")
		c := &v1alpha1.Checkpoint{}
		w.Eventually(func() error { return w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: "work-1"}, c) }).Should(Succeed())
		By("pushing the checkpoint")
		w.store.SetDurable(w.id("work"), 1)
		c = w.checkpoint("work-1")
		w.Expect(c).To(HaveCondition(v1alpha1.CheckpointDurable, metav1.ConditionTrue))
		w.Expect(w.checkpointWrites()).To(Equal([]string{http.MethodPost, http.MethodPut}))
	})

	It("is not written again while it is not pushed", func() {
		w := newWorld()
		w.running("work")
		w.store.AddCheckpoint(w.id("work"), history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerToolCalls), Time: time.Now()})
		w.checkpoint("work-1")
		messages := int64(0)
		w.Consistently(func() []string {
			messages++
			w.store.SetTotals(w.id("work"), history.Totals{Messages: messages}) // each change enqueues the checkpoint
			return w.checkpointWrites()
		}).WithTimeout(400 * time.Millisecond).WithPolling(20 * time.Millisecond).Should(Equal([]string{http.MethodPost, http.MethodPut}))
	})

	It("is not written on the basis of a cache that lags behind", func() {
		w := newWorld()
		w.complete("work", w.running("work"))
		written := w.checkpoint("work-1")
		w.stop()
		before := written.DeepCopy()
		before.Status = v1alpha1.CheckpointStatus{}
		before.ResourceVersion = "1"
		recorder := events.NewFakeRecorder(10)
		lags := lagging{Client: w.client, seen: before}
		r := &checkpoint.Reconciler{Client: lags, Live: w.client, Store: w.store, Events: recorder}
		result, err := r.Reconcile(w.ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(written)})
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(result).To(Equal(ctrl.Result{}), "no conflict, so it is not requeued")
		w.Expect(recorder.Events).To(BeEmpty())
		w.Expect(w.checkpoint("work-1").ResourceVersion).To(Equal(written.ResourceVersion))
	})

	// The gitstore was restored from an older copy, and the volume does not have it either.
	// A checkpoint that comes back is durable again.
	It("reports its loss although it was durable", func() {
		w := newWorld()
		w.running("work")
		w.store.AddCheckpoint(w.id("work"), history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerInterval), Time: time.Now(), Durable: true})
		c := w.checkpoint("work-1")
		durable := func(reason string) {
			w.Eventually(w.objects.Object(c)).Should(HaveReason(v1alpha1.CheckpointDurable, reason))
		}
		task := w.task("work")
		durable(v1alpha1.ReasonPushed)
		By("losing the checkpoint")
		w.store.SetLost(w.id("work"), 1, "checkpoint 1 is lost")
		durable(v1alpha1.ReasonCheckpointLost)
		w.Expect(c).To(HaveCondition(v1alpha1.CheckpointDurable, metav1.ConditionFalse))
		w.Eventually(w.objects.Object(task)).Should(HaveReason(v1alpha1.TaskDurable, v1alpha1.ReasonCheckpointLost))
		By("finding it again")
		w.store.SetDurable(w.id("work"), 1)
		durable(v1alpha1.ReasonPushed)
		By("losing it while no manager runs")
		w.stop()
		w.store.SetLost(w.id("work"), 1, "checkpoint 1 is lost")
		w.startManager() // it was not running when the store notified
		durable(v1alpha1.ReasonCheckpointLost)
	})

	It("becomes durable later", func() {
		w := newWorld()
		w.running("work")
		w.store.AddCheckpoint(w.id("work"), history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerInterval), Time: time.Now()})
		c := w.checkpoint("work-1")
		w.Expect(c).To(HaveCondition(v1alpha1.CheckpointDurable, metav1.ConditionFalse))
		By("refusing the push")
		w.store.SetRefused(w.id("work"), 1, "the quota of this namespace is used up")
		w.Eventually(w.objects.Object(c)).Should(HaveReason(v1alpha1.CheckpointDurable, v1alpha1.ReasonGitStoreRefused))
		By("pushing the checkpoint")
		w.store.SetDurable(w.id("work"), 1)
		w.Eventually(w.objects.Object(c)).Should(HaveReason(v1alpha1.CheckpointDurable, v1alpha1.ReasonPushed))
		w.Eventually(w.current).WithArguments("work").Should(HaveCondition(v1alpha1.TaskDurable, metav1.ConditionTrue))
	})
})

var _ = Describe("a Checkpoint that somebody applied", func() {
	It("is filled when the sidecar has taken it", func() {
		w := newWorld()
		w.running("work")
		w.record("work", v1alpha1.TriggerToolCalls, 1)
		c := manual("mine", "work")
		w.create(c)
		w.Eventually(w.objects.Object(c)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonRequested))
		w.store.AddCheckpoint(w.id("work"), history.Checkpoint{
			Attempt: 1, Trigger: string(v1alpha1.TriggerManual), Time: time.Now(), Durable: true,
			RequestedByName: "mine", RequestedByUID: string(c.UID),
		})
		w.Expect(w.checkpoint("mine").Status.Number).To(BeEquivalentTo(2))
		w.Eventually(func() string { return w.latest("work") }).Should(Equal("mine"))
		list := &v1alpha1.CheckpointList{}
		w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
		w.Expect(list.Items).To(HaveLen(2), "no second object represents the manual one")
	})

	It("reports what keeps it from being taken", func() {
		w := newWorld()
		w.running("work")
		w.store.Begin(w.id("work"), 1)
		c := manual("mine", "work")
		w.create(c)
		requested := "the checkpoint was requested from the task's daemon"
		w.Eventually(w.objects.Object(c)).Should(haveMessage(v1alpha1.CheckpointReady, Equal(requested)))
		By("the daemon fails to take it")
		w.store.SetProblem(w.id("work"), &history.Problem{Reason: v1alpha1.ReasonCheckpointFailed, Message: "too many files"})
		w.Eventually(w.objects.Object(c)).Should(haveMessage(v1alpha1.CheckpointReady, Equal(requested+", which cannot take it now: too many files")))
		By("the daemon recovers")
		w.store.SetProblem(w.id("work"), nil)
		w.Eventually(w.objects.Object(c)).Should(haveMessage(v1alpha1.CheckpointReady, Equal(requested)))
	})

	When("its task does not exist", func() {
		It("waits for the task", func() {
			w := newWorld()
			nobody := manual("nobody", "no-task")
			w.create(nobody)
			w.Eventually(w.objects.Object(nobody)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonTaskNotFound))
		})
	})

	When("its task has not started", func() {
		It("waits for the start", func() {
			w := newWorld()
			w.apply("asleep", builders.Suspended)
			w.until("asleep", v1alpha1.ReasonSuspended)
			early := manual("early", "asleep")
			w.create(early)
			w.Eventually(w.objects.Object(early)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonTaskNotStarted))
		})
	})

	When("its task has completed", func() {
		It("represents the latest checkpoint", func() {
			w := newWorld()
			w.complete("work", w.running("work"))
			late := manual("late", "work")
			w.create(late)
			w.Eventually(w.objects.Object(late)).Should(HaveReason(v1alpha1.CheckpointReady, v1alpha1.ReasonTaskStopped))
			w.Expect(late.Status.Number).To(BeEquivalentTo(1))
		})
	})

	When("its task has files that no checkpoint has", func() {
		It("waits until the task runs", func() {
			w := newWorld()
			w.complete("work", w.running("work"))
			w.change("work", builders.Resume("on"), func(t *v1alpha1.Task) { t.Spec.Resume.Prompt = "Go on." })
			w.Expect(w.kubelet.Prepared(w.ctx, w.pod("work", 2), 1, daemonapi.PrepareResult{
				Reason: v1alpha1.ReasonDriftDetected, Permanent: true, Message: "mine.txt was changed", DriftCount: 1, DriftedFiles: []string{"mine.txt"},
			})).To(Succeed())
			w.until("work", v1alpha1.ReasonDriftDetected)
			c := manual("mine", "work")
			w.create(c)
			w.Eventually(w.objects.Object(c)).Should(haveMessage(v1alpha1.CheckpointReady, SatisfyAll(
				HavePrefix("1 file was changed while the task was not running, which no checkpoint has"), ContainSubstring("onDrift Preserve"))))
			w.Expect(c.Status.Number).To(BeZero())
		})
	})
})
