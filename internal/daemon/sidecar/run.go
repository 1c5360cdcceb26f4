// Package sidecar is the daemon beside a task's agent, in a container of its own: it
// records the agent's output, takes checkpoints of its work, and sends both to the server
// and the gitstore.
//
// It promises:
//
//   - A line of the agent's output is acknowledged to the shim only when it is on disk. It
//     then reaches the history exactly once, whatever is killed in between.
//   - The server, the history store and the gitstore may be down for any time: the agent
//     keeps working, and everything is delivered later, in order.
//   - A line may be of any length: memory stays bounded, and nothing is left out.
//   - Before a tool that the task's policy calls risky a checkpoint is taken, and the tool
//     waits for it if the agent asks before it runs tools. If nothing has changed since the
//     last checkpoint, and the agent was stopped for that one, it is named instead. A call
//     that may have begun is never reported as guarded.
//   - A tool about which the policy has a person asked runs only once it is approved, whatever is
//     killed meanwhile; each answer counts once. An agent that does not ask before it runs tools is
//     ended at the call.
//   - For a set of checkpoints the agent stays stopped, for a bounded time, after its own was taken,
//     and how it came to continue is recorded once, whatever is killed meanwhile.
//   - The agent's calls of Clew's tools are answered within a bounded time, whatever is down.
//     A checkpoint that the agent asks for is taken before the answer is sent. A call of a
//     supervisor's tool that is repeated because its answer was lost takes effect once.
//   - Once a budget is spent, by what the server says and what it has yet to be told, the agent is ended
//     at the end of the calls of tools that it has made, or between two messages, with a checkpoint.
//   - The number of automatic checkpoints is bounded, however many calls an agent makes,
//     and none is taken if nothing has changed.
//   - A checkpoint that was taken while the agent ran is marked as such.
//   - Nothing that leaves the pod contains the value of one of the agent's Secrets.
//   - A daemon that was killed at any instant resumes where it was.
//   - What prevents it from working, such as a full volume, shows in the Task's status.
//   - When a newer attempt of the task has begun, or its own pod's object is gone, it ends
//     its agent and writes nothing more anywhere, except the number of the newer attempt.
//     It unlocks the volume only when its agent has ended.
package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/capacity"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/pace"
	"github.com/clew-dev/clew/internal/daemon/record"
	"github.com/clew-dev/clew/internal/daemon/ship"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemon/tools"
	"github.com/clew-dev/clew/internal/daemon/volume"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/worktree"
)

// Server is the part of gatewayclient.Client that the sidecar uses.
type Server interface {
	ship.Server
	MarkBegun()
	OnBudgets(func(*daemonv1.Budgets))
	Commands(context.Context, func(*daemonv1.Command)) error
	Report(context.Context, *daemonv1.Problem) error
	ReportLive(ctx context.Context, report *daemonv1.ReportLiveRequest) error
	VerifyCheckpoint(ctx context.Context, taskUID string, number int64) (*daemonv1.VerifyCheckpointResponse, error)
	SearchHistory(ctx context.Context, query string, limit int) (*daemonv1.SearchHistoryResponse, error)
	CallTool(ctx context.Context, call *daemonv1.CallToolRequest) (*daemonv1.CallToolResponse, error)
}

// Config configures the sidecar.
type Config struct {
	// Pod is the configuration that the manager gave the pod.
	Pod daemonapi.Config
	// Paths are the folders of the task's volume.
	Paths volume.Paths
	// RunDir is the folder shared with the agent's container.
	RunDir string
	// Server is the client of the gateway.
	Server Server
	// Mask keeps the values of Secrets out of everything that leaves the pod; nil if
	// there are none.
	Mask *mask.Masker
	// Remote returns the address of the gitstore and the credentials for it.
	Remote func() (worktree.Remote, error)
	// DoneGrace is how long an agent may be silent after its final answer before
	// it is ended; 0 means 30 s.
	DoneGrace time.Duration
	// ReportAfter is how long pushes may fail once the agent has ended, and how long the
	// server may refuse records at any time, before that is reported; 0 means 15 s for
	// pushes and the shipper's default for records.
	ReportAfter time.Duration
	// CallWait is how long a call of a supervisor's tool waits for its answer; 0 means 47 s.
	CallWait time.Duration
	// ReturnWait is how long a hook that has lost its connection may take to ask again, before its call
	// counts as given up; 0 means a minute.
	ReturnWait time.Duration
	// HoldTime is how long the agent stays stopped for a set of checkpoints at most; 0 means 30 s.
	HoldTime time.Duration
	// BoundaryWait is how long the checkpoint of a set waits for a moment at which no call of a tool is
	// open; 0 means 20 s.
	BoundaryWait time.Duration
	// OpenWait is how long to wait for another process to unlock the volume; 0 means 30 s.
	OpenWait time.Duration
	// ProcessorTime returns the processor time that the daemon has used; nil means what
	// the system counts for this process and those that it has started.
	ProcessorTime func() time.Duration
	// ProcessorsShort reports whether the node is short of processor time; nil means what
	// the system reports.
	ProcessorsShort func() bool
	// Version is the daemon's.
	Version string
	// Log is the daemon's log.
	Log logr.Logger
}

