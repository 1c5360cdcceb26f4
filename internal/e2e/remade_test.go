//go:build e2e

package e2e

import (
	"context"
	"os/exec"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var _ = Describe("a namespace that is made anew", func() {
	w := newWorld()

	It("sees nothing of the code that the old one's tasks have left, also under their names", SpecTimeout(6*time.Minute), func(ctx SpecContext) {
		checkpoint := func() (uid string) {
			w.create(ctx, w.newTask("fix", idle...))
			w.inAgent(ctx, "fix", "date +%N > /workspace/new.txt")
			w.take(ctx, "fix", "first")
			return string(w.task(ctx, "fix").UID)
		}
		old := checkpoint()
		w.plugin(ctx, "checkpoint", "branch", "fix", "first", "--name", "kept")
		Expect(w.refsOfReader(ctx)).To(And(ContainSubstring("refs/clew/"+old+"/code/1"), ContainSubstring("refs/heads/clew/fix/kept")))

		w.makeAnew(ctx)
		Expect(w.refsOfReader(ctx)).To(ContainSubstring("not found"))
		uid := checkpoint()
		Expect(w.refsOfReader(ctx)).To(And(ContainSubstring("refs/clew/"+uid+"/code/1"),
			Not(ContainSubstring(old)), Not(ContainSubstring("refs/heads/clew/fix/kept"))))
	})
})

// refsOfReader returns what git prints about the refs that somebody sees who may view the namespace.
func (w *world) refsOfReader(ctx context.Context) string {
	GinkgoHelper()
	remote := w.gitstoreRemote(ctx)
	cmd := exec.CommandContext(ctx, "git", "-c", "http.extraHeader=Authorization: Bearer "+remote.Token, "ls-remote", remote.URL)
	cmd.Env = gitEnv()
	out, _ := cmd.CombinedOutput() // refusals are looked at as well
	return string(out)
}

// makeAnew deletes the world's namespace, and makes another one of its name.
func (w *world) makeAnew(ctx context.Context) {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	Expect(w.kube.Get(ctx, client.ObjectKeyFromObject(ns), ns)).To(Succeed())
	labels := ns.Labels
	Expect(w.kube.Delete(ctx, ns)).To(Succeed())
	Eventually(func() bool {
		return apierrors.IsNotFound(w.kube.Get(ctx, client.ObjectKeyFromObject(ns), &corev1.Namespace{}))
	}).WithContext(ctx).WithTimeout(3*time.Minute).Should(BeTrue(), "the namespace is gone")
	Expect(w.kube.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace, Labels: labels}})).To(Succeed())
}
