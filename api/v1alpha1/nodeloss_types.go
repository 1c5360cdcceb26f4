package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeLossPolicy says what becomes of a task whose node cannot be reached for long.
// +kubebuilder:validation:Enum=Replace;Wait
type NodeLossPolicy string

const (
	// NodeLossReplace lets the task go on elsewhere, on a new volume.
	NodeLossReplace NodeLossPolicy = "Replace"
	// NodeLossWait lets the task wait for its node.
	NodeLossWait NodeLossPolicy = "Wait"
)

// NodeLoss is what becomes of a task whose pod or volume is on a node that cannot be reached: the
// node's condition Ready is not True, or the Node does not exist any more. Meanwhile the condition
// Succeeded has the reason NodeUnreachable.
//
// Where Kubernetes itself says that nothing runs on the node any more (it has the taint
// node.kubernetes.io/out-of-service, or does not exist) and another node can attach the volume, its
// PersistentVolume not being bound to the lost one, the task goes on with the same volume, whatever the
// policy is, and nothing is lost.
type NodeLoss struct {
	// afterSeconds is how long the node has to be unreachable for the task to go on without it. The
	// time begins when Kubernetes sets the node's condition, which it does by default 50 seconds
	// after the last sign of life. A Task that is deleted waits as long for a pod on such a node,
	// whatever the policy is.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:XValidation:rule="self >= 30 && self <= 86400",message="nodeLoss.afterSeconds must be from 30 to 86400, which is a day: set nodeLoss.policy to Wait to wait for the node however long it takes"
	AfterSeconds int64 `json:"afterSeconds,omitempty"`
	// policy is what happens then. With Replace the attempt ends as NodeLost, and the task goes on
	// from its last durable checkpoint with a new volume, on another node; what its agent did after
	// that checkpoint is lost, as its timeline says. The lost pod is deleted, but not by force: nothing of it
	// gets into the history, the gitstore or the checkpoints any more, and the kubelet ends it when
	// the node is back. The former volume is deleted after that, whatever workspace.retention says.
	// A task at rest, whose volume alone is on the node, gets a new one with its resume, if its
	// last checkpoint is durable. With Wait the task stays where it is until the node is back, and
	// keeps its place among the tasks that run at once. While no node of the cluster can be reached,
	// every task waits.
	// +optional
	// +kubebuilder:default=Replace
	Policy NodeLossPolicy `json:"policy,omitempty"`
}

// UnreachableNode is a node that a task needs and that cannot be reached.
type UnreachableNode struct {
	// name of the node.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// since is when it was last known to be reachable.
	// +required
	Since metav1.Time `json:"since"`
}

// FormerClaim is a PersistentVolumeClaim that a task has left behind.
type FormerClaim struct {
	// name of the claim.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the claim.
	// +required
	// +kubebuilder:validation:MaxLength=63
	UID string `json:"uid"`
}
