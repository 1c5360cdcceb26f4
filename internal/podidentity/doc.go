// Package podidentity turns a bearer token into the task whose pod holds it.
//
// The daemon in a task's pod talks to the server and to the gitstore with a
// projected service account token of an audience of their own. Verifier has the
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
// Anybody who can open a connection can send tokens, so what the API server is
// asked is bounded. Before it is, the token is looked at here: it must be signed
// by one of the API server's keys (/openid/v1/jwks, read again every ten minutes
// and when an unknown key is named), be of the right audience and not expired.
// What is left for a TokenReview is whether it still holds; that is limited by
// namespace, and a token that was accepted once waits for nobody. Where the keys
// cannot be read, all tokens that were never accepted share one narrow limit.
//
// Successful answers are remembered for at most 30 seconds and refusals of the
// API server for 10, by a hash of the token; nobody's refusals make the others
// forgotten.
package podidentity
