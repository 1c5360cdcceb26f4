//go:build e2e

package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

var _ = Describe("a real agent that cannot continue", Label("agents"), func() {
	w := newWorld()

	DescribeTable("is stopped with the refusal of its credentials, which is not retried, until it is resumed", longest, Label("slow"), func(ctx SpecContext, a realAgent) {
		const said = "the key is expired"
		m := w.newModel(ctx, "expired", script{Steps: 3, Failures: []failure{{Status: 401, Message: said}}})
		task := w.agentTask(ctx, "expired", a, m)
		w.create(ctx, task)
		// Claude Code tries ten times by itself, which takes minutes.
		w.untilState(ctx, "expired", 8*time.Minute, clewv1.ReasonAgentUnauthorized)

		stopped := w.task(ctx, "expired")
		Expect(stopped.Status.Attempts).To(HaveExactElements(HaveField("Message", ContainSubstring(said))))
		Eventually(ctx, func() []string {
			return w.events(ctx, func(e corev1.Event) string { return e.InvolvedObject.Name + ": " + e.Message })
		}).WithTimeout(time.Minute).Should(ContainElement(And(HavePrefix("expired: "), ContainSubstring(said))), "the Event follows the status")

		m.script(ctx, script{Steps: 3})
		w.patchSpec(ctx, "expired", map[string]any{"resume": map[string]any{"id": "with-a-new-key"}})
		w.untilState(ctx, "expired", 3*time.Minute, clewv1.ReasonCompleted)
	}, agentEntries())

	It("waits until a rate limit is over", func(ctx SpecContext) {
		a := codex() // it gives up soon
		m := w.newModel(ctx, "limited", script{Steps: 3, Failures: []failure{{Status: 429, Message: "Slow down.", RetryAfterSeconds: 1, Times: 8}}})
		task := w.agentTask(ctx, "limited", a, m)
		task.Spec.BackoffLimit = ptr.To[int32](0)
		w.create(ctx, task)
		w.untilState(ctx, "limited", 5*time.Minute, clewv1.ReasonCompleted)
		Expect(w.task(ctx, "limited").Status.Failures).To(BeZero(), "rate limits do not count")
	})

	It("is not started when its program is too old", func(ctx SpecContext) {
		task := w.newTask("old")
		task.Spec.Repository = nil
		task.Spec.Prompt = ptr.To("Do it.")
		task.Spec.Agent = clewv1.Agent{Type: clewv1.AgentCodex}
		pod := &task.Spec.Template.Spec
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "programs", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		container := &pod.Containers[0]
		container.Image = codex().image()
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "programs", MountPath: "/programs"})
		// A program of that name that reports an old version.
		init := container.DeepCopy()
		init.Name, init.Args, init.Env = "make-it-old", nil, nil
		init.Command = []string{"sh", "-c", `printf '#!/bin/sh\necho codex-cli 0.98.0\n' > /programs/codex && chmod 755 /programs/codex`}
		pod.InitContainers = append(pod.InitContainers, *init)
		container.Command, container.Args = []string{"/programs/codex"}, nil
		w.create(ctx, task)
		w.untilState(ctx, "old", 2*time.Minute, clewv1.ReasonAgentTooOld)
		Expect(w.task(ctx, "old").Status.Attempts).To(HaveExactElements(
			HaveField("Message", And(ContainSubstring("0.98.0"), ContainSubstring("0.144.6")))))
	})

	It("is ended when it is silent for too long", func(ctx SpecContext) {
		a := gemini() // it waits for what a tool left running
		m := w.newModel(ctx, "idle", script{Steps: 2, Commands: map[int]string{1: leavesBehind}})
		task := w.agentTask(ctx, "idle", a, m)
		task.Spec.BackoffLimit = ptr.To[int32](0)
		task.Spec.Agent.IdleSeconds = ptr.To[int32](30)
		w.create(ctx, task)
		w.untilState(ctx, "idle", 4*time.Minute, clewv1.ReasonAgentFailed)
		status := w.task(ctx, "idle").Status
		Expect(status.Attempts[0].Message).To(ContainSubstring("idleSeconds"))
		Expect(status.LastActivity).NotTo(BeNil())
	})
})

// leavesBehind is a command that ends at once and leaves a process running that
// holds the tool's output open.
const leavesBehind = "tail -f /dev/null & true"
