// Package podidentity turns a bearer token into the task whose pod holds it.
//
// The daemon in a task's pod authenticates to the server and to the gitstore with a
// projected service account token of an audience of its own. Verifier has the API
// server review that token, reads which pod it is bound to, and reads that pod live:
// the labels clew.dev/task, clew.dev/task-uid and clew.dev/attempt say which attempt
// of which task the pod is, and its controller owner reference must name the same Task
// by UID.
//
// The package promises: the caller holds a token that the API server issued for exactly
// this pod (same UID, still existing), and the pod claims to be that attempt of that
// task. LiveTasks, a TaskChecker, checks the claim against the manager's record: the
// Task's status must list the pod by number, name and UID. So a pod that somebody else
// created is not a task's, whatever its labels say. People who may exec into pods of a
// namespace, or request tokens bound to them, can still use the token of a task's own
// pod.
//
// A token whose pod was deleted is distinguished from one that is merely refused: see
// ErrPodGone.
//
// Tokens that do not belong to a task's pod can still give read access: see
// Verifier.VerifyReader.
//
// Anybody who can open a connection can send tokens, so requests to the API server are
// bounded. Tokens are first checked locally: a token must be signed by one of the API
// server's keys (/openid/v1/jwks, reread every ten minutes and when a token names an
// unknown key), have the right audience and not be expired. A TokenReview then only
// needs to establish whether the token is still valid. TokenReviews are limited per
// namespace, with a separate limit for tokens that were accepted before, so that these
// do not wait behind new ones. Access reviews of token holders are limited per namespace
// too, since a caller chooses the namespace it asks about. When the keys cannot be read,
// all tokens that were never accepted share one narrow limit.
//
// Successful answers and the holders of tokens are cached for at most 30 seconds, and
// refusals of the API server for 10, by a hash of the token. Refusals never evict
// successful answers. A successful answer holds for the namespace that it was given about, by
// UID, and not for one that is made anew under the same name.
package podidentity
