package podidentity

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// refused says why a token is not accepted: because its pod was deleted, or else
// for the reason that is given. The API server answers the same for both, and
// the kubelet gets no fresh token for a pod that is gone, so the pod is looked
// for. Where the token's signature could not be checked, what it says of its pod
// is not proven, and need not be: the answer tells a stranger no more than that
// a pod that it can name by UID exists.
func (v *Verifier) refused(ctx context.Context, said claims, reason error) error {
	namespace, pod := said.Kubernetes.Namespace, said.Kubernetes.Pod
	if namespace == "" || pod.Name == "" || pod.UID == "" {
		return reason
	}
	found, err := v.client.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && string(found.UID) != pod.UID {
		return podGone(namespace, pod.Name)
	}
	return reason
}

func podGone(namespace, name string) error {
	return fail(ErrPodGone, "the pod %s/%s that the token was made for does not exist any more; what still runs of it should end", namespace, name)
}
