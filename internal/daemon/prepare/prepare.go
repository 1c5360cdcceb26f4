// Package prepare brings a task's volume to the state that the task requires before the
// agent starts: it lays out the worktree, restores it, rewinds it to a checkpoint, detects
// drift, and writes the conversation to a file for the agent.
//
// It promises:
//
//   - It succeeds only when files, agent state and conversation agree. The agent never
//     starts on a mixture of two checkpoints.
//   - It may be killed at any instant: the journal on the volume records its progress, and
//     the next prepare, in whatever pod, finishes that first.
//   - An agent that Clew itself starts finds its launch plan, which is written last and is
//     the same however often prepare was killed before.
//   - Each operation is carried out once per id, and each prompt is recorded once.
//   - Nothing that is in no checkpoint is overwritten, unless the operation asks for it.
package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/agentstate"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/ship"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemon/volume"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/worktree"
)

// Server is the part of the gateway's client that prepare uses; see gatewayclient.Client.
type Server interface {
	ship.Server
	MarkBegun()
	PushedCheckpoints(context.Context) (durable, lost []int64, err error)
	MoveConversation(context.Context, *daemonv1.MoveConversationRequest) (*daemonv1.Position, error)
	Conversation(context.Context, func(*daemonv1.ConversationEntry) error) error
	Report(context.Context, *daemonv1.Problem) error
	VerifyCheckpoint(ctx context.Context, taskUID string, number int64) (*daemonv1.VerifyCheckpointResponse, error)
}

// Repo is the part of the worktree's repository that prepare uses; see worktree.Repo.
type Repo interface {
	checkpoint.Repo
	Clone(context.Context, worktree.CloneRequest) (worktree.Origin, error)
	Origin() (worktree.Origin, bool)
	Restore(context.Context, worktree.RestoreRequest) (worktree.RestoreResult, error)
	CheckPaths(context.Context, worktree.RestoreRequest) error
	CopyFiles(ctx context.Context, code string, paths []string) (int, error)
	ClearSession(context.Context) (worktree.RestoreResult, error)
	Verify(context.Context, worktree.Target) error
	ReadMeta(ctx context.Context, state string) (worktree.Meta, error)
	Drift(context.Context, worktree.Target) (worktree.Drift, error)
	Reaches(ctx context.Context, commit string, prefixes ...string) (bool, error)
	CheckBranch(name string) error
	StartBranch(ctx context.Context, name string, numbered bool) (string, error)
	Preserve(context.Context, worktree.PreserveRequest) (worktree.Preserved, error)
	FindAgentBranches(context.Context, []worktree.AgentBranch) []worktree.AgentBranchFound
	PublishCommit(context.Context, worktree.PublishRequest) (worktree.Publication, error)
	StoreForAgent(ctx context.Context, commits []string) error
	MakeAgentBranches(context.Context, []worktree.AgentBranch) []error
	FindCheckout(worktree.AgentBranch) (there bool, err error)
	CheckOut(ctx context.Context, b worktree.AgentBranch, code string) error
	RestoreHead(context.Context, worktree.Target) error
	Fetch(context.Context, worktree.Remote, ...string) error
	Refetch(context.Context, worktree.Remote, ...string) error
	Refs(context.Context, string) (map[string]string, error)
	RemoteRefs(context.Context, worktree.Remote, string) (map[string]string, error)
	CheckPush(context.Context, worktree.Remote) error
	ClearLocks(context.Context) ([]string, error)
	DropState(ctx context.Context, ref string) error
}

// Config configures one run of prepare.
type Config struct {
	Pod daemonapi.Config
	// Prompt is the task's prompt, its first user message.
	Prompt string
	Paths  volume.Paths
	// RunDir is shared with the agent's container, which mounts it read-only.
	RunDir string
	// Executable is the daemon's own binary, which is copied to the run folder as the shim;
	// if it is empty, none is copied.
	Executable string
	// CredentialsDir holds the credentials of the task's repository; it is empty if there
	// are none.
	CredentialsDir string
	// Mask removes the values of Secrets from everything that leaves the pod; nil if there
	// are none.
	Mask   *mask.Masker
	Server Server
	// Remote returns the gitstore's address and credentials.
	Remote func() (worktree.Remote, error)
	// RetryFor is how long one step is retried; 0 means 5 minutes.
	RetryFor time.Duration
	// ReportAfter is how long a step is retried before its failure is reported to the
	// server; 0 means 4 seconds.
	ReportAfter time.Duration
	Log         logr.Logger

	wrap func(Repo) Repo // set by tests, to observe calls and to simulate kills
}

