// Package v1alpha1 is the API of Clew: Task, Checkpoint, ConversationSnapshot
// and Fork in the group clew.dev.
//
// It promises that a field stands in the schema only when it works, that
// everything a manifest can get wrong by itself is refused when it is applied,
// with a sentence that says what to do, and that what can only be found out
// later becomes a condition with a reason from reasons.go. It imports nothing
// of Clew.
//
// +kubebuilder:object:generate=true
// +groupName=clew.dev
package v1alpha1
