// Package podidentity turns a bearer token into the task whose pod holds it.
//
// The daemon in a task's pod talks to the server and to the gitstore with a
// projected service account token of the audience "clew.dev". Verifier has the
// API server review that token, reads which pod it is bound to, and reads that
// pod live: the labels clew.dev/task, clew.dev/task-uid and clew.dev/attempt
// say which attempt of which task it is, and the controller owner reference
// must name the same Task by UID.
//
// What this promises: the caller holds a token that the API server issued for
// this very pod (same UID, still existing), and the pod says it is that
// attempt of that task. What it cannot promise: that the manager made the pod.
// Labels and owner references are the word of whoever created the pod, so
// anyone who may create pods in a namespace can pose as any task of that
// namespace, though never of another one. Such a person could as well read
// the tasks' volumes. A TaskChecker narrows this to tasks that exist.
//
// Tokens that belong to no task's pod can still read: see
// Verifier.VerifyReader.
//
// Successful answers are remembered for at most 30 seconds, by a hash of the
// token; refusals never are.
package podidentity
