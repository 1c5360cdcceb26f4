// Package gitstoreapi is the gitstore's contract with its clients, so that they need not
// import the server: the reasons for which it refuses a request, and the Client for
// requests outside git's protocol. The gitstore writes a refusal as
// "clew: <Reason>: <sentence>", which git shows as "remote: clew: ..."; Parse finds it in
// git's output. The names of refs are in package refname.
package gitstoreapi

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Reason says why a request was refused, as one CamelCase word.
type Reason string

// The reasons of a refusal.
const (
	// Unauthenticated: no token, or one that the API server does not accept.
	Unauthenticated Reason = "Unauthenticated"
	// Forbidden: a valid token, but its holder may not do this.
	Forbidden Reason = "Forbidden"
	// NotFound: no such repository, or no such path.
	NotFound Reason = "NotFound"
	// StaleAttempt: a newer attempt of the task was seen; the caller must stop.
	StaleAttempt Reason = "StaleAttempt"
	// PodGone: the pod that the token is bound to no longer exists; the caller must stop.
	PodGone Reason = "PodGone"
	// TaskDeleted: the task's checkpoints were deleted for good; it can no longer push.
	TaskDeleted Reason = "TaskDeleted"
	// QuotaExceeded: the namespace may not store more.
	QuotaExceeded Reason = "QuotaExceeded"
	// VolumeFull: the gitstore's volume has no free space.
	VolumeFull Reason = "VolumeFull"
	// PushTooLarge: the push is larger than the gitstore ever accepts.
	PushTooLarge Reason = "PushTooLarge"
	// MemoryExceeded: git would need more memory than the gitstore allows it.
	MemoryExceeded Reason = "MemoryExceeded"
	// RefNotAllowed: the push names a ref that the task may not write.
	RefNotAllowed Reason = "RefNotAllowed"
	// RefImmutable: the push would change a checkpoint's ref.
	RefImmutable Reason = "RefImmutable"
	// RefExists: a branch that is to be made exists, at another commit.
	RefExists Reason = "RefExists"
	// DeleteNotAllowed: the push would delete a ref.
	DeleteNotAllowed Reason = "DeleteNotAllowed"
	// ObjectsRefused: objects of the push are corrupt, missing or dangerous.
	ObjectsRefused Reason = "ObjectsRefused"
	// Moved: a point of a difference is another commit now than on the page before.
	Moved Reason = "Moved"
	// Ambiguous: the task has checkpoints in several repositories.
	Ambiguous Reason = "Ambiguous"
	// Damaged: objects that the request needs are missing or damaged.
	Damaged Reason = "Damaged"
	// BadRequest: the request is not one that a git client sends.
	BadRequest Reason = "BadRequest"
	// Unavailable: the gitstore cannot serve the request at the moment.
	Unavailable Reason = "Unavailable"
)

// MissingObjects is part of the sentence that refuses a push which refers to objects it does
// not contain. Clients look for these words and then push everything; they may be older or
// newer than the gitstore, so the words never change.
const MissingObjects = "objects that it does not bring"

// DamagedObjects is part of the sentence that refuses a push which builds on damaged objects.
// Clients look for these words, which never change, and bring the objects if they have them.
const DamagedObjects = "objects that are missing or damaged in the gitstore"

// Refusal is the error of a refused request: a reason for programs and a sentence for
// people.
type Refusal struct {
	Reason  Reason
	Message string
}

