//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

// recall is a prompt that the model answers with everything it remembers.
const recall = "RECALL what you know"

var _ = Describe("the memory of a real agent", long, Label("agents"), func() {
	w := newWorld()

	DescribeTable("is its own session after it was killed: no recorded step runs again", Label("kill", "slow"), func(ctx SpecContext, a realAgent) {
		// The last step prints a line for each run of the others.
		m := w.newModel(ctx, "killed", script{Steps: 10, DelayMilliseconds: 500, Commands: map[int]string{10: "cat notes.txt"}})
		w.create(ctx, w.agentTask(ctx, "killed", a, m))
		w.untilToolCalls(ctx, "killed", 6, 5*time.Minute)

		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: w.task(ctx, "killed").Status.Attempts[0].PodName}}
		Expect(w.kube.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		acknowledged := stepsOf(w.conversation(ctx, "killed"))

		task := w.untilState(ctx, "killed", 3*time.Minute, clewv1.ReasonCompleted)
		Expect(len(task.Status.Attempts)).To(BeNumerically(">=", 2))
		second := task.Status.Attempts[1]
		Expect(second.Memory).To(Equal(clewv1.AgentMemorySession), second.MemoryMessage)
		resumed := w.resumedRequest(ctx, m)
		Expect(resumed.Prompts[0]).To(ContainSubstring(beginning))
		Expect(resumed.Calls).To(BeNumerically(">=", 5), "the request has the earlier turns")
		Expect(resumed.Steps).To(ContainElements(acknowledged), "it was told the steps that its session lacked")

		entries := w.conversation(ctx, "killed")
		recorded := map[int]int{}
		for _, step := range stepsOf(entries) {
			recorded[step]++
		}
		served := m.served(ctx)
		for _, step := range acknowledged {
			Expect(served[step]).To(Equal(1), "step %d was in history and must not run again", step)
		}
		for step := 1; step < 10; step += 2 {
			ran := strings.Count(outputOf(entries, 10), fmt.Sprintf("line of %d\n", step))
			Expect(ran).To(And(BeNumerically(">=", 1), BeNumerically("<=", served[step])), "step %d", step)
			if ran > 1 {
				GinkgoWriter.Printf("step %d ran %d times; the history has %d results\n", step, ran, recorded[step])
			}
		}
		for _, step := range upTo(10) {
			Expect(recorded[step]).To(BeNumerically(">=", 1), "step %d is in history", step)
		}
	}, agentEntries())

	DescribeTable("loses what is rewound, and a fork knows only what there was at its checkpoint", Label("slow"), func(ctx SpecContext, a realAgent) {
		m := w.runs(ctx, "forgets", a, script{Steps: 6, DelayMilliseconds: 100})
		entries := w.conversation(ctx, "forgets")
		Expect(stepsOf(entries)).To(Equal(upTo(6)))
		third := w.checkpointAfter(ctx, "forgets", 3)

		Expect(w.forkRecalls(ctx, "forgets", third.Name, m)).To(Equal(upTo(int(third.Status.Conversation.ToolCalls))),
			"a fork knows what there was at the checkpoint, and no more")
		for _, again := range []string{"all", "all, again"} {
			followUp := w.resumed(ctx, "forgets", strings.ReplaceAll(again, ", ", "-"), recall+" of "+again+".", nil, m)
			Expect(followUp.Steps).To(Equal(upTo(6)), "a completed task that is given a follow-up still knows everything")
			attempts := w.task(ctx, "forgets").Status.Attempts
			Expect(attempts[len(attempts)-1]).To(HaveField("Memory", clewv1.AgentMemorySession), "it continues its own session")
		}

		position := afterStep(entries, 3)
		rewind := clewv1.Rewind{ID: "forget", To: clewv1.RewindTarget{Message: &position}, Scope: clewv1.RewindConversation}
		w.patchSpec(ctx, "forgets", map[string]any{"rewind": rewind})
		task := w.untilRewound(ctx, "forgets", "forget", 2*time.Minute)
		Expect(task.Status.Rewind.ToPosition).To(Equal(position))
		Expect(stepsOf(w.conversation(ctx, "forgets"))).To(Equal(upTo(3)))
		Expect(w.resumed(ctx, "forgets", "three", recall+" of three.", &rewind, m).Steps).To(Equal(upTo(3)), "the agent does not know what came after")

		// With the code, the next step lists the files.
		m.script(ctx, script{Steps: 6, Commands: map[int]string{4: "cat notes.txt; ls src"}})
		next := w.resumedBy(ctx, "forgets", clewv1.Resume{
			ID: "go-on", Prompt: "Go on then.", Mode: clewv1.ResumeFromCheckpoint, CheckpointRef: &clewv1.NameReference{Name: third.Name},
		}, nil, m)
		Expect(next.Steps).To(Equal(upTo(3)))
		Expect(next.Answer).To(HavePrefix("step 4:"))
		seen := outputOf(w.conversation(ctx, "forgets"), 4)
		Expect(seen).To(ContainSubstring("line of 1\nline of 3\nfile2.txt"), "the files are those of the checkpoint")
		Expect(seen).NotTo(ContainSubstring("line of 5"))
		// The checkpoint may have been taken in the middle of step 4.
		changed := w.plugin(ctx, "diff", "forgets", "base", fmt.Sprint(third.Status.Number), "--name-only")
		Expect(strings.Contains(seen, "file4.txt")).To(Equal(strings.Contains(changed, "file4.txt")), "the files of the checkpoint: %s", changed)

		clean := w.resumedBy(ctx, "forgets", clewv1.Resume{ID: "clean", Prompt: recall + " of nothing.", Mode: clewv1.ResumeClean}, nil, m)
		Expect(clean.Steps).To(BeEmpty(), "a clean resume begins a new conversation")
		Expect(texts(w.conversation(ctx, "forgets"), "user")).To(Equal([]string{recall + " of nothing."}))
	}, agentEntries())

	DescribeTable("is rendered into its prompt, within limits, when its session is lost", Label("slow"), func(ctx SpecContext, a realAgent) {
		limits := clewv1.ContextLimits{
			Messages: ptr.To[int32](50), ToolCalls: ptr.To[int32](4), ToolResultBytes: ptr.To[int32](200),
			Summary: clewv1.ConversationInclude, Bytes: ptr.To[int32](6000),
		}
		m := w.runs(ctx, "rendered", a, script{Steps: 8, Commands: map[int]string{7: "seq 3000"}}, func(task *clewv1.Task) {
			task.Spec.Conversation.Context = limits
		})
		position := afterStep(w.conversation(ctx, "rendered"), 8)
		rewind := clewv1.Rewind{ID: "stay", To: clewv1.RewindTarget{Message: &position}, Scope: clewv1.RewindConversation}
		w.patchSpec(ctx, "rendered", map[string]any{"rewind": rewind})
		w.untilRewound(ctx, "rendered", "stay", 2*time.Minute)
		w.emptyHome(ctx, "rendered", a.sessions)

		request := w.resumed(ctx, "rendered", "rendered", recall+" of what you were given.", &rewind, m)

		attempts := w.task(ctx, "rendered").Status.Attempts
		last := attempts[len(attempts)-1]
		Expect(last.Memory).To(Equal(clewv1.AgentMemoryRendered))
		Expect(last.MemoryMessage).NotTo(BeEmpty(), "status says why")
		Expect(request.Calls).To(BeZero(), "the agent's session is new")
		prompt := request.prompt()
		Expect(prompt).To(ContainSubstring(beginning))
		Expect(len(prompt)).To(BeNumerically("<=", 6000+500), "in its limits, and the prompt itself")
		Expect(strings.Count(prompt, "# step ")).To(BeNumerically("<=", 4), "the newest calls")
		Expect(prompt).To(ContainSubstring("step 8 is done"))
		Expect(prompt).NotTo(ContainSubstring("2999"), "a long result is cut")
		Expect(request.Answer).To(ContainSubstring("REMEMBERED"))
		Expect(texts(w.conversation(ctx, "rendered"), "user")).To(Equal([]string{beginning, recall + " of what you were given."}),
			"what was rendered is no part of the conversation")
	}, agentEntries())
})

