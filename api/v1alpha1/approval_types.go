package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VerbApprove is the verb on tasks that whoever adds to spec.decisions needs.
const VerbApprove = "approve"

const (
	// MaxDecisions bounds spec.decisions.
	MaxDecisions = 64
	// MaxRequests bounds status.requests.
	MaxRequests = 32
)

// Answer is an answer to a request.
// +kubebuilder:validation:Enum=Approve;Deny
type Answer string

const (
	// AnswerApprove lets the tool run, once.
	AnswerApprove Answer = "Approve"
	// AnswerDeny refuses the call.
	AnswerDeny Answer = "Deny"
)

// Decision answers a request in status.requests.
type Decision struct {
	// requestID is the id of the request. A decision for an id that no request has, or whose request
	// has its answer, does nothing, now and later.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$')",message="requestID must be the id of a request in status.requests"
	RequestID string `json:"requestID"`
	// answer to it.
	// +required
	Answer Answer `json:"answer"`
	// reason is told to the agent, and is in the timeline.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\x00-\\x1f\\x7f]')",message="reason must be one line of text without control characters"
	Reason string `json:"reason,omitempty"`
	// decidedBy is who decided. Leave it out: the admission policy clew-task-requesters sets it, and
	// ignores what a client sends.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	DecidedBy string `json:"decidedBy,omitempty"`
}

// RequestWait is what waits for the answer to a request.
// +kubebuilder:validation:Enum=Call;Task
type RequestWait string

const (
	// WaitCall: the call waits in the hook of its agent, which goes on with the answer.
	WaitCall RequestWait = "Call"
	// WaitTask: the agent was stopped, and the attempt that follows the answer is told it.
	WaitTask RequestWait = "Task"
)

// ToolRequest is a tool call that waits for a person's answer.
type ToolRequest struct {
	// id of the request. The task's daemon makes it from the attempt, the tool and its input; no other
	// call ever has it.
	// +required
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// attempt in which the tool was called.
	// +required
	Attempt int64 `json:"attempt"`
	// tool that was called.
	// +required
	// +kubebuilder:validation:MaxLength=256
	Tool string `json:"tool"`
	// input is the beginning of the tool's input, as JSON and without the values of Secrets.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Input string `json:"input,omitempty"`
	// inputDigest is the SHA-256 of the input, by which the call is known again when it is repeated.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	InputDigest string `json:"inputDigest,omitempty"`
	// message of the rule for which it is asked.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
	// waits is what waits for the answer.
	// +required
	Waits RequestWait `json:"waits"`
	// since when it waits.
	// +required
	Since metav1.Time `json:"since"`
	// deadline is when it is denied if nobody has answered.
	// +required
	Deadline metav1.Time `json:"deadline"`
	// answer that was given; absent while there is none. The request leaves the list once the agent has
	// it.
	// +optional
	Answer *RequestAnswer `json:"answer,omitempty"`
}

// RequestAnswer is the answer to a request.
type RequestAnswer struct {
	// answer that was given.
	// +required
	Answer Answer `json:"answer"`
	// by is who gave it: the user, the field manager, marked as such, when no user name is known, or
	// clew, when a rule or the deadline did.
	// +required
	// +kubebuilder:validation:MaxLength=512
	By string `json:"by"`
	// reason that was given.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Reason string `json:"reason,omitempty"`
	// time of the answer.
	// +required
	Time metav1.Time `json:"time"`
}
