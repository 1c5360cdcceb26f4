//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// recall is a prompt that the model answers with what it remembers.
const recall = "RECALL what you know"

func TestAKilledAgentGoesOnInItsOwnSession(t *testing.T) {
	t.Parallel()
	eachAgent(t, func(w *world, g *gomega.WithT, a realAgent) {
		// The last step tells how often the others really ran.
		m := w.newModel("killed", script{Steps: 10, DelayMilliseconds: 500, Commands: map[int]string{10: "cat notes.txt"}})
		w.create(w.agentTask("killed", a, m))
		w.untilToolCalls("killed", 6, 5*time.Minute)

		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: w.task("killed").Status.Attempts[0].PodName}}
		g.Expect(w.kube.Delete(w.ctx, pod, client.GracePeriodSeconds(0))).To(gomega.Succeed())
		acknowledged := stepsOf(w.conversation("killed"))

		task := w.untilState("killed", 3*time.Minute, clewv1.ReasonCompleted)
		g.Expect(len(task.Status.Attempts)).To(gomega.BeNumerically(">=", 2))
		second := task.Status.Attempts[1]
		g.Expect(second.Memory).To(gomega.Equal(clewv1.AgentMemorySession), second.MemoryMessage)
		resumed := w.resumedRequest(m)
		g.Expect(resumed.Prompts[0]).To(gomega.ContainSubstring(beginning))
		g.Expect(resumed.Calls).To(gomega.BeNumerically(">=", 5), "the request carries the earlier turns")
		g.Expect(resumed.Steps).To(gomega.ContainElements(acknowledged), "what its session lacked, it was told")

		entries := w.conversation("killed")
		recorded := map[int]int{}
		for _, step := range stepsOf(entries) {
			recorded[step]++
		}
		served := m.served()
		for _, step := range acknowledged {
			g.Expect(served[step]).To(gomega.Equal(1), "step %d was in history and must not run again", step)
		}
		for step := 1; step < 10; step += 2 {
			ran := strings.Count(outputOf(entries, 10), fmt.Sprintf("line of %d\n", step))
			g.Expect(ran).To(gomega.And(gomega.BeNumerically(">=", 1), gomega.BeNumerically("<=", served[step])), "step %d", step)
			if ran > 1 {
				w.Logf("step %d ran %d times; history has %d results", step, ran, recorded[step])
			}
		}
		for _, step := range upTo(10) {
			g.Expect(recorded[step]).To(gomega.BeNumerically(">=", 1), "step %d is in history", step)
		}
	})
}

// resumedRequest is the first one of the second attempt: it has another prompt.
func (w *world) resumedRequest(m *model) asked {
	w.Helper()
	log := m.log()
	for _, request := range log {
		if len(request.Prompts) > 1 || len(request.Prompts) == 1 && len(request.prompt()) > len(log[0].prompt()) {
			return request
		}
	}
	w.Fatal("the agent of the second attempt asked nothing")
	return asked{}
}

func TestAnAgentForgetsWhatIsTakenBack(t *testing.T) {
	t.Parallel()
	eachAgent(t, func(w *world, g *gomega.WithT, a realAgent) {
		m := w.runs("forgets", a, script{Steps: 6, DelayMilliseconds: 100})
		entries := w.conversation("forgets")
		g.Expect(stepsOf(entries)).To(gomega.Equal(upTo(6)))
		third := w.checkpointAfter("forgets", 3)

		g.Expect(w.forkRecalls("forgets", third.Name, m)).To(gomega.Equal(upTo(int(third.Status.Conversation.ToolCalls))),
			"a fork knows what there was at the checkpoint, and no more")
		// A completed task is resumed after a rewind, if only to where it stands.
		ckpts := w.untilListed("forgets")
		stay := clewv1.Rewind{ID: "stay", To: clewv1.RewindTarget{CheckpointRef: &clewv1.NameReference{Name: ckpts[len(ckpts)-1].Name}}}
		w.patchSpec("forgets", map[string]any{"rewind": stay})
		w.untilRewound("forgets", "stay", 2*time.Minute)
		g.Expect(w.resumed("forgets", "all", recall+" of all.", &stay, m).Steps).To(gomega.Equal(upTo(6)), "its source still knows all")

		position := afterStep(entries, 3)
		rewind := clewv1.Rewind{ID: "forget", To: clewv1.RewindTarget{Message: &position}, Scope: clewv1.RewindConversation}
		w.patchSpec("forgets", map[string]any{"rewind": rewind})
		task := w.untilRewound("forgets", "forget", 2*time.Minute)
		g.Expect(task.Status.Rewind.ToPosition).To(gomega.Equal(position))
		g.Expect(stepsOf(w.conversation("forgets"))).To(gomega.Equal(upTo(3)))
		g.Expect(w.resumed("forgets", "three", recall+" of three.", &rewind, m).Steps).To(gomega.Equal(upTo(3)), "the agent does not know what came after")

		// With the code, the next step looks at the files.
		m.script(script{Steps: 6, Commands: map[int]string{4: "cat notes.txt; ls src"}})
		both := clewv1.Rewind{ID: "both", To: clewv1.RewindTarget{CheckpointRef: &clewv1.NameReference{Name: third.Name}}, Scope: clewv1.RewindBoth}
		w.patchSpec("forgets", map[string]any{"rewind": both})
		w.untilRewound("forgets", "both", 2*time.Minute)
		next := w.resumed("forgets", "go-on", "Go on then.", &both, m)
		g.Expect(next.Steps).To(gomega.Equal(upTo(3)))
		g.Expect(next.Answer).To(gomega.HavePrefix("step 4:"))
		seen := outputOf(w.conversation("forgets"), 4)
		g.Expect(seen).To(gomega.ContainSubstring("line of 1\nline of 3\nfile2.txt"), "the files are those of the checkpoint")
		g.Expect(seen).NotTo(gomega.Or(gomega.ContainSubstring("line of 5"), gomega.ContainSubstring("file4.txt")))
	})
}

