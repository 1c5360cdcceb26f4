package podidentity

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// refusalFor returns why a token is not accepted: ErrPodGone if its pod was deleted,
// otherwise the given reason. The API server's answer is the same for both, and
// the kubelet gets no fresh token for a deleted pod, so refusalFor looks the pod up.
// If the token's signature could not be checked, its claim about the pod is unproven,
// and need not be proven: the answer reveals to a stranger only that a pod exists whose
// UID it already knows.
func (v *Verifier) refusalFor(ctx context.Context, claimed claims, reason error) error {
	namespace, pod := claimed.Kubernetes.Namespace, claimed.Kubernetes.Pod
	if namespace == "" || pod.Name == "" || pod.UID == "" {
		return reason
	}
	found, err := v.client.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && string(found.UID) != pod.UID {
		return podGone(namespace, pod.Name)
	}
	return reason
}

// podGone returns an ErrPodGone for a pod that does not exist.
func podGone(namespace, name string) error {
	return fail(ErrPodGone, "the pod %s/%s that the token was issued for no longer exists; any process of it that still runs should exit", namespace, name)
}
