// Package checkpoint takes a task's checkpoints and pushes them to the gitstore, so that
// prepare and the sidecar follow the same rules:
//
//   - A number permanently identifies one tree; journalling it consumes it. After a
//     crash before that write the number is free to be taken again; after it, the
//     checkpoint's record is in the spool soon, or at the next start.
//   - A checkpoint is recorded at once, as not durable. When the gitstore has both of its
//     refs, a second record says that it is durable.
//   - Nothing is pushed that is not in the journal.
//   - The gitstore may lose what it had: it may be restored from an older copy while the
//     task is running. So a push first asks the gitstore what it has, and also pushes what
//     only the volume has. Asking changes nothing there and depends on no other push: if
//     the answer is lost, or the daemon killed, it asks once more. Since that is one more
//     request, not every push asks: only a daemon's first push does, the one after a failed
//     push (a gitstore cannot be restored without being unavailable), one per minute (in
//     case nothing was pushed meanwhile), and the push of an attempt's last checkpoint. The
//     pod does not end before that push succeeded, so a task that completes leaves no hole.
//   - A checkpoint that is damaged on the volume is given up, with the reason; the next
//     checkpoint starts a new history, complete in itself.
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/worktree"
)

// Limits of the lists in a record, in entries.
const (
	maxChanges = 1000
	maxListed  = 100
)

// Repo is the part of the worktree's repository that a Taker uses; see worktree.Repo.
type Repo interface {
	Checkpoint(context.Context, worktree.CheckpointRequest) (worktree.Checkpoint, error)
	Warm(ctx context.Context, parent string, rest func()) (commit string, err error)
	Cold() bool
	StoreHead(context.Context, worktree.HeadRequest) error
	Push(context.Context, worktree.Remote, ...worktree.RefUpdate) error
	CheckSendable(ctx context.Context, ids, has []string) error
	Refs(context.Context, string) (map[string]string, error)
	DeleteRefs(ctx context.Context, refs ...string) error
	RemoteRefs(context.Context, worktree.Remote, string) (map[string]string, error)
	Heal(context.Context, worktree.Remote) (int, error)
}

// Taker takes checkpoints of one task. All fields but Log and Mask are required. Its
// methods are safe for concurrent use.
type Taker struct {
	Repo    Repo
	Journal *journal.Journal
	Spool   *spool.Spool
	// Remote returns the gitstore's address, with a fresh token.
	Remote  func() (worktree.Remote, error)
	TaskUID string
	Attempt int64
	// Mask, unless nil, removes Secrets from the messages of checkpoints.
	Mask interface{ Text(string) string }
	Log  logr.Logger

	taking, pushing sync.Mutex
	recovering      sync.Mutex           // held while the journal's Unspooled is spooled
	compared        time.Time            // guarded by pushing; zero before the first push and after a failed one
	heads           heads                // guarded by pushing
	branches        []worktree.RefUpdate // are to be pushed with the next checkpoints; guarded by pushing
	apart           bool                 // that was refused: they are pushed by themselves; guarded by pushing
	lacking         []string             // commits of the agent that the gitstore lacked when it was compared; guarded by pushing
}

// Request describes the checkpoint to take.
type Request struct {
	Trigger v1alpha1.CheckpointTrigger
	// Message is for people; a default is derived from the number.
	Message string
	// Parent is the code commit that the checkpoint continues; the journal's if empty.
	Parent string
	// Name and UID identify the Checkpoint object that requested it.
	Name, UID string
	// RiskyTool is the tool call that it is taken before, if any.
	RiskyTool *daemonv1.RiskyTool
	// Brief refuses the checkpoint if more has changed than can be read in a moment; see
	// TooMuchChanged and Warm.
	Brief bool
	// Consistency reports, once all files are read, whether the agent was frozen meanwhile,
	// and for how long; nil means that no agent runs.
	Consistency func() (v1alpha1.CheckpointConsistency, time.Duration)
	// Taken, unless nil, is called with the record of the checkpoint once it is taken.
	Taken func(*daemonv1.CheckpointRecord)
	// Also changes the journal in the same write that journals the checkpoint.
	Also func(*journal.State, journal.Point)
}