// checkpointAfter is the checkpoint that was taken for its count of calls.
func (w *world) checkpointAfter(task string, calls int64) clewv1.Checkpoint {
	w.Helper()
	ckpts := w.untilListed(task)
	for _, c := range ckpts {
		if c.Status.Conversation != nil && c.Status.Conversation.ToolCalls == calls {
			return c
		}
	}
	w.Fatalf("task %s has no checkpoint after %d calls: %+v", task, calls, ckpts)
	return clewv1.Checkpoint{}
}

// forkRecalls asks the agent of a new fork what it remembers.
func (w *world) forkRecalls(source, checkpoint string, m *model) []int {
	w.Helper()
	fork := newFork(w.namespace, source+"-fork", source, checkpoint, "forked")
	fork.Spec.Variants[0].Prompt = ptr.To(recall + " as a fork.")
	if err := w.apply(fork); err != nil {
		w.Fatal(err)
	}
	w.until("the fork's agent has answered", 2*time.Minute, func() error {
		task := &clewv1.Task{}
		if err := w.get("forked", task); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(task.Status.Conditions, clewv1.TaskSucceeded) {
			return fmt.Errorf("it is %s: %s", state(task), conditionMessage(task))
		}
		return nil
	})
	return m.first("as a fork.").Steps
}

// resumed resumes a stopped task with a prompt, waits for its end and gives the
// first request that carried the prompt. The rewind that was asked for stays.
func (w *world) resumed(task, id, prompt string, rewind *clewv1.Rewind, m *model) asked {
	w.Helper()
	attempts := len(w.task(task).Status.Attempts)
	w.patchSpec(task, map[string]any{"rewind": rewind, "resume": clewv1.Resume{ID: id, Prompt: prompt}})
	w.until("task "+task+" was resumed and is done", 2*time.Minute, func() error {
		got := w.task(task)
		if len(got.Status.Attempts) <= attempts || state(got) != clewv1.ReasonCompleted {
			return fmt.Errorf("it is %s after %d attempts: %s", state(got), len(got.Status.Attempts), conditionMessage(got))
		}
		return nil
	})
	return m.first(prompt)
}

func TestWithoutItsSessionAnAgentIsTold(t *testing.T) {
	t.Parallel()
	eachAgent(t, func(w *world, g *gomega.WithT, a realAgent) {
		limits := clewv1.ContextLimits{
			Messages: ptr.To[int32](50), ToolCalls: ptr.To[int32](4), ToolResultBytes: ptr.To[int32](200),
			Summary: clewv1.ConversationInclude, Bytes: ptr.To[int32](6000),
		}
		m := w.runs("told", a, script{Steps: 8, Commands: map[int]string{7: "seq 3000"}}, func(task *clewv1.Task) {
			task.Spec.Conversation.Context = limits
		})
		position := afterStep(w.conversation("told"), 8)
		rewind := clewv1.Rewind{ID: "stay", To: clewv1.RewindTarget{Message: &position}, Scope: clewv1.RewindConversation}
		w.patchSpec("told", map[string]any{"rewind": rewind})
		w.untilRewound("told", "stay", 2*time.Minute)
		w.emptyHome("told", a.sessions)

		request := w.resumed("told", "told", recall+" of what you were told.", &rewind, m)

		attempts := w.task("told").Status.Attempts
		last := attempts[len(attempts)-1]
		g.Expect(last.Memory).To(gomega.Equal(clewv1.AgentMemoryRendered))
		g.Expect(last.MemoryMessage).NotTo(gomega.BeEmpty(), "status says why")
		g.Expect(request.Calls).To(gomega.BeZero(), "the agent's session is new")
		prompt := request.prompt()
		g.Expect(prompt).To(gomega.ContainSubstring(beginning))
		g.Expect(len(prompt)).To(gomega.BeNumerically("<=", 6000+500), "in its limits, and the prompt itself")
		g.Expect(strings.Count(prompt, "# step ")).To(gomega.BeNumerically("<=", 4), "the newest calls")
		g.Expect(prompt).To(gomega.ContainSubstring("step 8 is done"))
		g.Expect(prompt).NotTo(gomega.ContainSubstring("2999"), "a long result is cut")
		g.Expect(request.Answer).To(gomega.ContainSubstring("REMEMBERED"))
		g.Expect(texts(w.conversation("told"), "user")).To(gomega.Equal([]string{beginning, recall + " of what you were told."}),
			"what was rendered is no part of the conversation")
	})
}

// emptyHome removes folders of a stopped task's home, by a pod on its volume.
func (w *world) emptyHome(task string, folders []string) {
	w.Helper()
	var paths []string
	for _, f := range folders {
		paths = append(paths, "/volume/home/"+f)
	}
	last := &corev1.Pod{} // the files belong to its user
	attempts := w.task(task).Status.Attempts
	if err := w.get(attempts[len(attempts)-1].PodName, last); err != nil {
		w.Fatal(err)
	}
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
	if err := w.kube.Create(w.ctx, pod); err != nil {
		w.Fatal(err)
	}
	w.until("the helper has removed "+strings.Join(folders, ", "), time.Minute, func() error {
		if err := w.kube.Get(w.ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})
	if err := w.kube.Delete(w.ctx, pod); err != nil {
		w.Fatal(err)
	}
}
