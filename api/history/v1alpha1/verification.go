package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VerificationState says how far the verification of a checkpoint is.
type VerificationState string

// The states of a verification.
const (
	// VerificationInProgress: it takes longer than one request waits; ask again, with Since.
	VerificationInProgress VerificationState = "InProgress"
	// VerificationIntact: every object and every message is as it was stored.
	VerificationIntact VerificationState = "Intact"
	// VerificationDamaged: Damage says what is not.
	VerificationDamaged VerificationState = "Damaged"
)

// CheckpointVerification is the outcome of verifying a checkpoint now.
type CheckpointVerification struct {
	metav1.TypeMeta `json:",inline"`
	Task            string `json:"task"`
	TaskUID         string `json:"taskUID"`
	// Number of the checkpoint in its task.
	Number int64             `json:"number"`
	State  VerificationState `json:"state"`
	// Since is when the verification was asked for. A request with it as a parameter gets the
	// outcome of the same verification.
	Since metav1.MicroTime `json:"since"`
	// Time is when the checkpoint was verified.
	Time *metav1.MicroTime `json:"time,omitempty"`
	// Damage says what is damaged, and Healing where an intact copy may come from.
	Damage  string `json:"damage,omitempty"`
	Healing string `json:"healing,omitempty"`
	// IntactBefore is the nearest earlier checkpoint that is intact as far as is known; 0 if
	// there is none, or if this one is intact.
	IntactBefore int64 `json:"intactBefore,omitempty"`
}
