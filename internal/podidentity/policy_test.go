package podidentity_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/clew-dev/clew/internal/testing/apiserver"
)

func labelledPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{
			"clew.dev/task": "fix", "clew.dev/task-uid": "uid", "clew.dev/attempt": "1", "app": "x",
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
	}
}

// as returns a client of another user, with every permission that RBAC can give.
func as(t *testing.T, server *apiserver.Server, user string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(server.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestOnlyTheManagerCreatesPodsOfTasks(t *testing.T) {
	server, err := apiserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := server.InstallTaskPodPolicy(ctx); err != nil {
		t.Fatal(err)
	}
	manager := as(t, server, "system:serviceaccount:clew-system:clew-manager").CoreV1().Pods("default")
	other := as(t, server, "system:serviceaccount:kube-system:replicaset-controller").CoreV1().Pods("default")
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	gomega.NewWithT(t).Eventually(func() error {
		_, err := other.Create(ctx, labelledPod("probe"), dryRun)
		return err
	}).WithTimeout(time.Minute).WithPolling(50*time.Millisecond).Should(gomega.Satisfy(apierrors.IsForbidden), "the policy takes effect")

	refused := func(what string, err error, says string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want Forbidden with %q", what, err, says)
		}
	}
	_, err = other.Create(ctx, labelledPod("forged"), metav1.CreateOptions{})
	refused("another user creates a task's pod", err, "create a Task")
	pod, err := manager.Create(ctx, labelledPod("fix-1"), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("the manager creates a task's pod: %v", err)
	}
	plain := labelledPod("plain")
	plain.Labels = map[string]string{"app": "x"}
	if plain, err = other.Create(ctx, plain, metav1.CreateOptions{}); err != nil {
		t.Fatalf("another user creates a pod without a task: %v", err)
	}
	for what, change := range map[string]func(map[string]string){
		"another attempt": func(l map[string]string) { l["clew.dev/attempt"] = "9223372036854775807" },
		"another task":    func(l map[string]string) { l["clew.dev/task-uid"] = "another" },
		"no attempt":      func(l map[string]string) { delete(l, "clew.dev/attempt") },
		"no task":         func(l map[string]string) { delete(l, "clew.dev/task-uid") },
	} {
		changed := pod.DeepCopy()
		change(changed.Labels)
		_, err := other.Update(ctx, changed, metav1.UpdateOptions{})
		refused("an update of the labels to "+what, err, "cannot be added")
		_, err = other.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		refused("a status update of the labels to "+what, err, "cannot be added")
	}
	relabelled := plain.DeepCopy()
	relabelled.Labels["clew.dev/task-uid"] = "uid"
	_, err = other.Update(ctx, relabelled, metav1.UpdateOptions{})
	refused("a pod without a task gets the label", err, "cannot be added")

	pod.Labels["app"] = "y"
	if pod, err = other.Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Errorf("another user changes another label: %v", err)
	}
	pod.Status.Phase = corev1.PodRunning
	if _, err := other.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Errorf("the kubelet updates the status: %v", err)
	}
	if err := other.Delete(ctx, "fix-1", metav1.DeleteOptions{}); err != nil {
		t.Errorf("another user deletes the pod: %v", err)
	}

	marked := func(name string) *corev1.Pod {
		p := labelledPod(name)
		p.Labels = map[string]string{"app.kubernetes.io/managed-by": "clew", "app": "x"}
		return p
	}
	gomega.NewWithT(t).Eventually(func() error {
		_, err := other.Create(ctx, marked("probe"), dryRun)
		return err
	}).WithTimeout(time.Minute).WithPolling(50*time.Millisecond).Should(gomega.Satisfy(apierrors.IsForbidden), "the second policy takes effect")
	own, err := manager.Create(ctx, marked("own"), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("the manager creates a pod with its own label: %v", err)
	}
	unmarked := own.DeepCopy()
	delete(unmarked.Labels, "app.kubernetes.io/managed-by")
	_, err = other.Update(ctx, unmarked, metav1.UpdateOptions{})
	refused("a pod of the manager loses the label", err, "cannot be set or removed")
	plain.Labels["app.kubernetes.io/managed-by"] = "clew"
	_, err = other.Update(ctx, plain, metav1.UpdateOptions{})
	refused("a pod of somebody else gets the label", err, "cannot be set or removed")
	plain.Labels["app.kubernetes.io/managed-by"] = "Helm"
	if _, err = other.Update(ctx, plain, metav1.UpdateOptions{}); err != nil {
		t.Errorf("another value of the label is refused: %v", err)
	}
	own.Labels["app"] = "y"
	if _, err = other.Update(ctx, own, metav1.UpdateOptions{}); err != nil {
		t.Errorf("another user changes another label of the manager's pod: %v", err)
	}
}