// preparer is one run of prepare.
type preparer struct {
	cfg     Config
	log     logr.Logger
	adapter agent.Adapter
	result  daemonapi.PrepareResult

	begun   *daemonv1.BeginResponse
	journal *journal.Journal
	spool   *spool.Spool
	repo    Repo
	taker   *checkpoint.Taker
	shipper *ship.Shipper
	// folderMissing is set if the worktree's folder does not exist and the journal, which
	// could not be read, cannot say whether it ever existed.
	folderMissing bool
	// askedDamage is when the server was last asked whether a checkpoint is damaged.
	askedDamage time.Time
	// plan is the agent's launch plan; nil for the type Exec.
	plan  *launchplan.Plan
	took  durations
	asked *asked
	// known is what this run has found out and need not find out again.
	known knownState
}

// knownState is what a run of prepare has found out. The agent is not running, and prepare
// itself is the only one that changes anything.
type knownState struct {
	// laidOut is set once this run has laid out the worktree and compared the result with
	// what it was made from.
	laidOut bool
	// verified is the checkpoint of which every object was read; the zero Point if none was.
	verified journal.Point
	// drift is how the worktree differs from the checkpoint driftFrom; nil if that is unknown.
	drift     *worktree.Drift
	driftFrom journal.Point
	// published has the commits by which checkpoints are published, by their numbers.
	published map[int64]string
	// moved is set if the conversation was moved by a call and not by a record, and the server
	// was not asked since what it knows.
	moved bool
}

// Run prepares the volume and returns the outcome. The result's Reason is Prepared if, and
// only if, the agent may start.
func Run(ctx context.Context, cfg Config) daemonapi.PrepareResult {
	if cfg.RetryFor == 0 {
		cfg.RetryFor = 5 * time.Minute
	}
	if cfg.ReportAfter == 0 {
		cfg.ReportAfter = 4 * time.Second
	}
	p := &preparer{cfg: cfg, log: cfg.Log}
	began := time.Now()
	err := p.run(ctx)
	p.log.Info("prepare has ended", "took", time.Since(began).String(), "steps", p.took.String())
	p.result.Reason, p.result.Permanent, p.result.Message = describe(err)
	if fenced := (*gatewayclient.FencedError)(nil); errors.As(err, &fenced) {
		p.result.NewestAttempt = fenced.Newest
	}
	if err != nil {
		cfg.Log.Error(err, "could not prepare the workspace", "reason", p.result.Reason)
	}
	return p.result
}

func (p *preparer) run(ctx context.Context) error {
	var err error
	if p.adapter, err = agent.For(p.cfg.Pod.AgentType); err != nil {
		return &failure{permanent: true, message: err.Error()}
	}
	if err := p.makeFolders(); err != nil {
		return err
	}
	begin := p.timed(ctx, step{"begin", p.begin})
	var lost *sourceMissing
	if begin != nil && !errors.As(begin, &lost) {
		return begin
	}
	opening, cancel := context.WithTimeout(ctx, p.cfg.RetryFor)
	defer cancel()
	v, err := volume.Open(opening, p.cfg.Paths, p.cfg.Pod, p.cfg.Mask)
	if err != nil {
		return err
	}
	defer v.Close()
	defer p.stopAsking()
	p.journal, p.spool, p.repo = v.Journal, v.Spool, v.Repo
	if p.cfg.wrap != nil {
		p.repo = p.cfg.wrap(p.repo)
	}
	p.taker = &checkpoint.Taker{Repo: p.repo, Journal: p.journal, Spool: p.spool, Remote: p.cfg.Remote,
		TaskUID: p.cfg.Pod.TaskUID, Attempt: p.cfg.Pod.Attempt, Mask: p.cfg.Mask, Log: p.log}
	if p.hasBegun() {
		p.cfg.Server.MarkBegun()
	} else if begin != nil {
		return begin
	}
	if begin != nil {
		if err := p.begin(ctx); err != nil {
			return err
		}
	}
	for _, s := range []step{
		{"claim", p.claim},
		{"checkFence", p.checkFence},
		{"align", p.align},
		{"countTokens", p.countTokens},
		{"firstPrompt", p.firstPrompt},
		{"drain", p.drain},
		{"layOut", p.layOut},
		{"checkDurable", p.checkDurable},
		{"closeCalls", p.closeCalls},
		{"checkInterrupted", p.checkInterrupted},
		{"finishRewind", p.finishRewind},
		{"finishCheckout", p.finishCheckout},
		{"operate", p.operate},
		{"tellAnswers", p.tellAnswers},
		{"clearLocks", p.clearLocks},
		{"makeBranches", p.makeBranches},
		{"checkOut", p.checkOut},
		{"keepBeforeRun", p.keepBeforeRun},
		{"flush", p.flush},
		{"planStart", p.planStart},
		{"writeConversation", p.writeConversation},
		{"writeStart", p.writeStart},
	} {
		if err := p.timed(ctx, s); err != nil {
			return err
		}
	}
	p.awaitHealed()
	return nil
}

