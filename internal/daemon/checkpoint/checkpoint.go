// Package checkpoint takes a task's checkpoints and gets them to the gitstore,
// so that prepare and run do it by the same rules:
//
//   - A number belongs to one tree for ever. It is used up by the journal's
//     write; before that a crash lets it be taken again, after that it is in the
//     spool soon, or at the next start.
//   - A checkpoint is recorded at once, as not durable. When the gitstore has
//     both of its refs, a second record says that it is durable.
//   - Nothing is pushed that the journal does not know.
//   - What the gitstore had it may lack again: it may be put back to an older copy
//     while the task is at work. So a push first asks it what it has, and what the
//     volume has beside that is pushed as well. Asking changes nothing there and
//     hangs on no other push: if the answer is lost, or the daemon killed, it is
//     asked once more. That is one more request, so not every push asks: the first
//     one of a daemon does, the one after a push that failed (a gitstore cannot be
//     put back without going away), one in a minute (nothing may have been pushed
//     meanwhile), and the one of an attempt's last checkpoint. Until that has
//     arrived the pod does not end, so a task that completes leaves no hole.
//   - What is damaged on the volume is given up, with its reason; the next
//     checkpoint begins a new history, complete in itself.
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

// Limits of the lists in a record.
const (
	maxChanges = 1000
	maxListed  = 100
)

// Repo is what is needed of the worktree.
type Repo interface {
	Checkpoint(context.Context, worktree.CheckpointRequest) (worktree.Checkpoint, error)
	Warm(ctx context.Context, parent string, rest func()) error
	Cold() bool
	Push(context.Context, worktree.Remote, ...worktree.RefUpdate) error
	CheckSendable(ctx context.Context, ids, has []string) error
	Refs(context.Context, string) (map[string]string, error)
	DeleteRefs(ctx context.Context, refs ...string) error
	RemoteRefs(context.Context, worktree.Remote, string) (map[string]string, error)
}

// Taker takes checkpoints of one task. All fields but Log are needed. Its
// methods are safe for concurrent use.
type Taker struct {
	Repo    Repo
	Journal *journal.Journal
	Spool   *spool.Spool
	// Remote says where the gitstore is, with a fresh token.
	Remote  func() (worktree.Remote, error)
	TaskUID string
	Attempt int64
	// Mask, if it is set, keeps Secrets out of the messages of checkpoints.
	Mask interface{ Text(string) string }
	Log  logr.Logger

	taking, pushing sync.Mutex
	telling         sync.Mutex // for who tells of the journal's Unspooled
	compared        time.Time  // for who holds pushing; zero before the first push, and after one that failed
}

// Request says what a checkpoint is taken for.
type Request struct {
	Trigger v1alpha1.CheckpointTrigger
	// Message is for people; a default is made of the trigger.
	Message string
	// Parent is the code commit that it continues; the journal's if empty.
	Parent string
	// Name and UID are those of the Checkpoint object that asked for it.
	Name, UID string
	// RiskyTool is the call that it is taken for, if it is for one.
	RiskyTool *daemonv1.RiskyTool
	// Brief refuses the checkpoint if more has changed than is read in a moment;
	// see TooMuchChanged and Warm.
	Brief bool
	// Consistency says, once all files are read, whether the agent stood still
	// meanwhile, and for how long; nil means that no agent runs.
	Consistency func() (v1alpha1.CheckpointConsistency, time.Duration)
	// Also changes the journal in the very write that makes the checkpoint true.
	Also func(*journal.State, journal.Point)
}

// Take takes the next checkpoint. When it returns, the checkpoint is on the
// volume and its record in the spool.
func (t *Taker) Take(ctx context.Context, req Request) (journal.Point, error) {
	t.taking.Lock()
	defer t.taking.Unlock()
	// The journal has room for one record. The last one's may have found none in the
	// spool, on a full volume.
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
	point := journal.Point{Number: number, Code: taken.Code, State: taken.State, Tree: taken.Tree}
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
		s.Serve(req.UID)
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
	if err := t.Recover(); err != nil || !point.Ran {
		return point, err
	}
	return point, t.Event(v1alpha1.EventCheckpointNotPointInTime,
		fmt.Sprintf("the agent ran while checkpoint %d was taken (%s): its files may be of different instants", number, consistency),
		map[string]string{"checkpoint": strconv.FormatInt(number, 10), "consistency": string(consistency)})
}

// TooMuchChanged reports whether a brief checkpoint was refused for its size.
func TooMuchChanged(err error) bool { return worktree.ReasonOf(err) == worktree.TooMuchChanged }

// Cold reports whether the next checkpoint would have to read every file.
func (t *Taker) Cold() bool { return t.Repo.Cold() }