// New returns a refusal with a formatted sentence.
func New(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// newestAttempt is the part of the sentence of Stale that names the newest attempt, as a
// format. Newest parses it, in clients that may be older or newer than the gitstore, so the
// words never change.
const newestAttempt = "because attempt %d has been seen"

// Stale returns the refusal for an attempt of a task that a newer one has replaced.
func Stale(task string, attempt, newest int64) *Refusal {
	return New(StaleAttempt,
		"attempt %d of the task %s may not write any more, "+newestAttempt+"; this pod has been replaced and should stop",
		attempt, task, newest)
}

// seen matches newestAttempt in the message of Stale.
var seen = regexp.MustCompile(strings.Replace(regexp.QuoteMeta(newestAttempt), "%d", `(\d{1,18})`, 1))

// Newest returns the newest attempt that a refusal of Stale names, 0 for any other refusal.
func (r *Refusal) Newest() int64 {
	match := seen.FindStringSubmatch(r.Message)
	if r.Reason != StaleAttempt || match == nil {
		return 0
	}
	newest, err := strconv.ParseInt(match[1], 10, 64)
	if err != nil {
		return 0 // cannot happen: 18 digits always fit
	}
	return newest
}

// Error returns "clew: <Reason>: <sentence>", the form that is sent to clients.
func (r *Refusal) Error() string {
	return "clew: " + string(r.Reason) + ": " + r.Message
}

// Retryable reports whether the same push may succeed later without anyone
// changing it.
func (r *Refusal) Retryable() bool {
	switch r.Reason {
	case Unauthenticated, QuotaExceeded, VolumeFull, Unavailable:
		return true
	default:
		return false
	}
}

// NoRoom returns the refusal to store more than there is room for; nil if err is anything else. Others
// of the same namespace would be refused likewise.
func NoRoom(err error) *Refusal {
	var refused *Refusal
	if errors.As(err, &refused) && (refused.Reason == QuotaExceeded || refused.Reason == VolumeFull) {
		return refused
	}
	return nil
}

// written matches a line that is a refusal of the gitstore.
var written = regexp.MustCompile(`(?m)^(?:remote: )?clew: ([A-Z][A-Za-z]+): ([^\r\n]*?)[ \t]*\r?$`)

// gitsOwn maps git's own messages to reasons, the most specific first.
var gitsOwn = []struct {
	pattern *regexp.Regexp
	reason  Reason
	message string
}{
	{regexp.MustCompile(`No space left on device|Disk quota exceeded`), VolumeFull,
		"the gitstore's volume ran full during the push; nothing of it was stored"},
	{regexp.MustCompile(`(?m)^remote: .*(?:[Oo]ut of memory|Cannot allocate memory)`), MemoryExceeded,
		"git would need more memory for this push than the gitstore allows it (--git-memory-bytes); make the repository's large files smaller, or raise the limit"},
	{regexp.MustCompile(`pack exceeds maximum allowed size|requested URL returned error: 413`), PushTooLarge,
		"the push is larger than the gitstore accepts"},
	{regexp.MustCompile(`fsck error|(?m)^remote: (?:error|fatal): .*\b(?:gitmodules|hasDotgit|treeNotSorted|duplicateEntries)|pack has bad object|pack is corrupted|SHA1 COLLISION|inflate returned|missing necessary objects|unresolved deltas?|did not receive expected object`), ObjectsRefused,
		"the gitstore refused objects of the push as corrupt, missing or dangerous"},
	{regexp.MustCompile(`Authentication failed|could not read (?:Username|Password)|requested URL returned error: 401`), Unauthenticated,
		"the gitstore did not accept the token"},
	{regexp.MustCompile(`requested URL returned error: 403`), Forbidden, "the gitstore does not allow this"},
	{regexp.MustCompile(`requested URL returned error: 409`), StaleAttempt, "a newer attempt of the task has been seen"},
	{regexp.MustCompile(`requested URL returned error: 507`), VolumeFull, "the gitstore has no free space"},
	{regexp.MustCompile(`repository '[^']*' not found|requested URL returned error: 404`), NotFound, "the gitstore has no such repository"},
	{regexp.MustCompile(`requested URL returned error: 5\d\d|Could not resolve host|Failed to connect|Connection (?:refused|reset|timed out)|timed out|early EOF|hung up unexpectedly|RPC failed`), Unavailable,
		"the gitstore could not be reached, or the connection broke"},
}

// Parse finds the refusal in what a git client printed on stderr. It returns false if it
// recognises none; the push may have failed nevertheless.
func Parse(stderr string) (*Refusal, bool) {
	if match := written.FindStringSubmatch(stderr); match != nil {
		return &Refusal{Reason: Reason(match[1]), Message: match[2]}, true
	}
	for _, known := range gitsOwn {
		if known.pattern.MatchString(stderr) {
			return &Refusal{Reason: known.reason, Message: known.message}, true
		}
	}
	return nil, false
}