// Take takes the next checkpoint. When it returns without an error, the checkpoint is on
// the volume and its record in the spool.
func (t *Taker) Take(ctx context.Context, req Request) (journal.Point, error) {
	t.taking.Lock()
	defer t.taking.Unlock()
	// The journal has room for one record, and a full volume may have kept the last
	// checkpoint's record out of the spool.
	if err := t.Recover(); err != nil {
		return journal.Point{}, err
	}
	state := t.Journal.State()
	if req.Parent == "" {
		req.Parent = state.Parent
	}
	if t.Mask != nil {
		req.Message = t.Mask.Text(req.Message)
	}
	now := time.Now()
	number := state.LastNumber + 1
	annotations, err := t.annotate(req, &state, now)
	if err != nil {
		return journal.Point{}, err
	}
	taken, err := t.Repo.Checkpoint(ctx, worktree.CheckpointRequest{
		TaskUID: t.TaskUID, Number: number, Parent: req.Parent, Time: now,
		Message: t.commitMessage(req, number), Annotations: annotations, Brief: req.Brief,
	})
	if err != nil {
		return journal.Point{}, fmt.Errorf("take checkpoint %d: %w", number, err)
	}
	point := journal.Point{Number: number, Code: taken.Code, State: taken.State, Tree: taken.Tree, Head: taken.Agent.Head}
	record := t.record(req, taken, &state, now)
	consistency, frozen := v1alpha1.ConsistencyPointInTime, time.Duration(0)
	if req.Consistency != nil {
		consistency, frozen = req.Consistency()
	}
	point.Ran = consistency != v1alpha1.ConsistencyPointInTime
	record.Consistency, record.FrozenMilliseconds = string(consistency), frozen.Milliseconds()
	err = t.Journal.Update(func(s *journal.State) error {
		s.LastNumber, s.Latest, s.Parent = max(s.LastNumber, number), &point, point.Code
		s.Pending = append(s.Pending, point)
		s.MarkServed(req.UID)
		if req.Also != nil {
			req.Also(s, point)
		}
		return s.SetUnspooled(record)
	})
	if err != nil {
		return journal.Point{}, err
	}
	t.Log.Info("took a checkpoint", "number", number, "trigger", req.Trigger, "commit", taken.Code,
		"filesChanged", taken.FilesChanged, "took", taken.Took.String(), "frozen", frozen.String(), "consistency", consistency)
	if req.Taken != nil {
		req.Taken(record)
	}
	if err := t.Recover(); err != nil || !point.Ran {
		return point, err
	}
	return point, t.Event(v1alpha1.EventCheckpointNotPointInTime,
		fmt.Sprintf("the agent ran while checkpoint %d was taken (%s): its files may be from different moments", number, consistency),
		map[string]string{"checkpoint": strconv.FormatInt(number, 10), "consistency": string(consistency)})
}

// TooMuchChanged reports whether a brief checkpoint was refused because too much has
// changed.
func TooMuchChanged(err error) bool { return worktree.ReasonOf(err) == worktree.TooMuchChanged }

// Cold reports whether the next checkpoint would have to read every file.
func (t *Taker) Cold() bool { return t.Repo.Cold() }

// Warm stores changed files while the agent works, so that the next checkpoint is brief. It
// calls rest again and again, and continues when rest returns.
func (t *Taker) Warm(ctx context.Context, rest func()) error {
	t.taking.Lock()
	defer t.taking.Unlock()
	_, err := t.Repo.Warm(ctx, t.Journal.State().Parent, rest)
	return err
}

