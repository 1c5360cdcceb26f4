// Package v1alpha1 is the API of Clew: Task, Checkpoint, ConversationSnapshot
// and Fork in the group clew.dev.
//
// It promises that the schema has a field only when the field works, that every
// mistake which is visible in a manifest itself is refused when it is applied,
// with a sentence that says what to do, and that mistakes found later become a
// condition with a reason from reasons.go. It imports nothing of Clew.
//
// +kubebuilder:object:generate=true
// +groupName=clew.dev
package v1alpha1
