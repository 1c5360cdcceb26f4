//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

func TestRefusedCredentialsAreToldAndNotRetried(t *testing.T) {
	t.Parallel()
	eachAgent(t, func(w *world, g *gomega.WithT, a realAgent) {
		const said = "the key is expired"
		m := w.newModel("expired", script{Steps: 3, Failures: []failure{{Status: 401, Message: said}}})
		task := w.agentTask("expired", a, m)
		w.create(task)
		// Claude Code tries ten times by itself, which takes minutes.
		w.untilState("expired", 8*time.Minute, clewv1.ReasonAgentUnauthorized)

		stopped := w.task("expired")
		g.Expect(stopped.Status.Attempts).To(gomega.HaveLen(1))
		g.Expect(stopped.Status.Attempts[0].Message).To(gomega.ContainSubstring(said))
		g.Expect(w.kubectl("get", "events", "--field-selector", "involvedObject.name=expired")).To(gomega.ContainSubstring(said))

		m.script(script{Steps: 3})
		w.patchSpec("expired", map[string]any{"resume": map[string]any{"id": "with-a-new-key"}})
		w.untilState("expired", 3*time.Minute, clewv1.ReasonCompleted)
	})
}

func TestARateLimitIsWaitedOut(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	a := realAgents[1] // Codex gives up soon
	m := w.newModel("limited", script{Steps: 3, Failures: []failure{{Status: 429, Message: "Slow down.", RetryAfterSeconds: 1, Times: 8}}})
	task := w.agentTask("limited", a, m)
	task.Spec.BackoffLimit = ptr.To[int32](0)
	w.create(task)
	w.untilState("limited", 5*time.Minute, clewv1.ReasonCompleted)
	g.Expect(w.task("limited").Status.Failures).To(gomega.BeZero(), "rate limits do not count")
}

func TestAProgramThatIsTooOldIsNotStarted(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	task := w.newTask("old")
	task.Spec.Repository = nil
	task.Spec.Prompt = ptr.To("Do it.")
	task.Spec.Agent = clewv1.Agent{Type: clewv1.AgentCodex}
	pod := &task.Spec.Template.Spec
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "programs", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	container := &pod.Containers[0]
	container.Image = realAgents[1].image()
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "programs", MountPath: "/programs"})
	// A program of that name that says it is an old one.
	init := container.DeepCopy()
	init.Name, init.Args, init.Env = "make-it-old", nil, nil
	init.Command = []string{"sh", "-c", `printf '#!/bin/sh\necho codex-cli 0.98.0\n' > /programs/codex && chmod 755 /programs/codex`}
	pod.InitContainers = append(pod.InitContainers, *init)
	container.Command, container.Args = []string{"/programs/codex"}, nil
	w.create(task)
	w.untilState("old", 2*time.Minute, clewv1.ReasonAgentTooOld)
	attempts := w.task("old").Status.Attempts
	g.Expect(attempts).To(gomega.HaveLen(1))
	g.Expect(attempts[0].Message).To(gomega.And(gomega.ContainSubstring("0.98.0"), gomega.ContainSubstring("0.144.6")))
}

func TestASilentAgentIsEnded(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	a := realAgents[2] // the Gemini CLI waits for what a tool left running
	m := w.newModel("idle", script{Steps: 2, Commands: map[int]string{1: leavesBehind}})
	task := w.agentTask("idle", a, m)
	task.Spec.BackoffLimit = ptr.To[int32](0)
	task.Spec.Agent.IdleSeconds = ptr.To[int32](30)
	w.create(task)
	w.untilState("idle", 4*time.Minute, clewv1.ReasonAgentFailed)
	g.Expect(w.task("idle").Status.Attempts[0].Message).To(gomega.ContainSubstring("idleSeconds"))
	g.Expect(w.task("idle").Status.LastActivity).NotTo(gomega.BeNil())
}

// leavesBehind is a command that ends at once and leaves something running, with
// the tool's own output.
const leavesBehind = "tail -f /dev/null & true"
