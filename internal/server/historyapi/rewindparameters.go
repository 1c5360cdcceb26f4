package historyapi

import (
	"cmp"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// rewindParameters are the checked parameters of a preview. rewind has no target if last is
// set: it is to undo the newest rewind.
type rewindParameters struct {
	rewind v1alpha1.Rewind
	last   bool
	limit  int
}

// unnamedRewind is the id of a rewind whose preview is requested without one.
const unnamedRewind = "ID"

// rewindOf reads the parameters of a preview, which are those of spec.rewind. What the API
// server checks of them and the manager does not is checked here.
func rewindOf(values url.Values) (q rewindParameters, err error) {
	if q.limit, err = numberOf(values, "limit", gitstoreapi.DefaultDiffFiles); err != nil {
		return q, err
	}
	q.limit = min(q.limit, gitstoreapi.MaxDiffFiles)
	q.rewind = v1alpha1.Rewind{ID: cmp.Or(values.Get("id"), unnamedRewind), Paths: values["path"], Branch: values.Get("branch")}
	targets, err := q.target(values)
	switch {
	case err != nil:
		return q, err
	case targets != 1:
		return q, badRequest("set exactly one of checkpointRef, checkpointNumber, commit, message, time, messagesBack, undoOf and undoLast")
	case len(q.rewind.Paths) > maxRewindPaths:
		return q, badRequest("%d paths are too many: a rewind has at most %d", len(q.rewind.Paths), maxRewindPaths)
	}
	if err := q.choices(values); err != nil {
		return q, err
	}
	return q, q.contradiction()
}

// contradiction returns an error about fields that the API server does not accept together, with
// its sentence.
func (q *rewindParameters) contradiction() error {
	undo := q.last || q.rewind.To.UndoOf != ""
	for _, c := range []struct {
		refused  bool
		sentence string
	}{
		{undo && q.rewind.Scope != v1alpha1.RewindBoth, "an undo rewinds what the rewind that it undoes has rewound: leave scope out"},
		{undo && len(q.rewind.Paths) > 0, "an undo rewinds what the rewind that it undoes has rewound: leave paths out"},
		{q.rewind.To.UndoOf == q.rewind.ID, "a rewind cannot undo itself: give it an id of its own, and name that of an earlier rewind in to.undoOf"},
		{q.rewind.Branch != "" && q.rewind.Preserve != v1alpha1.PreserveBranch, "branch names the branch that preserve: Branch creates: set preserve to Branch or leave branch out"},
		{q.rewind.To.Commit != "" && !fullCommit.MatchString(q.rewind.To.Commit), "commit is the full id of a commit: give its 40 hexadecimal digits, as git rev-parse prints them"},
	} {
		if c.refused {
			return badRequest("%s", c.sentence)
		}
	}
	return nil
}

// fullCommit matches the full id of a commit.
var fullCommit = regexp.MustCompile(`^[0-9a-f]{40}$`)

// maxRewindPaths is the number of paths that the API allows in a rewind.
const maxRewindPaths = 100

// target sets the target, and returns how many are named.
func (q *rewindParameters) target(values url.Values) (targets int, err error) {
	to := &q.rewind.To
	if name := values.Get("checkpointRef"); name != "" {
		to.CheckpointRef = &v1alpha1.NameReference{Name: name}
		targets++
	}
	for name, set := range map[string]func(int64){
		"checkpointNumber": func(n int64) { to.CheckpointNumber = &n },
		"message":          func(n int64) { to.Message = &n },
		"messagesBack":     func(n int64) { back := int32(n); to.MessagesBack = &back },
	} {
		text := values.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 1 {
			return 0, badRequest("%s must be a positive number, not %q", name, text)
		}
		set(n)
		targets++
	}
	if text := values.Get("time"); text != "" {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return 0, badRequest("time must be a time such as 2026-01-31T12:00:00Z, not %q", text)
		}
		to.Time = &metav1.Time{Time: at}
		targets++
	}
	for name, into := range map[string]*string{"commit": &to.Commit, "undoOf": &to.UndoOf} {
		if *into = values.Get(name); *into != "" {
			targets++
		}
	}
	if q.last, err = flagOf(values, "undoLast"); q.last {
		targets++
	}
	return targets, err
}

// choices sets the fields that are one of several words, with the defaults of the API.
func (q *rewindParameters) choices(values url.Values) error {
	for _, c := range []struct {
		name    string
		into    *string
		allowed []string
	}{
		{"scope", (*string)(&q.rewind.Scope), []string{string(v1alpha1.RewindBoth), string(v1alpha1.RewindCode), string(v1alpha1.RewindConversation)}},
		{"preserve", (*string)(&q.rewind.Preserve), []string{string(v1alpha1.PreserveBranch), string(v1alpha1.PreserveStash), string(v1alpha1.PreserveDiscard)}},
		{"whenRunning", (*string)(&q.rewind.WhenRunning), []string{string(v1alpha1.WhenRunningStop), string(v1alpha1.WhenRunningRefuse)}},
		{"onDrift", (*string)(&q.rewind.OnDrift), []string{string(v1alpha1.OnDriftFail), string(v1alpha1.OnDriftPreserve), string(v1alpha1.OnDriftOverride)}},
	} {
		*c.into = cmp.Or(values.Get(c.name), c.allowed[0])
		if !slices.Contains(c.allowed, *c.into) {
			return badRequest("%s is %q; it must be one of %q", c.name, *c.into, c.allowed)
		}
	}
	return nil
}