// resumedRequest returns the first request of the second attempt: it has another prompt.
func (w *world) resumedRequest(ctx context.Context, m *model) request {
	GinkgoHelper()
	log := m.log(ctx)
	for _, r := range log {
		grown := len(r.Prompts) == 1 && len(r.prompt()) > len(log[0].prompt())
		if len(r.Prompts) > 1 || grown {
			return r
		}
	}
	Fail("the agent of the second attempt made no request")
	return request{}
}

// checkpointAfter returns the checkpoint that was taken after a number of tool calls.
func (w *world) checkpointAfter(ctx context.Context, task string, calls int64) clewv1.Checkpoint {
	GinkgoHelper()
	ckpts := w.untilListed(ctx, task)
	for _, c := range ckpts {
		if c.Status.Conversation != nil && c.Status.Conversation.ToolCalls == calls {
			return c
		}
	}
	Fail(fmt.Sprintf("task %s has no checkpoint after %d calls: %+v", task, calls, ckpts))
	return clewv1.Checkpoint{}
}

// forkRecalls returns what the agent of a new fork remembers.
func (w *world) forkRecalls(ctx context.Context, source, checkpoint string, m *model) []int {
	GinkgoHelper()
	fork := newFork(w.namespace, source+"-fork", source, checkpoint, "forked")
	fork.Spec.Variants[0].Prompt = ptr.To(recall + " as a fork.")
	Expect(w.apply(ctx, fork)).To(Succeed())
	w.eventually(ctx, func() (*clewv1.Task, error) {
		task := &clewv1.Task{}
		return task, w.get(ctx, "forked", task)
	}).WithTimeout(2*time.Minute).Should(matchers.HaveCondition(clewv1.TaskSucceeded, metav1.ConditionTrue), "the agent of the fork has answered")
	return m.first(ctx, "as a fork.").Steps
}