const defaultOpenWait = 30 * time.Second

// reportWait bounds how long a single report of a problem may take.
const reportWait = 5 * time.Second

// daemon is one run of the sidecar. It is the socket's Handler.
type daemon struct {
	cfg      Config
	log      logr.Logger
	volume   *volume.Volume
	taker    *checkpoint.Taker
	shipper  *ship.Shipper
	recorder *record.Recorder
	socket   *socket.Server
	adapter  agent.Adapter
	guard    *guard
	asks     asks
	pace     *pace.Pace
	// comparing bounds what the agent has Clew compare.
	comparing *pace.Pace
	pending   v1alpha1.CheckpointTrigger // the automatic checkpoint that waits for its turn; "" for none
	taken     time.Time                  // when a checkpoint was last taken, or a check found no change
	problems  *problems
	spending  spending
	held      heldSets

	noting          sync.Mutex
	noted           *daemonv1.AgentSession // the session that the journal is known to have
	awaitingSession atomic.Bool            // the files of the agent's session are being read
	uncounted       int                    // results in the session's files that the recorder has not counted, or uncountedUnknown

	silence   atomic.Pointer[string] // why the agent was ended for its silence; nil if it was not
	doneGrace time.Duration
	stored    bool // this process has recorded that everything is stored; of awaitEnd

	idle    chan struct{} // closed when takeCheckpoints has returned
	due     chan struct{} // enough tool calls were answered for a checkpoint
	asked   chan *daemonv1.TakeCheckpoint
	push    chan struct{} // there is something to push
	live    chan string   // the newest request for the files as they are
	refused refusedCheckpoints

	tools     *tools.Server
	toolCalls toolCalls
	turns     chan turn // what the tools do between checkpoints

	liveTurns  liveTurns               // of takeCheckpoints
	livePushes chan livePush           // what pushLive pushes or reports
	livePushed chan struct{}           // pushLive has pushed
	fail       context.CancelCauseFunc // ends the work with a cause
}

// Run serves until ctx ends, which means that the pod ends, and then until the last
// checkpoint and all records are stored outside the pod. A nil error is a clean end.
func Run(ctx context.Context, cfg Config) error {
	adapter, err := agent.For(cfg.Pod.AgentType)
	if err != nil {
		return err
	}
	if cfg.ProcessorTime == nil {
		cfg.ProcessorTime = pace.ProcessorTime
	}
	if cfg.ProcessorsShort == nil {
		cfg.ProcessorsShort = capacity.NodeBusy
	}
	listener, err := socket.Listen(cfg.RunDir)
	if err != nil {
		return err
	}
	defer listener.Close()
	problems := newProblems(cfg)
	v, err := openVolume(ctx, cfg, problems)
	if errors.Is(err, spool.ErrLocked) && ctx.Err() == nil {
		return lockedOut(ctx, cfg, listener)
	}
	if err != nil {
		return err
	}
	defer v.Close()
	counted, err := openMeter(cfg, v)
	if err != nil {
		return err
	}
	cfg.Server.OnBudgets(counted.Tell)
	work, fail := context.WithCancelCause(context.WithoutCancel(ctx))
	defer fail(nil)
	d, bad := assemble(cfg, adapter, v, problems, fail)
	d.spending.meter = counted

	err = d.begin(ctx)
	if err != nil && !attemptOver(err) {
		return err
	}
	if err != nil {
		d.socket.Fence()
	} else {
		d.reportInvalidPatterns(bad)
	}
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	go func() {
		if err := d.socket.Serve(serving, listener, d); err != nil && serving.Err() == nil {
			fail(err)
		}
	}()
	if err == nil {
		err = d.work(ctx, work)
	}
	if attemptOver(err) {
		return d.shutDownReplaced(ctx, err)
	}
	return err
}