// begin opens the attempt at the server, which fences off every older attempt.
func (p *preparer) begin(ctx context.Context) error {
	return p.retry(ctx, func() error {
		begun, err := p.cfg.Server.Begin(ctx)
		if errors.Is(err, gatewayclient.ErrNotFound) && p.cfg.Pod.Source != nil {
			return &sourceMissing{*p.cfg.Pod.Source, err}
		}
		if err != nil {
			return wrapPlace(placeServer, err)
		}
		p.begun = begun
		return nil
	})
}

// hasBegun reports whether the volume holds the task's own workspace, so that the task can
// continue without the source that it was forked from.
func (p *preparer) hasBegun() bool {
	s := p.journal.State()
	if s.JournalLost {
		return p.holdsWorkspace()
	}
	return s.TaskUID == p.cfg.Pod.TaskUID && s.Layout != nil && !p.needsSource(s.Layout.Stage)
}

// needsSource reports whether a layout in this stage goes on with the source's checkpoint.
func (p *preparer) needsSource(stage string) bool {
	copies := p.cfg.Pod.Source != nil && len(p.cfg.Pod.Source.CopyFiles) > 0
	return stage == journal.LayoutForking || stage == journal.LayoutCopying || stage == journal.LayoutCloning && copies
}

// claim records that the volume belongs to this attempt. It fails if the volume belongs to
// another task or a newer attempt has used it.
func (p *preparer) claim(ctx context.Context) error {
	pod := p.cfg.Pod
	missing, err := p.worktreeMissing()
	if err != nil {
		return err
	}
	err = p.journal.Update(func(s *journal.State) error {
		switch {
		case s.TaskUID != "" && s.TaskUID != pod.TaskUID:
			return &failure{permanent: true, message: fmt.Sprintf("the volume holds the workspace of another task (uid %s): give this task a volume of its own", s.TaskUID)}
		case s.Newest() > pod.Attempt:
			return gatewayclient.Fenced(s.Newest())
		}
		s.TaskUID, s.Attempt, s.PodUID = pod.TaskUID, pod.Attempt, pod.PodUID
		// This is journalled before the folder is created: if this prepare ends early, the
		// next one must not mistake an empty folder for the task's worktree.
		if s.Layout != nil && s.Layout.Stage == journal.LayoutReady && missing {
			p.log.Info("the worktree folder is missing from the volume: restoring it as after the loss of a volume")
			worktreeGone(s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if missing && p.journal.State().JournalLost {
		p.folderMissing = true // startEmpty creates the folder once the journal says what it is for
		return nil
	}
	return makeFolder(p.cfg.Paths.Worktree, 0o755)
}

func (p *preparer) append(messages ...*daemonv1.Message) error {
	var records []*daemonv1.Record
	for _, m := range messages {
		records = append(records, &daemonv1.Record{Time: timestamppb.Now(), Attempt: p.cfg.Pod.Attempt, Body: &daemonv1.Record_Message{Message: m}})
	}
	return p.spool.Append(nil, records...)
}

// drain ships every record to the server and refreshes what the server knows of the task,
// unless it has received nothing since it was asked.
func (p *preparer) drain(ctx context.Context) error {
	if err := p.retry(ctx, func() error { return wrapPlace(placeServer, p.shipper.Drain(ctx)) }); err != nil {
		return err
	}
	if !p.known.moved && p.begun.GetLastSequence() == p.spool.Last() {
		return nil
	}
	err := p.begin(ctx)
	p.known.moved = p.known.moved && err != nil
	return err
}

// push pushes every checkpoint to the gitstore, with some branches, and ships the records that
// say so.
func (p *preparer) push(ctx context.Context, branches ...worktree.RefUpdate) error {
	if err := p.retry(ctx, func() error { return wrapPlace(placeGitstore, p.taker.Push(ctx, branches...)) }); err != nil {
		return err
	}
	return p.drain(ctx)
}

// pushAcceptable is push, except that checkpoints which the gitstore refuses permanently
// are skipped.
func (p *preparer) pushAcceptable(ctx context.Context, branches ...worktree.RefUpdate) error {
	err := p.push(ctx, branches...)
	var refused *checkpoint.RefusedError
	if !errors.As(err, &refused) || refused.Retryable {
		return err
	}
	p.log.Info("the gitstore refuses checkpoints", "error", err.Error())
	return p.drain(ctx)
}

// requirePushed makes sure that one checkpoint is in the gitstore; other checkpoints may be
// refused.
func (p *preparer) requirePushed(ctx context.Context, number int64) error {
	err := p.pushAcceptable(ctx)
	if err == nil && p.taker.MissingInGitstore(number) {
		err = &failure{reason: v1alpha1.ReasonGitStoreRefused, permanent: true,
			message: fmt.Sprintf("the gitstore refuses checkpoint %d, without which what follows could not be undone; the Checkpoint's condition Durable says why", number)}
	}
	return err
}

// closeBegun records, as interrupted, the calls that the hook had reported and the agent's
// output had not when pod and daemon were killed, and the events about calls of a supervisor's
// tools whose answers the agent had not got. The same write marks them as recorded.
func (p *preparer) closeBegun() error {
	mark := p.spool.Mark()
	state := agentstate.Decode(mark.State)
	if len(state.Begun) == 0 && len(state.Answered) == 0 {
		return nil
	}
	var records []*daemonv1.Record
	for _, call := range state.Begun {
		for _, m := range call.Messages() {
			records = append(records, &daemonv1.Record{Body: &daemonv1.Record_Message{Message: m}})
		}
	}
	for _, call := range state.Answered {
		records = append(records, call.Event(false))
	}
	for _, r := range records {
		r.Time, r.Attempt = timestamppb.Now(), p.cfg.Pod.Attempt
	}
	state.Begun, state.Answered = nil, nil
	mark.State = state.Encode()
	return p.spool.Append(&mark, records...)
}

// closeCalls records an interrupted result for each tool call that had none when the agent
// ended.
func (p *preparer) closeCalls(ctx context.Context) error {
	if err := p.closeBegun(); err != nil {
		return err
	}
	if err := p.drain(ctx); err != nil || len(p.begun.GetOpenToolCalls()) == 0 {
		return err
	}
	var answers []*daemonv1.Message
	for _, id := range p.begun.GetOpenToolCalls() {
		answers = append(answers, agent.Interrupted(id))
	}
	if err := p.append(answers...); err != nil {
		return err
	}
	return p.drain(ctx)
}

// clearLocks removes git lock files left by a killed agent; git would refuse to work with
// them in place.
func (p *preparer) clearLocks(ctx context.Context) error {
	removed, err := p.repo.ClearLocks(ctx)
	if len(removed) > 0 {
		p.log.Info("removed locks left by a killed agent", "count", len(removed), "first", removed[0])
	}
	return err
}

// podKey identifies this pod among the task's pods: its attempt's number and, if known, its
// UID.
func (p *preparer) podKey() string {
	key := strconv.FormatInt(p.cfg.Pod.Attempt, 10)
	if uid := p.cfg.Pod.PodUID; uid != "" {
		key += "-" + uid
	}
	return key
}

// completedAtServer reports whether the server has recorded the operation with the key.
func (p *preparer) completedAtServer(key string) bool {
	return slices.Contains(p.begun.GetCompletedOperations(), key)
}

// worktreeMissing reports whether the worktree's folder does not exist.
func (p *preparer) worktreeMissing() (bool, error) {
	info, err := os.Stat(p.cfg.Paths.Worktree)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("inspect the volume: %w", err)
	}
	missing := err != nil || !info.IsDir()
	return missing, nil //nolint:nilerr // a missing folder is an answer, not an error
}

func makeFolder(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return fmt.Errorf("lay out the volume: %w", err)
	}
	return nil
}

// makeFolders creates the volume's folders, except the worktree, and the run folder.
func (p *preparer) makeFolders() error {
	paths := p.cfg.Paths
	context := filepath.Join(p.cfg.RunDir, "context")
	for dir, mode := range map[string]os.FileMode{paths.Home: 0o700, paths.State: 0o700, context: 0o755} {
		if err := makeFolder(dir, mode); err != nil {
			return err
		}
	}
	if err := launchplan.Remove(p.cfg.RunDir); err != nil {
		return err
	}
	if p.cfg.Executable == "" {
		return nil
	}
	shim := filepath.Join(p.cfg.RunDir, shimFile)
	if err := os.MkdirAll(filepath.Dir(shim), 0o755); err != nil {
		return fmt.Errorf("create the shim's folder: %w", err)
	}
	if err := copyFile(p.cfg.Executable, shim, 0o755); err != nil {
		return err
	}
	return linkProgram(shim)
}