// Recover spools the record that a crash, or a full volume, kept out of the spool. It must
// be called before anything else once the spool is open.
func (t *Taker) Recover() error {
	t.recovering.Lock()
	defer t.recovering.Unlock()
	state := t.Journal.State()
	record, err := state.UnspooledRecord()
	if err != nil || record == nil {
		return err
	}
	// After a crash between the two writes this repeats the record, which the server treats
	// as an update that changes nothing.
	if err := t.spoolRecord(record); err != nil {
		return err
	}
	return t.Journal.Update(func(s *journal.State) error { return s.SetUnspooled(nil) })
}

// spoolRecord records a checkpoint under the attempt that took it, which may be an earlier
// one: that the checkpoint completed that attempt says nothing of this one.
func (t *Taker) spoolRecord(c *daemonv1.CheckpointRecord) error {
	return t.Spool.Append(nil, &daemonv1.Record{
		Time: timestamppb.Now(), Attempt: c.GetAttempt(), Body: &daemonv1.Record_Checkpoint{Checkpoint: c},
	})
}

func (t *Taker) append(r *daemonv1.Record) error {
	r.Time, r.Attempt = timestamppb.Now(), t.Attempt
	return t.Spool.Append(nil, r)
}

// Event records something that the daemon did or found, for the timeline.
func (t *Taker) Event(reason, message string, details map[string]string) error {
	if t.Mask != nil {
		message = t.Mask.Text(message)
		details = maps.Clone(details)
		for k, v := range details {
			details[k] = t.Mask.Text(v)
		}
	}
	return t.append(&daemonv1.Record{Body: &daemonv1.Record_Event{Event: &daemonv1.Event{Reason: reason, Message: message, Details: details}}})
}

// HoldEnded records how an agent came to continue that was stopped for a set of checkpoints.
func (t *Taker) HoldEnded(end *daemonv1.HoldEnd) error {
	return t.append(&daemonv1.Record{Body: &daemonv1.Record_HoldEnd{HoldEnd: end}})
}

func (t *Taker) commitMessage(req Request, number int64) string {
	subject := req.Message
	if subject == "" {
		subject = fmt.Sprintf("Checkpoint %d", number)
	}
	return fmt.Sprintf("%s\n\n"+trailerTask+"%s\n"+trailerCheckpoint+"%d\n"+trailerAttempt+"%d\n"+trailerTrigger+"%s\n",
		subject, t.TaskUID, number, t.Attempt, req.Trigger)
}

// newRecord returns what is known of a checkpoint before it is taken.
func (t *Taker) newRecord(req Request, s *journal.State, now time.Time) *daemonv1.CheckpointRecord {
	return &daemonv1.CheckpointRecord{
		Number: s.LastNumber + 1, Trigger: string(req.Trigger), Time: timestamppb.New(now), Message: req.Message, Attempt: t.Attempt,
		Base: s.Base, RequestedByName: req.Name, RequestedByUid: req.UID, RiskyTool: req.RiskyTool, Session: s.UsableSession().Message(),
	}
}

func (t *Taker) record(req Request, c worktree.Checkpoint, s *journal.State, now time.Time) *daemonv1.CheckpointRecord {
	r := t.newRecord(req, s, now)
	describe(r, c)
	return r
}

// describe adds to a record what was found when the checkpoint was taken.
func describe(r *daemonv1.CheckpointRecord, c worktree.Checkpoint) {
	r.Commit, r.Tree, r.Parent, r.StateCommit = c.Code, c.Tree, c.Parent, c.State
	r.FilesChanged, r.LinesAdded, r.LinesRemoved = clamp(c.FilesChanged), c.LinesAdded, c.LinesRemoved
	r.GitHead, r.GitBranch, r.DirtyFileCount = c.Agent.Head, c.Agent.Branch, clamp(c.Agent.DirtyCount)
	r.Files, r.Bytes, r.SkippedCount = c.TotalFiles, c.TotalBytes, clamp(c.SkippedCount)
	for _, f := range c.Agent.Dirty[:min(len(c.Agent.Dirty), maxListed)] {
		r.DirtyFiles = append(r.DirtyFiles, f.Path)
	}
	for _, f := range c.Skipped[:min(len(c.Skipped), maxListed)] {
		r.Skipped = append(r.Skipped, &daemonv1.SkippedFile{Path: f.Path, Reason: string(f.Reason), Bytes: f.Bytes})
	}
	for _, f := range c.Files[:min(len(c.Files), maxChanges)] {
		r.Changes = append(r.Changes, &daemonv1.FileChange{Path: f.Path, Action: string(f.Action)})
	}
}