// assemble creates the daemon and its parts. bad explains the patterns of the task's
// policy that do not compile.
func assemble(cfg Config, adapter agent.Adapter, v *volume.Volume, problems *problems, fail context.CancelCauseFunc) (d *daemon, bad []error) {
	recorder := record.New(record.Config{Spool: v.Spool, Sync: v.Sync, Attempt: cfg.Pod.Attempt, NewParser: parsers(cfg, adapter, v.Journal), Mask: cfg.Mask,
		Price:    func(t agent.Tokens) *daemonv1.Usage { return t.Usage(cfg.Pod.Prices) },
		LongPath: filepath.Join(cfg.Paths.State, "long-line"), Delivered: forgetWishes(v.Journal, cfg.Log), Problems: problems, Log: cfg.Log})
	shim := socket.New(recorder, v.Journal, cfg.Pod, cfg.Log)
	guard, bad := newGuard(cfg.Pod, adapter)
	paces := pace.Config{LeastIntervalSeconds: cfg.Pod.Policy.LeastIntervalSeconds, ProcessorTime: cfg.ProcessorTime, ProcessorsShort: cfg.ProcessorsShort, Agent: shim}
	d = &daemon{
		cfg: cfg, log: cfg.Log, volume: v, adapter: adapter, problems: problems, recorder: recorder, socket: shim, guard: guard,
		taker: &checkpoint.Taker{Repo: v.Repo, Journal: v.Journal, Spool: v.Spool, Remote: cfg.Remote,
			TaskUID: cfg.Pod.TaskUID, Attempt: cfg.Pod.Attempt, Mask: cfg.Mask, Log: cfg.Log},
		shipper: ship.NewWatched(cfg.Server, v.Spool, cfg.Log, problems, cfg.ReportAfter),
		pace:    pace.New(paces), comparing: pace.New(paces),
		fail: fail, doneGrace: cmp.Or(cfg.DoneGrace, doneGrace),
		idle: make(chan struct{}), due: make(chan struct{}, 1), asked: make(chan *daemonv1.TakeCheckpoint, 64), push: make(chan struct{}, 1),
		live: make(chan string, 1), livePushes: make(chan livePush, 8), livePushed: make(chan struct{}, 1),
		turns: make(chan turn),
	}
	d.tools = tools.New(tools.Config{Given: cfg.Pod.Tools, Phases: cfg.Pod.Phases, Answerer: newToolAnswers(d), Version: cfg.Version, Mask: cfg.Mask.Text, Called: d.toolCalls.count, Log: cfg.Log})
	return d, bad
}

// openVolume opens the volume. While the volume is too full for that, it reports the problem
// and retries, so that freeing space is enough and no restart is needed.
func openVolume(ctx context.Context, cfg Config, p *problems) (*volume.Volume, error) {
	for wait := (backoff.Backoff{Min: time.Second}); ; {
		opening, cancel := context.WithTimeout(ctx, cmp.Or(cfg.OpenWait, defaultOpenWait))
		v, err := volume.Open(opening, cfg.Paths, cfg.Pod, cfg.Mask)
		cancel()
		if !full(err) {
			p.Recorded(nil)
			return v, err
		}
		cfg.Log.Error(err, "the volume is too full to be opened; retrying")
		p.Recorded(err)
		if err := cfg.Server.Report(timeout(ctx, reportWait), p.current()); err != nil {
			cfg.Log.V(1).Info("a problem could not be reported to the server", "error", err.Error())
		}
		if wait.Wait(ctx) != nil {
			return nil, err
		}
	}
}

// begin checks that prepare has left the volume ready for this attempt, and completes what
// a killed daemon left unfinished.
func (d *daemon) begin(ctx context.Context) error {
	state := d.volume.Journal.State()
	attempt := d.cfg.Pod.Attempt
	switch {
	case state.JournalLost:
		return errOutdated
	case state.Attempt > attempt, state.Attempt == attempt && state.PodUID != d.cfg.Pod.PodUID:
		return gatewayclient.ErrFenced
	case state.Seen > attempt:
		return gatewayclient.Fenced(state.Seen)
	case state.TaskUID != d.cfg.Pod.TaskUID || state.Attempt < attempt || !state.IsPrepared():
		return errors.New("the volume is not prepared for this attempt: the container prepare has not completed")
	}
	d.cfg.Server.MarkBegun()
	if err := d.findEnd(ctx); err != nil {
		return err
	}
	if err := d.taker.Recover(); err != nil {
		return err
	}
	if err := d.expireHolds(); err != nil {
		return err
	}
	if err := d.recorder.Replay(); err != nil {
		return err
	}
	if state.Session != nil {
		d.recorder.Recall(state.Session.ID)
	}
	d.uncounted = d.uncountedBefore(state)
	if err := d.noteSession(); err != nil {
		return err
	}
	if d.finished(state) {
		return nil
	}
	// From now on the agent may change files, so the volume no longer counts as clean.
	err := d.volume.Journal.Update(func(s *journal.State) error {
		s.Clean, s.Final = nil, nil
		return nil
	})
	if err != nil {
		return err
	}
	return d.resumeRequests(ctx)
}

