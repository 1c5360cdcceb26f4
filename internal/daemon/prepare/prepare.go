// Package prepare brings a task's volume to the state the task is meant to
// have, before the agent starts: it lays the worktree out, restores it, takes
// it back to a checkpoint, notices changes that nobody accounted for, and
// writes down the conversation for the agent.
//
// It promises:
//
//   - It ends well only when files, agent state and conversation agree. The
//     agent never starts on a mixed tree.
//   - It may be killed at any instant: the journal on the volume says how far it
//     came, and the next prepare, of whatever pod, finishes that first.
//   - An agent that Clew starts itself finds the plan of its start, written last
//     of all: the same one, however often prepare was killed before.
//   - Each operation is carried out once per id, each prompt recorded once.
//   - Nothing is overwritten that is in no checkpoint, unless it was told to.
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

// Server is what is needed of the server; see gatewayclient.Client.
type Server interface {
	ship.Server
	HasBegun()
	PushedCheckpoints(context.Context) (durable, lost []int64, err error)
	MoveConversation(context.Context, *daemonv1.MoveConversationRequest) (*daemonv1.Position, error)
	Conversation(context.Context, func(*daemonv1.ConversationEntry) error) error
	Report(context.Context, *daemonv1.Problem) error
}

// Repo is what is needed of the worktree; see worktree.Repo.
type Repo interface {
	checkpoint.Repo
	Clone(context.Context, worktree.CloneRequest) (worktree.Origin, error)
	Origin() (worktree.Origin, bool)
	Restore(context.Context, worktree.RestoreRequest) (worktree.RestoreResult, error)
	ClearSession(context.Context) (worktree.RestoreResult, error)
	Verify(context.Context, worktree.Target) error
	ReadMeta(ctx context.Context, state string) (worktree.Meta, error)
	Drift(context.Context, worktree.Target) (worktree.Drift, error)
	CheckBranch(name string) error
	Preserve(context.Context, worktree.PreserveRequest) (worktree.Preserved, error)
	Fetch(context.Context, worktree.Remote, ...string) error
	Refs(context.Context, string) (map[string]string, error)
	RemoteRefs(context.Context, worktree.Remote, string) (map[string]string, error)
	CheckPush(context.Context, worktree.Remote) error
	ClearLocks(context.Context) ([]string, error)
}

// Config says what to prepare, from what.
type Config struct {
	Pod daemonapi.Config
	// Prompt is the task's prompt, its first user message.
	Prompt string
	Paths  volume.Paths
	// RunDir is shared with the agent's container, which cannot write there.
	RunDir string
	// Executable is the daemon's own program, copied to the run folder as the
	// shim; none is copied if it is empty.
	Executable string
	// CredentialsDir holds the credentials of the task's repository, if it has any.
	CredentialsDir string
	// Mask keeps the values of Secrets out of whatever leaves the pod; nil if
	// there are none.
	Mask   *mask.Masker
	Server Server
	// Remote says where the gitstore is.
	Remote func() (worktree.Remote, error)
	// RetryFor is how long one step is tried again; 0 means 5 minutes.
	RetryFor time.Duration
	// TellAfter is how long a step is tried again before the server is told what
	// fails; 0 means 4 seconds.
	TellAfter time.Duration
	Log       logr.Logger

	wrap func(Repo) Repo // tests look on, and kill
}

// preparer is one run.
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
	// missing says that the worktree's folder is gone, and that the journal, which
	// could not be read, does not tell whether it ever was there.
	missing bool
	// plan is what the agent is to be started with; nil for the type Exec.
	plan *launchplan.Plan
}

