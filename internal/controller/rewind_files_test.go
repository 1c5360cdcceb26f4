package controller_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

var _ = Describe("the rewind of files", func() {
	It("gives prepare the paths, and so does its undo", func() {
		w := newWorld()
		p := w.running("work")
		w.checkpointAt("work", 6)
		w.change("work", rewindTo("back", v1alpha1.RewindCode, v1alpha1.RewindTarget{CheckpointNumber: ptr.To[int64](1)}),
			func(t *v1alpha1.Task) { t.Spec.Rewind.Paths = []string{"src/", "**/*.snap"} })
		w.until("work", v1alpha1.ReasonRewinding)
		w.untilStopped(p)
		p = w.pod("work", 2)
		commit := w.rewind("work").ToCommit
		w.Expect(*w.operation(p)).To(Equal(daemonapi.Operation{
			Kind: daemonapi.OperationRewind, ID: "back", OnDrift: "Fail", CheckpointPosition: 6, Scope: "Code", Preserve: "Branch", Branch: "clew/before-back",
			Files: &daemonapi.RewindFiles{Checkpoint: 1, Commit: commit, Paths: []string{"src/", "**/*.snap"}},
		}))
		w.checkpointAt("work", 6) // the one before the rewind
		w.Expect(w.kubelet.Prepared(w.ctx, p, 0, daemonapi.PrepareResult{Operation: "back", FromCheckpoint: 2, ToCheckpoint: 1})).To(Succeed())
		w.Expect(w.kubelet.AgentRuns(w.ctx, p)).To(Succeed())
		w.until("work", v1alpha1.ReasonRunning)
		w.Expect(w.rewind("work").Message).To(ContainSubstring(`the path "src/" and 1 more were rewound to checkpoint 1`))

		By("undoing it")
		w.store.SetRewind(w.id("work"), history.Rewind{ID: "back", Completed: true,
			Rewound: &history.Rewound{Scope: "Code", Paths: []string{"src/", "**/*.snap"}, From: 2, To: 1}})
		w.change("work", rewindTo("undo", "", v1alpha1.RewindTarget{UndoOf: "back"}), func(t *v1alpha1.Task) { t.Spec.Rewind.Paths = nil })
		w.until("work", v1alpha1.ReasonRewinding)
		w.untilStopped(p)
		w.Expect(w.operation(w.pod("work", 3)).Files).To(HaveValue(Equal(
			daemonapi.RewindFiles{Checkpoint: 2, Commit: w.rewind("work").ToCommit, Paths: []string{"src/", "**/*.snap"}})))
	})

	It("gives prepare a commit, which it refuses if the task does not know it", func() {
		w := newWorld()
		p := w.running("work")
		commit := strings.Repeat("0123456789", 4)
		w.change("work", rewindTo("back", v1alpha1.RewindCode, v1alpha1.RewindTarget{Commit: commit}))
		w.until("work", v1alpha1.ReasonRewinding)
		w.untilStopped(p)
		p = w.pod("work", 2)
		w.Expect(w.operation(p).Files).To(HaveValue(Equal(daemonapi.RewindFiles{Commit: commit})))
		w.Expect(w.kubelet.Prepared(w.ctx, p, 0, daemonapi.PrepareResult{Operation: "Rewind/back", Failed: &daemonapi.OperationFailure{
			Kind: "Rewind", ID: "back", Reason: v1alpha1.ReasonCommitNotFound, Message: "this task knows no commit " + commit}})).To(Succeed())
		w.Expect(w.kubelet.AgentRuns(w.ctx, p)).To(Succeed())
		w.until("work", v1alpha1.ReasonRunning)
		w.Expect(w.rewind("work")).To(And(HaveField("State", v1alpha1.OperationFailed), HaveField("Reason", v1alpha1.ReasonCommitNotFound)))
	})
})