// findEnd asks the server for the last record's sequence, if the spool's end is damaged, so
// that no sequence is used twice. It records an event about damage.
func (d *daemon) findEnd(ctx context.Context) error {
	damaged := d.volume.Spool.DamagedBytes()
	for wait := (backoff.Backoff{}); d.volume.Spool.EndUncertain(); {
		begun, err := d.cfg.Server.Begin(ctx)
		if errors.Is(err, gatewayclient.ErrFenced) {
			return err
		}
		if err == nil {
			err = d.volume.Spool.SkipTo(max(begun.GetLastSequence(), d.cfg.Pod.RecordSequence))
		}
		if err != nil {
			d.log.Error(err, "the end of the spool is unreadable; waiting for the server's last sequence")
			if err := wait.Wait(ctx); err != nil {
				return err
			}
		}
	}
	if damaged == 0 {
		return nil
	}
	return d.taker.Event(v1alpha1.ReasonSpoolDamaged, fmt.Sprintf("%d bytes of the daemon's records on the task's volume were unreadable, and were set aside there", damaged), nil)
}

// finished reports whether this attempt's last checkpoint has been taken.
func (d *daemon) finished(s journal.State) bool {
	return s.Final.BelongsTo(d.cfg.Pod.Attempt, d.cfg.Pod.PodUID)
}

// work runs everything until the pod ends (ctx) or something fails for good.
func (d *daemon) work(ctx, work context.Context) error {
	d.log.Info("the daemon has started", "attempt", d.cfg.Pod.Attempt)
	var group sync.WaitGroup
	start := func(c context.Context, f func(context.Context) error) {
		group.Go(func() {
			if err := f(c); err != nil && c.Err() == nil {
				d.fail(err)
			}
		})
	}
	running, stopRunning := context.WithCancel(work)
	defer stopRunning()
	start(work, d.shipper.Run)
	start(work, d.pushAll)
	start(work, d.problems.run)
	start(running, d.listenForCommands)
	start(running, d.pushLive)
	start(running, d.watchAgent)
	go func() {
		defer close(d.idle)
		d.takeCheckpoints(running)
	}()
	if d.stoppedForCall() { // and a daemon was killed before the agent was
		go d.killAgent(running)
	}

	err := d.awaitEnd(ctx, work, func() { stopRunning(); <-d.idle; d.held.close() })
	if cause := context.Cause(work); cause != nil {
		err = cause
	}
	d.fail(nil)
	<-d.idle
	d.held.close()
	group.Wait()
	return err
}

// timeout returns a context that ends after a while, and needs no cancel.
func timeout(ctx context.Context, after time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(ctx, after)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// Failed is called when the volume can no longer be written.
func (d *daemon) Failed(err error) { d.fail(err) }

// Recorded is called after lines were written to disk.
func (d *daemon) Recorded() {
	if err := d.noteSession(); err != nil {
		d.log.Error(err, "the agent's session could not be noted for the next attempt")
	}
	every := int(d.cfg.Pod.Policy.EveryToolCalls)
	if answers, _ := d.recorder.Progress(); every > 0 && answers >= every {
		nudge(d.due)
	}
	d.keepToBudgets()
}

// nudge signals a channel of capacity 1, unless a signal is already pending.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ask queues a requested checkpoint. It returns false if the queue is full.
func (d *daemon) ask(take *daemonv1.TakeCheckpoint) bool {
	select {
	case d.asked <- take:
		return true
	default:
		return false
	}
}

// listenForCommands queues what the server requests, until ctx ends.
func (d *daemon) listenForCommands(ctx context.Context) error {
	var wait backoff.Backoff
	for ctx.Err() == nil {
		full := false // logged once per stream, which may request any number
		err := d.cfg.Server.Commands(ctx, func(c *daemonv1.Command) {
			wait.Reset()
			if c.GetPublishLive() != nil {
				d.askLive(c.GetPublishLive().GetId())
			}
			if c.GetAnswerRequest() != nil {
				d.answer(ctx, c.GetAnswerRequest())
			}
			if c.GetReleaseHold() != nil {
				d.held.release(c.GetReleaseHold())
			}
			take := c.GetTakeCheckpoint()
			if take.GetHold() != "" {
				d.holdFor(ctx, take)
				return
			}
			if take == nil || d.ask(take) || full {
				return
			}
			full = true
			d.log.Info("too many checkpoints are requested; the server requests the rest again on its next stream", "checkpoint", take.GetName())
		})
		if errors.Is(err, gatewayclient.ErrFenced) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			d.log.V(1).Info("lost the stream of the server's commands; reconnecting", "error", err.Error())
		}
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}
