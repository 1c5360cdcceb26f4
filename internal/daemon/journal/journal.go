// Package journal keeps what a task's daemon must know after any crash about
// the volume it works on: how far the layout or a rewind has come, which
// checkpoints were taken and which of them the gitstore lacks, which requests
// were served, and whether the last run ended cleanly.
//
// It is one small JSON file. A change that Update returned for is on disk, and
// a crash leaves either the old or the new state, never a mixture. A journal that
// the disk has damaged is put aside, and the new one says so.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/durable"
)

// maxRemembered bounds the lists of requests that were served; the oldest go.
const maxRemembered = 1000

// Point is a checkpoint of this task.
type Point struct {
	Number int64  `json:"number"`
	Code   string `json:"code"`
	State  string `json:"state,omitempty"`
	Tree   string `json:"tree,omitempty"`
	// Ran says that the agent ran while the checkpoint was taken, or may have.
	Ran bool `json:"ran,omitempty"`
}

// Stages of a Layout.
const (
	// LayoutCloning: the worktree is being cloned from its origin.
	LayoutCloning = "Cloning"
	// LayoutForking: the worktree is being restored from another task's checkpoint.
	LayoutForking = "Forking"
	// LayoutRestoring: the worktree is being restored from a checkpoint of this task.
	LayoutRestoring = "Restoring"
	// LayoutReady: the worktree is this task's.
	LayoutReady = "Ready"
)

// Layout says how far the volume's first layout has come.
type Layout struct {
	Stage string `json:"stage"`
	// Point is the checkpoint that is being restored.
	Point Point `json:"point,omitzero"`
	// Move is the id under which the conversation moves back to Point.
	Move string `json:"move,omitempty"`
}

// Stages of a Rewind; each is written when what it names is done.
const (
	// RewindBegun: the rewind is to be done; nothing was touched.
	RewindBegun = "Begun"
	// RewindSaved: what stood is in a checkpoint that gitstore and server have.
	RewindSaved = "Saved"
	// RewindRestoring: the target was verified; files may be mixed from here on.
	RewindRestoring = "Restoring"
	// RewindRestored: files are the target's, verified; what stood is preserved.
	RewindRestored = "Restored"
	// RewindMoved: the conversation stands at the target's position.
	RewindMoved = "Moved"
	// RewindMarked: the checkpoint Rewound is taken.
	RewindMarked = "Marked"
	// RewindUndoing: the rewind failed for good; files may be a mixture until
	// they are those of From again.
	RewindUndoing = "Undoing"
	// RewindUndone: files are From's again, verified; the conversation may still
	// stand where the rewind took it.
	RewindUndone = "Undone"
)

// Rewind is a rewind under way, with all that is needed to finish it whatever
// the next pod is asked for.
type Rewind struct {
	ID    string `json:"id"`
	Stage string `json:"stage"`
	// Target has no number if there is no checkpoint as old as Position: then it
	// is where the agent's state was before the task's first run, which has no
	// commits if that was nowhere.
	Target   Point                 `json:"target"`
	Scope    v1alpha1.RewindScope  `json:"scope"`
	Preserve v1alpha1.PreserveMode `json:"preserve"`
	Branch   string                `json:"branch,omitempty"`
	OnDrift  v1alpha1.OnDrift      `json:"onDrift,omitempty"`
	// Position is where the conversation goes, if not to the target's position,
	// which is CheckpointPosition (0 if it was not told).
	Position           int64 `json:"position,omitempty"`
	CheckpointPosition int64 `json:"checkpointPosition,omitempty"`
	// AfterSequence is the record that made the message at Position, Restored the
	// one behind which the checkpoint was taken that was restored last: Target, or
	// From where the rewind is being undone. 0 if that is not known.
	AfterSequence int64 `json:"afterSequence,omitempty"`
	Restored      int64 `json:"restored,omitempty"`
	// From is the checkpoint that holds what stood before.
	From Point `json:"from,omitzero"`
	// Preserved is the branch or stash that keeps it in the agent's repository.
	Preserved string `json:"preserved,omitempty"`
	// MovedTo is where the conversation then stands; 0 if it was left alone.
	MovedTo int64 `json:"movedTo,omitempty"`
	// Failure is why the rewind is being undone.
	Failure *Failure `json:"failure,omitempty"`
}