// Warm stores what has changed while the agent works, so that the next
// checkpoint is brief. It calls rest again and again, and goes on when that returns.
func (t *Taker) Warm(ctx context.Context, rest func()) error {
	t.taking.Lock()
	defer t.taking.Unlock()
	return t.Repo.Warm(ctx, t.Journal.State().Parent, rest)
}

// Recover puts into the spool what a crash, or a full volume, kept from it. To be
// called before anything else once the spool is open.
func (t *Taker) Recover() error {
	t.telling.Lock()
	defer t.telling.Unlock()
	state := t.Journal.State()
	record, err := state.UnspooledRecord()
	if err != nil || record == nil {
		return err
	}
	// After a crash between the two writes this repeats the record, which the
	// server takes for an update that changes nothing.
	if err := t.tell(record); err != nil {
		return err
	}
	return t.Journal.Update(func(s *journal.State) error { return s.SetUnspooled(nil) })
}

// tell records a checkpoint as one of the attempt that took it, which may be an
// earlier one: that it completed says nothing of this one.
func (t *Taker) tell(c *daemonv1.CheckpointRecord) error {
	return t.Spool.Append(nil, &daemonv1.Record{
		Time: timestamppb.Now(), Attempt: c.GetAttempt(), Body: &daemonv1.Record_Checkpoint{Checkpoint: c},
	})
}

func (t *Taker) append(r *daemonv1.Record) error {
	r.Time, r.Attempt = timestamppb.Now(), t.Attempt
	return t.Spool.Append(nil, r)
}

// Event records something the daemon did or found, for the timeline.
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

func (t *Taker) commitMessage(req Request, number int64) string {
	subject := req.Message
	if subject == "" {
		subject = fmt.Sprintf("Checkpoint %d", number)
	}
	return fmt.Sprintf("%s\n\nClew-Task: %s\nClew-Checkpoint: %d\nClew-Attempt: %d\nClew-Trigger: %s\n",
		subject, t.TaskUID, number, t.Attempt, req.Trigger)
}

// asked is what is known of a checkpoint before it is taken.
func (t *Taker) asked(req Request, s *journal.State, now time.Time) *daemonv1.CheckpointRecord {
	return &daemonv1.CheckpointRecord{
		Number: s.LastNumber + 1, Trigger: string(req.Trigger), Time: timestamppb.New(now), Message: req.Message, Attempt: t.Attempt,
		Base: s.Base, RequestedByName: req.Name, RequestedByUid: req.UID, RiskyTool: req.RiskyTool, Session: s.UsableSession().Message(),
	}
}

func (t *Taker) record(req Request, c worktree.Checkpoint, s *journal.State, now time.Time) *daemonv1.CheckpointRecord {
	r := t.asked(req, s, now)
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

// Pending says whether the gitstore lacks a checkpoint.
func (t *Taker) Pending() bool { return len(t.Journal.State().Pending) > 0 }

// RefusedError says that the gitstore answered and will not take a push.
type RefusedError struct {
	// Retryable says that it may later (a full volume, say).
	Retryable bool
	Reason    string
	// Message is the gitstore's sentence.
	Message string
	Err     error
	// Checkpoints are those that Taker.Push cannot get there, now or later.
	Checkpoints []Refused
}

// Refused is a checkpoint that the gitstore refuses for good, and why.
type Refused struct {
	Number          int64
	Reason, Message string
}

// add notes that the push of one checkpoint was refused.
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

// Error implements error. What may pass is told in the gitstore's own words, for
// whoever can help; the rest with all that git said.
func (e *RefusedError) Error() string {
	if e.Retryable && e.Message != "" {
		return fmt.Sprintf("the gitstore refuses the push: %s: %s", e.Reason, e.Message)
	}
	return "the gitstore refuses the push: " + e.Err.Error()
}

// Unwrap implements error.
func (e *RefusedError) Unwrap() error { return e.Err }

// GitError sorts an error of a push or fetch: gatewayclient.ErrFenced if a newer
// attempt has begun or the pod's object is gone, RefusedError if the gitstore said no, else as it came.
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

// refusalOf finds the gitstore's refusal in what git printed, and nowhere else: the
// rest of an error may name what the gitstore has not said.
func refusalOf(err error) (*gitstoreapi.Refusal, bool) {
	var git interface{ Stderr() string }
	if !errors.As(err, &git) {
		return nil, false
	}
	return gitstoreapi.Parse(git.Stderr())
}

// TellDurable records that the gitstore has a checkpoint.
func (t *Taker) TellDurable(p journal.Point) error {
	return t.tell(&daemonv1.CheckpointRecord{Number: p.Number, Commit: p.Code, Tree: p.Tree, StateCommit: p.State, Durable: true, Attempt: t.Attempt})
}
