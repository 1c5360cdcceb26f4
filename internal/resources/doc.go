// Package resources builds the objects of a task in the cluster: its
// PersistentVolumeClaim, the pods of its attempts, the service account of those
// pods, and the Checkpoint and ConversationSnapshot objects for what is recorded.
//
// The builders are pure: the same task and options give the same object. They
// promise that a pod keeps the user's template where it does not conflict with
// Clew's own parts, that it passes the restricted Pod Security Standard, that
// only prepare and daemon can reach the daemon's folder or the token, and that
// every pod of a task has the same paths. ValidateTemplate returns, as a
// sentence, why a template cannot be used; the admission policy in
// config/admission says the same at kubectl apply.
package resources

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Names of Clew's own parts of a pod.
const (
	// VolumePrefix is the prefix of the names of Clew's own volumes.
	VolumePrefix = "clew-"
	// ServiceAccount is the account that task pods run as; it has no rights.
	ServiceAccount = "clew-task"

	workspaceVolume  = "clew-workspace"
	runVolume        = "clew-run"
	tokenVolume      = "clew-token"
	scratchVolume    = "clew-tmp"
	repositoryVolume = "clew-repository"
)

// PodName returns the name of the pod of a task's attempt.
func PodName(task string, attempt int64) string {
	return fmt.Sprintf("%s-%d", task, attempt)
}

// PublisherName returns the name of a pod that publishes a task's work. It is no name of a pod
// of an attempt, of any task.
func PublisherName(task string, number int64) string {
	return fmt.Sprintf("%s-%d-publish", task, number)
}

// BranchPublisherName returns the name of a pod that pushes a branch of a Checkpoint to the
// task's repository.
func BranchPublisherName(c *v1alpha1.Checkpoint, branch string, number int64) string {
	sum := sha256.Sum256([]byte(string(c.UID) + " " + branch))
	return PublisherName(c.Spec.TaskRef.Name+"-"+hex.EncodeToString(sum[:5]), number)
}

// claimSuffix ends the names of all tasks' claims.
const claimSuffix = "-workspace"

// ClaimName returns the name of the first PersistentVolumeClaim of a task.
func ClaimName(task string) string { return task + claimSuffix }

// ClaimOf returns the name of a task's PersistentVolumeClaim, as its status has it.
func ClaimOf(task *v1alpha1.Task) string { return cmp.Or(task.Status.ClaimName, ClaimName(task.Name)) }

// NextClaimName returns the name of the claim that follows the one with the given name, which is left
// behind: TASK.2-workspace, and so on. No name of a task has a dot, so no other task's claim has it.
func NextClaimName(task, left string) string {
	number, ok := strings.CutPrefix(strings.TrimSuffix(left, claimSuffix), task+".")
	n, err := strconv.Atoi(number)
	if !ok || err != nil {
		n = 1
	}
	return ClaimName(task + "." + strconv.Itoa(n+1))
}

// MountedClaim returns the name of the claim with the workspace of a task's pod; "" if it has none.
func MountedClaim(pod *corev1.Pod) string {
	for _, v := range pod.Spec.Volumes {
		if v.Name == workspaceVolume && v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// Labels returns the labels of everything that Clew creates for a task.
func Labels(task *v1alpha1.Task) map[string]string {
	return map[string]string{
		v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
		v1alpha1.LabelTask:      task.Name,
		v1alpha1.LabelTaskUID:   string(task.UID),
	}
}

// IsOf reports whether the object was created for this task, and not for another one of the
// same name.
func IsOf(object metav1.Object, task *v1alpha1.Task) bool {
	return object.GetLabels()[v1alpha1.LabelTaskUID] == string(task.UID)
}

// Attempt returns the attempt's number from a pod's labels; 0 if there is none.
func Attempt(pod *corev1.Pod) int64 {
	n, err := strconv.ParseInt(pod.Labels[v1alpha1.LabelAttempt], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Owner returns the owner reference of objects that are deleted together with the task.
func Owner(task *v1alpha1.Task) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion:         v1alpha1.GroupVersion.String(),
		Kind:               "Task",
		Name:               task.Name,
		UID:                task.UID,
		Controller:         ptr.To(true),
		BlockOwnerDeletion: ptr.To(true),
	}
}

// NewServiceAccount returns the account of all task pods of a namespace. It has no roles,
// and pods get no token for the Kubernetes API.
func NewServiceAccount(namespace string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      ServiceAccount,
			Labels:    map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy},
		},
		AutomountServiceAccountToken: ptr.To(false),
	}
}

// NewClaim returns the volume claim of a task, with the fallback access mode if the task
// names none. It is deleted with the task, unless the task's retention is Retain.
func NewClaim(task *v1alpha1.Task, fallback corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
	mode := corev1.PersistentVolumeAccessMode(task.Spec.Workspace.AccessMode)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: task.Namespace,
			Name:      ClaimOf(task),
			Labels:    Labels(task),
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{cmp.Or(mode, fallback, corev1.ReadWriteOnce)},
			StorageClassName: task.Spec.Workspace.StorageClassName,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: task.Spec.Workspace.Size,
			}},
		},
	}
	if task.Spec.Workspace.Retention != v1alpha1.WorkspaceRetain {
		claim.OwnerReferences = []metav1.OwnerReference{Owner(task)}
	}
	return claim
}
