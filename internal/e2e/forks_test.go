//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

// makesFiles is an agent that fails without its variables, makes files, and goes on working if it
// was given a way.
const makesFiles = `set -e; test "$MODE" = fast; test -n "$GITHUB_TOKEN"
mkdir -p docs; echo guide >docs/guide.md; echo code >code.txt; echo "way $WAY" >way.txt
[ -z "$WAY" ] || exec sleep infinity`

var _ = Describe("what goes on from the work of another task", func() {
	w := newWorld()
	// judged waits until a Fork has a reason.
	judged := func(ctx context.Context, name, reason string) *clewv1.Fork {
		GinkgoHelper()
		f := &clewv1.Fork{}
		w.eventually(ctx, func() (*clewv1.Fork, error) { return f, w.get(ctx, name, f) }).WithTimeout(time.Minute).
			Should(matchers.HaveReason(clewv1.ForkComplete, reason))
		return f
	}
	// completes creates a task and waits for its end, which has to be a good one.
	completes := func(ctx context.Context, task *clewv1.Task) {
		GinkgoHelper()
		w.create(ctx, task)
		w.untilState(ctx, task.Name, 3*time.Minute, clewv1.ReasonCompleted)
	}

	It("is forked, compared and picked, takes files alone, and also goes on from a task that is gone", SpecTimeout(10*time.Minute), func(ctx SpecContext) {
		source := w.newTask("source", "sh", "-c", makesFiles)
		source.Spec.BackoffLimit = new(int32)
		source.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "MODE", Value: "fast"}, {Name: "GITHUB_TOKEN", Value: "hunter2-hunter2"}}
		completes(ctx, source)

		By("forking it into two")
		w.plugin(ctx, "fork", "source", "--name", "try", "--variant", "name=one,env=WAY=one", "--variant", "name=two,env=WAY=two")
		for _, name := range []string{"one", "two"} {
			w.untilAgentRuns(ctx, name, 3*time.Minute)
			Eventually(ctx, w.inAgent).WithArguments(ctx, name, "cat /workspace/way.txt").WithTimeout(time.Minute).Should(Equal("way " + name + "\n"))
			w.take(ctx, name, name+"-way")
		}
		Expect(w.plugin(ctx, "tree", "source")).To(And(ContainSubstring("├─ one"), ContainSubstring("└─ two")))
		Expect(w.plugin(ctx, "compare", "try")).To(And(ContainSubstring("one "), ContainSubstring("two ")))
		Expect(w.plugin(ctx, "diff", "one", "latest", "two:latest", "--name-only")).To(Equal("way.txt\n"))
		w.plugin(ctx, "pick", "try", "two", "--yes")
		w.untilState(ctx, "one", 2*time.Minute, clewv1.ReasonSuspended)
		Expect(state(w.task(ctx, "two"))).To(Equal(clewv1.ReasonRunning))

		By("copying files alone")
		copied := w.newTask("copied", "true")
		copied.Spec.StartFrom = &clewv1.StartFrom{TaskRef: clewv1.NameReference{Name: "source"}, CopyFiles: []string{"docs/", "way.*"}}
		completes(ctx, copied)
		Expect(w.plugin(ctx, "diff", "copied", "--name-only")).To(Equal("docs/guide.md\nway.txt\n"))

		By("starting from it when it is gone")
		gone := w.task(ctx, "source")
		w.kubectl(ctx, "delete", "tasks.clew.dev", "source")
		later := w.newTask("later", "grep", "-qx", "code", "code.txt")
		later.Spec.StartFrom = &clewv1.StartFrom{TaskRef: clewv1.NameReference{Name: "source"}}
		later.Spec.BackoffLimit = new(int32)
		completes(ctx, later)

		By("forking it when it is gone, whose token was not kept")
		w.plugin(ctx, "fork", "source", "--name", "refused", "--wait=false")
		f := judged(ctx, "refused", clewv1.ReasonValuesNotKept)
		Expect(f.Spec.TaskUID).To(Equal(string(gone.UID)))
		Expect(f.Status.Conditions).To(ContainElement(HaveField("Message", And(ContainSubstring("GITHUB_TOKEN"), Not(ContainSubstring("hunter2"))))))
		w.plugin(ctx, "fork", "source", "--name", "again", "--variant", "name=again,env=GITHUB_TOKEN=another-token")
		w.untilState(ctx, "again", 3*time.Minute, clewv1.ReasonCompleted)
		Expect(w.task(ctx, "again").Status.Source.TaskUID).To(Equal(string(gone.UID)))
	})
})
