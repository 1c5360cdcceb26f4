package sidecar

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/mask"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/worktree"
)

// problemPause is the shortest time between two reports: a volume that is close to full
// must not cause constant writes of the Task's status.
const problemPause = 5 * time.Second

// problems tracks what prevents the daemon from working, and reports it to the server. It
// needs no space on the volume, which may be full.
type problems struct {
	server interface {
		Report(context.Context, *daemonv1.Problem) error
	}
	mask        *mask.Masker
	log         logr.Logger
	reportAfter time.Duration

	mu          sync.Mutex
	recording   *daemonv1.Problem // of recording the agent's output
	checkpoints *daemonv1.Problem // of taking checkpoints
	pushes      *daemonv1.Problem // of pushing checkpoints
	model       *daemonv1.Problem // of the model's API
	records     *daemonv1.Problem // of sending records
	unknown     bool              // the server may have lost the last report
	changed     chan struct{}     // there may be something to report
	failing     time.Time         // since when every push has failed; zero if the last one did not
	ending      bool              // the agent has ended, and its pod waits for pushes
}

func newProblems(cfg Config) *problems {
	return &problems{server: cfg.Server, mask: cfg.Mask, log: cfg.Log, changed: make(chan struct{}, 1), reportAfter: cmp.Or(cfg.ReportAfter, reportAfter)}
}

// reportAfter is how long pushes may fail, once the agent has ended, before that is
// reported. An agent that runs does not need the gitstore.
const reportAfter = 15 * time.Second

// agentEnded notes that the agent has ended, and that its pod waits for pushes.
func (p *problems) agentEnded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending = true
}

// pushFailed notes a failed push, and reports whether the pod of an agent that has ended
// has waited for too long.
func (p *problems) pushFailed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing.IsZero() {
		p.failing = time.Now()
	}
	return p.ending && time.Since(p.failing) >= p.reportAfter
}

// Recorded records why the agent's output could not be recorded; nil when it was.
func (p *problems) Recorded(err error) {
	var is *daemonv1.Problem
	switch {
	case full(err):
		is = p.problem(v1alpha1.ReasonVolumeFull, "the volume is full, and the agent's output is held back until there is room: "+
			"enlarge the task's PersistentVolumeClaim, or delete files with kubectl exec")
	case err != nil:
		is = p.problem(v1alpha1.ReasonRecordingFailed, "the agent's output cannot be recorded, and is held back: "+err.Error())
	}
	p.set(&p.recording, is)
}

// taken records why a checkpoint could not be taken; nil when one was.
func (p *problems) taken(err error) {
	var is *daemonv1.Problem
	switch {
	case full(err):
		is = p.problem(v1alpha1.ReasonVolumeFull, "the volume is full, and no checkpoints can be taken: "+
			"enlarge the task's PersistentVolumeClaim, or delete files with kubectl exec")
	case err != nil:
		why := err.Error()
		if known := (*worktree.Error)(nil); errors.As(err, &known) {
			why = known.Message
		}
		is = p.problem(v1alpha1.ReasonCheckpointFailed, "a checkpoint that was due could not be taken and will be retried when the next one is due: "+why)
	}
	p.set(&p.checkpoints, is)
}

// pushed records why checkpoints could not be pushed; nil when they were. A checkpoint that
// the gitstore refuses for good is no problem here: it is recorded as an event, and nothing
// waits for it.
func (p *problems) pushed(err error) {
	var is *daemonv1.Problem
	var refused *checkpoint.RefusedError
	if errors.As(err, &refused) && slices.Contains([]string{string(gitstoreapi.QuotaExceeded), string(gitstoreapi.VolumeFull)}, refused.Reason) {
		is = p.problem(v1alpha1.ReasonGitStoreRefused,
			"the gitstore has no room for the task's checkpoints; they wait on the task's volume, and the pod does not end before they are pushed: "+refused.Message)
	} else if err != nil {
		if !p.pushFailed() {
			return // it may pass, and nothing waits for it yet
		}
		reason := v1alpha1.ReasonGitStoreUnreachable
		if worktree.ReasonOf(err) == worktree.MemoryExceeded {
			reason = v1alpha1.ReasonCheckpointFailed // the fault is this pod's, not the gitstore's
		}
		is = p.problem(reason,
			"the agent has ended, and its pod waits until the gitstore has its checkpoints, which are safe on the task's volume: "+err.Error())
	}
	if err == nil {
		p.mu.Lock()
		p.failing = time.Time{}
		p.mu.Unlock()
	}
	p.set(&p.pushes, is)
}

// modelErrors notes an error of the model's API after which the agent is retrying; nil when
// it has succeeded or ended.
func (p *problems) modelErrors(f *agent.Failure) {
	var is *daemonv1.Problem
	if f != nil {
		is = p.problem(v1alpha1.ReasonModelErrors, f.Message+"; the agent retries by itself")
	}
	p.set(&p.model, is)
}

// Shipped records why the server accepts no records; nil when it does.
func (p *problems) Shipped(err error) {
	var is *daemonv1.Problem
	if err != nil {
		is = p.problem(v1alpha1.ReasonRecordingFailed,
			"the server refuses the task's records; they wait on the task's volume, and the pod does not end before they are stored: "+err.Error())
	}
	p.set(&p.records, is)
}

// WentBack notes that the server was restored to an older copy, which may hold an older
// report of this attempt.
func (p *problems) WentBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unknown = true
	nudge(p.changed)
}

// full reports whether an error means that the volume is full.
func full(err error) bool {
	return worktree.NoSpace(err) || worktree.ReasonOf(err) == worktree.StorageFull
}

func (p *problems) problem(reason, message string) *daemonv1.Problem {
	if p.mask != nil {
		message = p.mask.Text(message)
	}
	return &daemonv1.Problem{Reason: reason, Message: clip.Bytes(agent.Text([]byte(message)), maxDetail)}
}

func (p *problems) set(which **daemonv1.Problem, is *daemonv1.Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if *which != nil || is != nil {
		*which = is
		nudge(p.changed)
	}
}

// current returns the problem to report, nil for none. Of several it returns the most
// severe; the worst is output that cannot be recorded, since the agent is then blocked.
func (p *problems) current() *daemonv1.Problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.recording, p.records, p.checkpoints, p.pushes, p.model)
}

// ours reports whether there is a problem of Clew's own, not of the model's API.
func (p *problems) ours() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.recording, p.records, p.checkpoints, p.pushes) != nil
}

// takeUnknown reports whether the server may have lost the last report, once.
func (p *problems) takeUnknown() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	unknown := p.unknown
	p.unknown = false
	return unknown
}

// run reports every change to the server until ctx ends. It begins with the current state,
// since an earlier process of the daemon may have reported another.
func (p *problems) run(ctx context.Context) error {
	wait := backoff.Backoff{Min: problemPause, Max: time.Minute}
	for due, reported := true, (*daemonv1.Problem)(nil); ; {
		due = p.takeUnknown() || due
		if is := p.current(); due || !proto.Equal(is, reported) {
			err := p.server.Report(ctx, is)
			switch {
			case errors.Is(err, gatewayclient.ErrFenced):
				return err
			case err == nil, errors.Is(err, gatewayclient.ErrInvalid): // a server of an older release does not know of problems
				due, reported = false, is
				wait.Reset()
			default:
				p.log.V(1).Info("a problem could not be reported to the server", "problem", is.GetReason(), "error", err.Error())
			}
			if err := wait.Wait(ctx); err != nil {
				return err
			}
			continue
		}
		select {
		case <-p.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
