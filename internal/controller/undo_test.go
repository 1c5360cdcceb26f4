package controller_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

var _ = Describe("the undo of a rewind", func() {
	// rewound is a running task that was rewound from checkpoint 3 to checkpoint 1.
	rewound := func() (*world, *corev1.Pod) {
		w := newWorld()
		p := w.running("work")
		w.say("work", 20)
		w.checkpointAt("work", 6)
		w.checkpointAt("work", 12)
		w.change("work", rewindTo("back", v1alpha1.RewindCode, v1alpha1.RewindTarget{CheckpointNumber: ptr.To[int64](1)}))
		w.until("work", v1alpha1.ReasonRewinding)
		w.untilStopped(p)
		p = w.pod("work", 2)
		w.checkpointAt("work", 20) // the one before the rewind
		w.Expect(w.kubelet.Prepared(w.ctx, p, 0, daemonapi.PrepareResult{Operation: "back", FromCheckpoint: 3, ToCheckpoint: 1})).To(Succeed())
		w.Expect(w.kubelet.AgentRuns(w.ctx, p)).To(Succeed())
		w.until("work", v1alpha1.ReasonRunning)
		return w, p
	}

	It("gives prepare the checkpoint from before it, and its scope", func() {
		w, p := rewound()
		w.store.SetRewind(w.id("work"), history.Rewind{ID: "back", Completed: true, Rewound: &history.Rewound{Scope: "Code", From: 3, To: 1}})
		By("requesting the undo while the history cannot be reached")
		w.store.SetDown(true)
		w.change("work", rewindTo("undo", "", v1alpha1.RewindTarget{UndoOf: "back"}))
		w.Eventually(w.rewind).WithArguments("work").Should(HaveField("State", v1alpha1.OperationPending))
		w.store.SetDown(false)
		w.until("work", v1alpha1.ReasonRewinding)
		w.untilStopped(p)
		r := w.rewind("work")
		w.Expect(r).To(And(HaveField("UndoOf", "back"), HaveField("Scope", v1alpha1.RewindCode), HaveField("ToCheckpoint", int64(3))))
		w.Expect(*w.operation(w.pod("work", 3))).To(Equal(daemonapi.Operation{
			Kind: daemonapi.OperationRewind, ID: "undo", OnDrift: "Fail", Checkpoint: 3, Commit: r.ToCommit, CheckpointPosition: 20,
			Scope: "Code", Preserve: "Branch", Branch: "clew/before-undo",
		}))
	})

	It("is refused for a rewind that the history does not know", func() {
		w, _ := rewound()
		w.change("work", rewindTo("undo", "", v1alpha1.RewindTarget{UndoOf: "other"}))
		w.Eventually(w.rewind).WithArguments("work").Should(And(
			HaveField("State", v1alpha1.OperationRefused), HaveField("Reason", v1alpha1.ReasonInvalidOperation),
			HaveField("Message", ContainSubstring("this task has no rewind with the id other"))))
		w.until("work", v1alpha1.ReasonRunning)
	})
})