// resumed resumes a stopped task with a prompt, waits for its end and returns the
// first request with the prompt. A rewind stays in the spec.
func (w *world) resumed(ctx context.Context, task, id, prompt string, rewind *clewv1.Rewind, m *model) request {
	GinkgoHelper()
	return w.resumedBy(ctx, task, clewv1.Resume{ID: id, Prompt: prompt}, rewind, m)
}

// resumedBy is resumed, for any kind of resume with a prompt.
func (w *world) resumedBy(ctx context.Context, task string, resume clewv1.Resume, rewind *clewv1.Rewind, m *model) request {
	GinkgoHelper()
	attempts := len(w.task(ctx, task).Status.Attempts)
	spec := map[string]any{"resume": resume}
	if rewind != nil {
		spec["rewind"] = rewind
	}
	w.patchSpec(ctx, task, spec)
	w.eventually(ctx, func() error {
		got := w.task(ctx, task)
		if len(got.Status.Attempts) <= attempts || state(got) != clewv1.ReasonCompleted {
			return fmt.Errorf("the task is %s after %d attempts: %s", state(got), len(got.Status.Attempts), conditionMessage(got))
		}
		return nil
	}).WithTimeout(5*time.Minute).Should(Succeed(), "task %s was resumed and is completed", task)
	return m.first(ctx, resume.Prompt)
}

// emptyHome removes folders of a stopped task's home, in a pod that mounts its volume.
func (w *world) emptyHome(ctx context.Context, task string, folders []string) {
	GinkgoHelper()
	var paths []string
	for _, f := range folders {
		paths = append(paths, "/volume/home/"+f)
	}
	last := &corev1.Pod{} // the files belong to its user
	attempts := w.task(ctx, task).Status.Attempts
	Expect(w.get(ctx, attempts[len(attempts)-1].PodName, last)).To(Succeed())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: task + "-helper"},
		Spec: corev1.PodSpec{
			RestartPolicy:   corev1.RestartPolicyNever,
			SecurityContext: last.Spec.SecurityContext,
			Containers: []corev1.Container{{
				Name: "helper", Image: demoImage, ImagePullPolicy: corev1.PullIfNotPresent,
				Command:      []string{"sh", "-euc", `for p; do test -e "$p"; rm -rf "$p"; done`, "sh"},
				Args:         paths,
				VolumeMounts: []corev1.VolumeMount{{Name: "volume", MountPath: "/volume"}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
			Volumes: []corev1.Volume{{Name: "volume", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: task + "-workspace"},
			}}},
		},
	}
	Expect(w.kube.Create(ctx, pod)).To(Succeed())
	w.eventually(ctx, func() error {
		if err := w.kube.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
		}
		return nil
	}).WithTimeout(time.Minute).Should(Succeed(), "the helper has removed %s", strings.Join(folders, ", "))
	Expect(w.kube.Delete(ctx, pod)).To(Succeed())
}
