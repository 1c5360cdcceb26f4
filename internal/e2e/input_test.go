//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

var _ = Describe("the repository of a task", func() {
	const (
		missingURL = "http://origin.clew-demo.svc/none.git"
		privateURL = "http://origin.clew-demo.svc/private/clew.git"
	)
	w := newWorld()

	// Prepare retries for minutes; the reason appears long before it gives up.
	It("is reported as unreachable while prepare still retries", func(ctx SpecContext) {
		task := w.newTask("unreachable", replay(2, 0)...)
		task.Spec.Repository = &clewv1.Repository{URL: "http://nowhere.invalid/none.git"}
		w.create(ctx, task)

		got := w.untilState(ctx, "unreachable", time.Minute, clewv1.ReasonRepositoryUnreachable)

		Expect(got.Status.Attempts).To(HaveExactElements(HaveField("Outcome", BeEmpty())), "the first attempt still runs")
	})

	Context("with an error that only shows when it is cloned", func() {
		// create creates a task with the repository, and the Secrets that it may name.
		create := func(ctx context.Context, repository clewv1.Repository) {
			GinkgoHelper()
			for name, password := range map[string]string{"wrong": "guess", "right": "open-sesame"} {
				Expect(w.kube.Create(ctx, &corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
					StringData: map[string]string{"username": "demo", "password": password},
				})).To(Succeed())
			}
			task := w.newTask("cloned", replay(2, 0)...)
			task.Spec.Repository = &repository
			w.create(ctx, task)
		}

		DescribeTable("becomes a condition of the task", func(ctx SpecContext, repository clewv1.Repository, reason string) {
			create(ctx, repository)
			got := w.untilState(ctx, "cloned", 2*time.Minute, reason)
			Expect(got.Status.Conditions).To(ContainElement(SatisfyAll(
				HaveField("Type", clewv1.TaskWorkspaceReady), HaveField("Status", metav1.ConditionFalse),
				HaveField("Reason", reason), HaveField("Message", Not(ContainSubstring("guess"))))))
		},
			Entry("when the repository does not exist", clewv1.Repository{URL: missingURL}, clewv1.ReasonRepositoryNotFound),
			Entry("when the ref does not exist", clewv1.Repository{URL: originURL, Ref: "no-such-branch"}, clewv1.ReasonRefNotFound),
			Entry("when it is private and there are no credentials", clewv1.Repository{URL: privateURL}, clewv1.ReasonAuthenticationFailed),
			Entry("when it is private and the credentials are wrong", clewv1.Repository{
				URL: privateURL, CredentialsSecretRef: &clewv1.NameReference{Name: "wrong"},
			}, clewv1.ReasonAuthenticationFailed),
		)

		It("is no error with the right credentials", func(ctx SpecContext) {
			create(ctx, clewv1.Repository{URL: privateURL, CredentialsSecretRef: &clewv1.NameReference{Name: "right"}})
			w.untilState(ctx, "cloned", 2*time.Minute, clewv1.ReasonCompleted)
		})
	})
})
