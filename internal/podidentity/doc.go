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
// attempt of that task. LiveTasks, a TaskChecker, has the manager confirm it: the
// pod stands in the Task's status by number, name and UID. So a pod that
// somebody else made is no task's, whatever its labels say. What remains to
// people who may exec into pods of a namespace, or ask for tokens that are bound
// to them, is to use the token of a task's own pod.
//
// A token whose pod was deleted is told from one that is only refused: see
// ErrPodGone.
//
// Tokens that belong to no task's pod can still read: see
// Verifier.VerifyReader.
//
// Anybody who can open a connection can send tokens, so what the API server is
// asked is bounded. Before it is, the token is looked at here: it must be signed
// by one of the API server's keys (/openid/v1/jwks, read again every ten minutes
// and when an unknown key is named), be of the right audience and not expired.
// What is left for a TokenReview is whether it still holds; that is limited by
// namespace, apart for tokens that were accepted once, which wait for no new ones;
// so is what is asked about the rights of their holders, since a caller names the
// namespace. Where the keys cannot be read, all tokens that were never accepted share
// one narrow limit.
//
// Successful answers, and whose token it is, are remembered for at most 30 seconds and refusals of the
// API server for 10, by a hash of the token; nobody's refusals make the others
// forgotten.
package podidentity
