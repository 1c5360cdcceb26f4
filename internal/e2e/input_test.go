//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// A repository that cannot be reached is tried again for minutes: why shows long
// before the attempt is given up.
func TestWhatIsTriedAgainShowsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := w.newTask("unreachable", replay(2, 0)...)
	task.Spec.Repository = &clewv1.Repository{URL: "http://nowhere.invalid/none.git"}
	w.create(task)
	got := w.untilState("unreachable", time.Minute, clewv1.ReasonRepositoryUnreachable)
	if n := len(got.Status.Attempts); n != 1 || got.Status.Attempts[0].Outcome != "" {
		t.Errorf("the attempts are %+v", got.Status.Attempts)
	}
}

func TestWhatOnlyTurnsOutLaterBecomesACondition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "wrong"},
		StringData: map[string]string{"username": "demo", "password": "guess"},
	}
	right := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "right"},
		StringData: map[string]string{"username": "demo", "password": "open-sesame"},
	}
	for _, s := range []*corev1.Secret{secret, right} {
		if err := w.kube.Create(w.ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	private := "http://origin.clew-demo.svc/private/clew.git"
	cases := []struct {
		name, url, ref, secret, reason string
	}{
		{"no-repository", "http://origin.clew-demo.svc/none.git", "", "", clewv1.ReasonRepositoryNotFound},
		{"no-ref", originURL, "no-such-branch", "", clewv1.ReasonRefNotFound},
		{"no-credentials", private, "", "", clewv1.ReasonAuthenticationFailed},
		{"wrong-credentials", private, "", "wrong", clewv1.ReasonAuthenticationFailed},
		{"right-credentials", private, "", "right", ""},
	}
	for _, c := range cases {
		task := w.newTask(c.name, replay(2, 0)...)
		task.Spec.Repository = &clewv1.Repository{URL: c.url, Ref: c.ref}
		if c.secret != "" {
			task.Spec.Repository.CredentialsSecretRef = &clewv1.NameReference{Name: c.secret}
		}
		w.create(task)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			if c.reason == "" {
				w.untilState(c.name, 2*time.Minute, clewv1.ReasonCompleted)
				return
			}
			got := w.untilState(c.name, 2*time.Minute, c.reason)
			ready := meta.FindStatusCondition(got.Status.Conditions, clewv1.TaskWorkspaceReady)
			g.Expect(ready).NotTo(gomega.BeNil())
			g.Expect(ready.Status).To(gomega.Equal(metav1.ConditionFalse))
			g.Expect(ready.Reason).To(gomega.Equal(c.reason))
			g.Expect(ready.Message).NotTo(gomega.ContainSubstring("guess"))
		})
	}
}
