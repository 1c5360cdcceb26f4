package resources

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// PodDigest returns a digest of what a Task's spec makes of its pods: what else is in the spec changes
// nothing of it. It fails for the reasons for which NewPod does.
func PodDigest(task *v1alpha1.Task) (string, error) {
	spec := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: task.Namespace, Name: task.Name, UID: task.UID}, Spec: task.Spec}
	pod, err := newPod(PodRequest{Task: spec, Attempt: 1}, Options{})
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(pod)
	if err != nil {
		return "", fmt.Errorf("encode the pod: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]), nil
}