func clamp(n int) int32 { return int32(min(n, 1<<31-1)) }

// Pending reports whether the gitstore lacks a checkpoint.
func (t *Taker) Pending() bool { return len(t.Journal.State().Pending) > 0 }

// RefusedError is the error of a push that the gitstore answered and refused.
type RefusedError struct {
	// Retryable is set if the gitstore may accept the push later (a full volume, say).
	Retryable bool
	Reason    string
	// Message is the gitstore's explanation.
	Message string
	Err     error
	// Checkpoints are those that the gitstore refuses permanently.
	Checkpoints []Refused
}

// Refused is a checkpoint that the gitstore refuses permanently, and the reason.
type Refused struct {
	Number          int64
	Reason, Message string
}

// add adds the refusal of one checkpoint's push.
func (e *RefusedError) add(number int64, one *RefusedError) {
	if e.Err == nil {
		e.Reason, e.Message = one.Reason, one.Message
	}
	e.Err = errors.Join(e.Err, fmt.Errorf("checkpoint %d: %w", number, one.Err))
	e.Retryable = e.Retryable || one.Retryable
	if !one.Retryable {
		e.Checkpoints = append(e.Checkpoints, Refused{Number: number, Reason: one.Reason, Message: one.Message})
	}
}

// Error implements error. A retryable refusal is given in the gitstore's own words, for
// whoever can help; a permanent one with everything that git printed.
func (e *RefusedError) Error() string {
	if e.Retryable && e.Message != "" {
		return fmt.Sprintf("the gitstore refuses the push: %s: %s", e.Reason, e.Message)
	}
	return "the gitstore refuses the push: " + e.Err.Error()
}

// Unwrap implements error.
func (e *RefusedError) Unwrap() error { return e.Err }

// GitError classifies an error of a push or fetch: gatewayclient.ErrFenced if a newer
// attempt has begun or the pod's object is gone, RefusedError if the gitstore refused,
// otherwise err itself.
func GitError(err error) error {
	if err == nil {
		return nil
	}
	if r, ok := refusalOf(err); ok {
		switch r.Reason {
		case gitstoreapi.StaleAttempt:
			return fmt.Errorf("talk to the gitstore: %w", gatewayclient.Fenced(r.Newest()))
		case gitstoreapi.PodGone:
			return fmt.Errorf("talk to the gitstore: %w", gatewayclient.ErrFenced)
		case gitstoreapi.Unavailable:
			return err
		default:
			return &RefusedError{Retryable: r.Retryable(), Reason: string(r.Reason), Message: r.Message, Err: err}
		}
	}
	if worktree.ReasonOf(err) == worktree.Rejected {
		return &RefusedError{Reason: string(worktree.Rejected), Message: err.Error(), Err: err}
	}
	return err
}

// refusalOf finds the gitstore's refusal in git's standard error, and nowhere else: the
// rest of an error may contain words that are not the gitstore's.
func refusalOf(err error) (*gitstoreapi.Refusal, bool) {
	var git interface{ Stderr() string }
	if !errors.As(err, &git) {
		return nil, false
	}
	return gitstoreapi.Parse(git.Stderr())
}

// RecordDurable records that the gitstore has a checkpoint.
func (t *Taker) RecordDurable(p journal.Point) error {
	return t.spoolRecord(&daemonv1.CheckpointRecord{Number: p.Number, Commit: p.Code, Tree: p.Tree, StateCommit: p.State, Durable: true, Attempt: t.Attempt})
}