// Failure is why an operation failed for good.
type Failure struct {
	// Reason is a reason constant of v1alpha1, Message the sentence for people.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Done is an operation that has ended, and its outcome.
type Done struct {
	// ID is the operation's key; see daemonapi.OperationKey. In old journals it
	// is the bare id of a resume or a rewind.
	ID        string `json:"id"`
	From      int64  `json:"from,omitempty"`
	To        int64  `json:"to,omitempty"`
	Preserved string `json:"preserved,omitempty"`
	// Position is where a rewind left the conversation.
	Position int64 `json:"position,omitempty"`
	// Failure is set if the operation failed, and left everything as it was.
	Failure *Failure `json:"failure,omitempty"`
}

// Resume is a message of Clew's own, such as a resume's prompt, that is being
// recorded.
type Resume struct {
	// ID is the key of what it belongs to; the bare id of a resume in old journals.
	ID string `json:"id"`
	// Sequence is the record that holds the prompt, once the spool reaches it.
	Sequence int64 `json:"sequence"`
}

// Final is the last checkpoint of an attempt whose agent has ended.
type Final struct {
	Attempt  int64  `json:"attempt"`
	PodUID   string `json:"podUID,omitempty"`
	Number   int64  `json:"number"`
	ExitCode int    `json:"exitCode"`
}

// Of says whether it is that of a pod: a number alone may have been given to
// two pods by an older manager.
func (f *Final) Of(attempt int64, podUID string) bool {
	return f != nil && f.Attempt == attempt && f.PodUID == podUID
}

// Session is the run of the agent that an attempt's output comes from.
type Session struct {
	Attempt int64  `json:"attempt"`
	PodUID  string `json:"podUID,omitempty"`
	ID      string `json:"id"`
}

// Of says whether it is that of a pod.
func (s *Session) Of(attempt int64, podUID string) bool {
	return s != nil && s.Attempt == attempt && s.PodUID == podUID
}

// State is what the journal holds.
type State struct {
	// Checksum is that of the file; see sum. It comes first.
	Checksum string `json:"checksum,omitempty"`
	// JournalLost says that the volume had a journal before which could not be read.
	JournalLost bool `json:"journalLost,omitempty"`
	// Outdated says why the volume is not the one that the history was last
	// written from. It stands until what the volume holds is kept.
	Outdated string `json:"outdated,omitempty"`
	// OlderCopy says that the records of an outdated volume are those that the server
	// has or had, as far as they go: they stay.
	OlderCopy bool `json:"olderCopy,omitempty"`
	// TaskUID is the task the volume belongs to.
	TaskUID string `json:"taskUID,omitempty"`
	// Attempt is the newest attempt that used the volume.
	Attempt int64 `json:"attempt,omitempty"`
	// Seen is the newest attempt that the gitstore had seen when it fenced one off.
	Seen int64 `json:"seen,omitempty"`
	// PodUID is its pod; empty where an older daemon used it.
	PodUID string `json:"podUID,omitempty"`
	// Layout is nil on an empty volume.
	Layout *Layout `json:"layout,omitempty"`
	// Base is the commit of the origin that the task started from.
	Base string `json:"base,omitempty"`
	// Parent is the code commit that the next checkpoint continues.
	Parent string `json:"parent,omitempty"`
	// LastNumber is the highest checkpoint number in use.
	LastNumber int64 `json:"lastNumber,omitempty"`
	// Latest is the newest checkpoint that the worktree came from or went into.
	Latest *Point `json:"latest,omitempty"`
	// Unspooled is the record, as protobuf JSON, of a checkpoint that may not
	// be in the spool yet.
	Unspooled json.RawMessage `json:"unspooled,omitempty"`
	// Pending are checkpoints that the gitstore does not have yet, oldest first.
	Pending []Point `json:"pending,omitempty"`
	// Lost are the numbers of checkpoints that are damaged on the volume and that
	// the gitstore will never have.
	Lost []int64 `json:"lost,omitempty"`
	// Clean is the checkpoint that the worktree was left equal to, if it was.
	Clean *Point `json:"clean,omitempty"`
	// Final is set when an attempt's last checkpoint is taken.
	Final *Final `json:"final,omitempty"`
	// Session is the agent's run in the newest attempt.
	Session *Session `json:"session,omitempty"`
	// Start is what prepare has the agent started with.
	Start *Start `json:"start,omitempty"`
	// AgentSession is the session of the agent's own that is in its home.
	AgentSession *AgentSession `json:"agentSession,omitempty"`
	// SessionRefused is the id of a session that the agent would not resume.
	SessionRefused string `json:"sessionRefused,omitempty"`
	// Served are the uids of requested checkpoints that were taken.
	Served []string `json:"served,omitempty"`
	// Rewind is the rewind under way.
	Rewind *Rewind `json:"rewind,omitempty"`
	// Resume is the resume under way.
	Resume *Resume `json:"resume,omitempty"`
	// Done are completed operations, newest last.
	Done []Done `json:"done,omitempty"`
}

// Outdate notes why the volume is not the one that the history was last written from,
// and whether its records are an older copy of those; an empty why, that it is.
func (s *State) Outdate(why string, olderCopy bool) { s.Outdated, s.OlderCopy = why, olderCopy }

// LeaveVolume has the workspace laid out anew, since what the volume holds is kept or
// cannot be gone on with.
func (s *State) LeaveVolume() {
	s.Layout, s.Clean, s.Rewind, s.JournalLost = nil, nil, nil, false
	s.Outdate("", false)
}

// Operation returns the completed operation of a kind with the given id.
func (s *State) Operation(kind, id string) (Done, bool) {
	key := daemonapi.OperationKey(kind, id)
	for _, d := range s.Done {
		if d.ID == key || (d.ID == id && kind == d.bareKind()) {
			return d, true
		}
	}
	return Done{}, false
}

// bareKind is the kind of an operation that an old journal names by its id
// alone: a rewind left something behind, and a resume did not.
func (d Done) bareKind() string {
	if d == (Done{ID: d.ID}) {
		return daemonapi.OperationResume
	}
	return daemonapi.OperationRewind
}

// Complete notes an operation as done.
func (s *State) Complete(d Done) {
	s.Done = slices.DeleteFunc(s.Done, func(x Done) bool { return x.ID == d.ID })
	s.Done = lastOf(append(s.Done, d), maxRemembered)
}

// Serve notes a requested checkpoint as taken.
func (s *State) Serve(uid string) {
	if uid != "" && !slices.Contains(s.Served, uid) {
		s.Served = lastOf(append(s.Served, uid), maxRemembered)
	}
}

// Lose gives up a checkpoint that cannot get to the gitstore. What comes after the
// newest one must not continue it.
func (s *State) Lose(number int64) {
	s.Pending = slices.DeleteFunc(s.Pending, func(p Point) bool { return p.Number == number })
	s.Lost = lastOf(append(s.Lost, number), maxRemembered)
	if s.Latest != nil && s.Latest.Number == number {
		s.Parent = ""
	}
}

// IsLost says whether a checkpoint was given up.
func (s *State) IsLost(number int64) bool { return slices.Contains(s.Lost, number) }

// Waits says whether a checkpoint is on its way to the gitstore.
func (s *State) Waits(number int64) bool {
	return slices.ContainsFunc(s.Pending, func(p Point) bool { return p.Number == number })
}

func lastOf[T any](list []T, n int) []T {
	return list[max(0, len(list)-n):]
}

// SetUnspooled notes a record that must get into the spool; nil clears it.
func (s *State) SetUnspooled(c *daemonv1.CheckpointRecord) error {
	s.Unspooled = nil
	if c == nil {
		return nil
	}
	b, err := protojson.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode a checkpoint for the journal: %w", err)
	}
	s.Unspooled = b
	return nil
}