// Run prepares the volume and says how that went. The result's Reason is
// Prepared if, and only if, the agent may start.
func Run(ctx context.Context, cfg Config) daemonapi.PrepareResult {
	if cfg.RetryFor == 0 {
		cfg.RetryFor = 5 * time.Minute
	}
	if cfg.TellAfter == 0 {
		cfg.TellAfter = 4 * time.Second
	}
	p := &preparer{cfg: cfg, log: cfg.Log}
	err := p.run(ctx)
	p.result.Reason, p.result.Permanent, p.result.Message = describe(err)
	if fenced := (*gatewayclient.FencedError)(nil); errors.As(err, &fenced) {
		p.result.NewestAttempt = fenced.Newest
	}
	if err != nil {
		cfg.Log.Error(err, "the workspace is not prepared", "reason", p.result.Reason)
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
	begin := p.begin(ctx)
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
	p.journal, p.spool, p.repo = v.Journal, v.Spool, v.Repo
	if p.cfg.wrap != nil {
		p.repo = p.cfg.wrap(p.repo)
	}
	p.taker = &checkpoint.Taker{Repo: p.repo, Journal: p.journal, Spool: p.spool, Remote: p.cfg.Remote,
		TaskUID: p.cfg.Pod.TaskUID, Attempt: p.cfg.Pod.Attempt, Mask: p.cfg.Mask, Log: p.log}
	if p.hasBegun() {
		p.cfg.Server.HasBegun()
	} else if begin != nil {
		return begin
	}
	if begin != nil {
		if err := p.begin(ctx); err != nil {
			return err
		}
	}
	for _, step := range []func(context.Context) error{
		p.claim, p.checkFence, p.align, p.countTokens, p.firstPrompt, p.drain, p.layOut, p.lookAfterDurable, p.closeCalls,
		p.finishRewind, p.operate, p.clearLocks, p.flush, p.planStart, p.writeConversation, p.writeStart,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// begin opens the attempt at the server, which fences off every older one.
func (p *preparer) begin(ctx context.Context) error {
	return p.retry(ctx, func() error {
		begun, err := p.cfg.Server.Begin(ctx)
		if errors.Is(err, gatewayclient.ErrNotFound) && p.cfg.Pod.Source != nil {
			return &sourceMissing{*p.cfg.Pod.Source, err}
		}
		if err != nil {
			return of(placeServer, err)
		}
		p.begun = begun
		return nil
	})
}

// hasBegun says that the volume holds the task's own workspace, so that the task
// can go on without the one it was started from.
func (p *preparer) hasBegun() bool {
	s := p.journal.State()
	if s.JournalLost {
		return p.holdsWorkspace()
	}
	return s.TaskUID == p.cfg.Pod.TaskUID && s.Layout != nil && s.Layout.Stage != journal.LayoutForking
}

// claim makes the volume this attempt's, if it is this task's.
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
		// Decided and noted before the folder is made anew: the next prepare, if
		// this one ends early, must not take an empty folder for the task's.
		if s.Layout != nil && s.Layout.Stage == journal.LayoutReady && missing {
			p.log.Info("the worktree's folder is gone from the volume: it is restored like a lost volume")
			worktreeGone(s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if missing && p.journal.State().JournalLost {
		p.missing = true // leaveNothing makes the folder, once the journal says what it is
		return nil
	}
	return makeFolder(p.cfg.Paths.Worktree, 0o755)
}

// firstPrompt records the task's prompt as the first thing ever.
func (p *preparer) firstPrompt(ctx context.Context) error {
	// The spool may go on behind records that nobody has any more.
	if p.begun.GetLastSequence() > 0 || p.spool.First() <= p.spool.Last() || p.cfg.Prompt == "" {
		return nil
	}
	inherited := false
	if s := p.cfg.Pod.Source; s != nil && s.IncludeConversation {
		var err error
		if inherited, err = p.inherits(ctx, p.cfg.Prompt); err != nil {
			return err
		}
	}
	if inherited {
		return nil
	}
	return p.userMessage(p.cfg.Prompt)
}

// inherits reports whether the conversation already has the very user message.
func (p *preparer) inherits(ctx context.Context, prompt string) (found bool, err error) {
	prompt = p.text(prompt)
	err = p.retry(ctx, func() error {
		found = false
		return of(placeServer, p.cfg.Server.Conversation(ctx, func(e *daemonv1.ConversationEntry) error {
			m := e.GetMessage()
			found = found || m.GetRole() == daemonv1.Role_ROLE_USER && m.GetText() == prompt
			return nil
		}))
	})
	return found, err
}

func (p *preparer) userMessage(text string) error {
	return p.append(&daemonv1.Message{Role: daemonv1.Role_ROLE_USER, Text: p.text(text)})
}

// text is a text as it is recorded.
func (p *preparer) text(s string) string { return p.cfg.Mask.Text(agent.Text([]byte(s))) }

func (p *preparer) append(messages ...*daemonv1.Message) error {
	var records []*daemonv1.Record
	for _, m := range messages {
		records = append(records, &daemonv1.Record{Time: timestamppb.Now(), Attempt: p.cfg.Pod.Attempt, Body: &daemonv1.Record_Message{Message: m}})
	}
	return p.spool.Append(nil, records...)
}

// drain gets every record to the server and asks where the task then stands.
func (p *preparer) drain(ctx context.Context) error {
	if err := p.retry(ctx, func() error { return of(placeServer, p.shipper.Drain(ctx)) }); err != nil {
		return err
	}
	return p.begin(ctx)
}

// push gets every checkpoint to the gitstore, and the records of that to the server.
func (p *preparer) push(ctx context.Context) error {
	if err := p.retry(ctx, func() error { return of(placeGitstore, p.taker.Push(ctx)) }); err != nil {
		return err
	}
	return p.drain(ctx)
}

// pushWhatCan is push, where checkpoints that the gitstore refuses for good stand
// in nobody's way.
func (p *preparer) pushWhatCan(ctx context.Context) error {
	err := p.push(ctx)
	var refused *checkpoint.RefusedError
	if !errors.As(err, &refused) || refused.Retryable {
		return err
	}
	p.log.Info("the gitstore refuses checkpoints", "error", err.Error())
	return p.drain(ctx)
}

// pushed gets one checkpoint to the gitstore, whatever becomes of others.
func (p *preparer) pushed(ctx context.Context, number int64) error {
	err := p.pushWhatCan(ctx)
	if err == nil && p.taker.Lacks(number) {
		err = &failure{reason: v1alpha1.ReasonGitStoreRefused, permanent: true,
			message: fmt.Sprintf("the gitstore refuses checkpoint %d, without which the rewind could not be undone; the Checkpoint's condition Durable says why", number)}
	}
	return err
}

// closeBegun records the calls that the hook had told of and the agent's output
// had not when pod and daemon were killed, as cut. The same write says that they
// are recorded.
func (p *preparer) closeBegun() error {
	mark := p.spool.Mark()
	state := agentstate.Decode(mark.State)
	if len(state.Begun) == 0 {
		return nil
	}
	var records []*daemonv1.Record
	for _, call := range state.Begun {
		for _, m := range call.Messages() {
			records = append(records, &daemonv1.Record{Time: timestamppb.Now(), Attempt: p.cfg.Pod.Attempt, Body: &daemonv1.Record_Message{Message: m}})
		}
	}
	state.Begun = nil
	mark.State = state.Encode()
	return p.spool.Append(&mark, records...)
}

// closeCalls answers the tool calls that the agent left open when it ended.
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

// clearLocks removes what a killed agent's git left locked: the next one's would
// refuse to work.
func (p *preparer) clearLocks(ctx context.Context) error {
	removed, err := p.repo.ClearLocks(ctx)
	if len(removed) > 0 {
		p.log.Info("removed locks that a killed agent left", "count", len(removed), "first", removed[0])
	}
	return err
}

// flush pushes what the sidecar otherwise would: a pod that only prepares has none.
func (p *preparer) flush(ctx context.Context) error {
	if p.cfg.Pod.PrepareOnly {
		return p.pushWhatCan(ctx)
	}
	return p.drain(ctx)
}

// podKey tells this pod from every other one of the task: its attempt's number
// and, where it is known, its UID.
func (p *preparer) podKey() string {
	key := strconv.FormatInt(p.cfg.Pod.Attempt, 10)
	if uid := p.cfg.Pod.PodUID; uid != "" {
		key += "-" + uid
	}
	return key
}

// moved reports whether the server has noted the operation with the key.
func (p *preparer) moved(key string) bool {
	return slices.Contains(p.begun.GetCompletedOperations(), key)
}

// worktreeMissing reports whether the worktree's folder is gone.
func (p *preparer) worktreeMissing() (bool, error) {
	info, err := os.Stat(p.cfg.Paths.Worktree)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("look at the volume: %w", err)
	}
	missing := err != nil || !info.IsDir()
	return missing, nil //nolint:nilerr // that nothing is there is the answer
}

func makeFolder(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		return fmt.Errorf("lay out the volume: %w", err)
	}
	return nil
}

// makeFolders lays out the volume, but for the worktree, and the run folder.
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
		return fmt.Errorf("make the shim's folder: %w", err)
	}
	return copyFile(p.cfg.Executable, shim, 0o755)
}