// UnspooledRecord is the record SetUnspooled noted, or nil.
func (s *State) UnspooledRecord() (*daemonv1.CheckpointRecord, error) {
	if len(s.Unspooled) == 0 {
		return nil, nil
	}
	c := &daemonv1.CheckpointRecord{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(s.Unspooled, c); err != nil {
		return nil, fmt.Errorf("the journal holds a checkpoint that cannot be read: %w", err)
	}
	return c, nil
}

// Journal is an open journal; safe for concurrent use. The spool's lock keeps
// other processes from it.
type Journal struct {
	path  string
	owned func() error
	mu    sync.Mutex
	raw   []byte
}

// Open reads the journal at path; a missing file is an empty journal. One that
// is damaged is put aside, and the journal then says JournalLost.
func Open(path string) (*Journal, error) {
	// What a killed daemon has put there may not be on the disk yet.
	if err := durable.SyncFolder(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return begin(path)
	case errors.Is(err, syscall.EIO):
		return putAside(path)
	case err != nil:
		return nil, fmt.Errorf("read the journal: %w", err)
	case !intact(raw):
		return putAside(path)
	}
	return &Journal{path: path, raw: raw}, nil
}

// begin makes a new journal. If a damaged one was put aside, and nothing has
// taken its place, this is the one that does.
func begin(path string) (*Journal, error) {
	aside, err := filepath.Glob(path + ".damaged*")
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	j := &Journal{path: path, raw: []byte("{}")}
	if len(aside) == 0 {
		return j, nil
	}
	return j, j.Update(func(s *State) error { s.JournalLost = true; return nil })
}

// Guard has every Update ask first whether the volume is still this process's:
// the lock alone does not say so on every kind of storage.
func (j *Journal) Guard(owned func() error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.owned = owned
}

// putAside keeps a damaged journal beside a new one.
func putAside(path string) (*Journal, error) {
	aside := path + ".damaged"
	for n := 2; ; n++ {
		if _, err := os.Lstat(aside); errors.Is(err, os.ErrNotExist) {
			break
		}
		aside = fmt.Sprintf("%s.damaged-%d", path, n)
	}
	err := os.Rename(path, aside)
	if err == nil {
		err = durable.SyncFolder(filepath.Dir(path))
	}
	if err != nil {
		return nil, fmt.Errorf("put the damaged journal aside: %w", err)
	}
	return begin(path)
}

// Newest is the newest attempt that the volume knows of.
func (s *State) Newest() int64 { return max(s.Attempt, s.Seen) }

// KnowsNumbers says that the journal is the one that the volume's checkpoints were
// taken with: whatever has a higher number than LastNumber is none.
func (s *State) KnowsNumbers() bool {
	return !s.JournalLost && (s.Layout != nil || s.LastNumber > 0)
}

// State is a copy of what the journal holds.
func (j *Journal) State() State {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.decode()
}

func (j *Journal) decode() State {
	var s State
	if err := json.Unmarshal(j.raw, &s); err != nil {
		return State{} // cannot happen: raw was decoded or encoded before
	}
	s.Checksum = ""
	return s
}

// Update changes the journal. An error from change leaves it as it was.
func (j *Journal) Update(change func(*State) error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.decode()
	if err := change(&s); err != nil {
		return err
	}
	raw, err := encode(s)
	if err != nil {
		return fmt.Errorf("encode the journal: %w", err)
	}
	if j.owned != nil {
		if err := j.owned(); err != nil {
			return fmt.Errorf("write the journal: %w", err)
		}
	}
	if err := durable.Write(j.path, raw, 0o600); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	j.raw = raw
	return nil
}
