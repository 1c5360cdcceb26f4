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

// problemPause is the shortest time between two reports: a volume that hovers
// about its limit must not have the Task's socket.Status written all the time.
const problemPause = 5 * time.Second

// problems knows what keeps the daemon from its work, and tells the server of
// it. It needs no room on the volume, which may be what is missing.
type problems struct {
	server interface {
		Report(context.Context, *daemonv1.Problem) error
	}
	mask      *mask.Masker
	log       logr.Logger
	tellAfter time.Duration

	mu          sync.Mutex
	recording   *daemonv1.Problem // of the agent's output
	checkpoints *daemonv1.Problem // of taking them
	pushes      *daemonv1.Problem // of what was taken
	model       *daemonv1.Problem // of the model's API
	records     *daemonv1.Problem // of sending what is recorded
	unknown     bool              // the server may not know any more what it was told
	news        chan struct{}     // there may be something to tell
	failing     time.Time         // since when every push has failed; zero if the last one did not
	ending      bool              // the agent has ended, and its pod waits for pushes
}

func newProblems(cfg Config) *problems {
	return &problems{server: cfg.Server, mask: cfg.Mask, log: cfg.Log, news: make(chan struct{}, 1), tellAfter: cmp.Or(cfg.TellAfter, tellAfter)}
}

// tellAfter is how long pushes may fail before it is told what the end of an
// agent waits for. While it works it needs no gitstore.
const tellAfter = 15 * time.Second

// waits notes that the agent has ended, and that its pod waits for pushes.
func (p *problems) waits() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending = true
}

// failed notes a push that failed, and says whether the agent's end has waited
// for too long.
func (p *problems) failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing.IsZero() {
		p.failing = time.Now()
	}
	return p.ending && time.Since(p.failing) >= p.tellAfter
}

// Recorded notes why the agent's output could not be recorded; nil when it was.
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

// taken notes why a checkpoint could not be taken; nil when one was.
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
		is = p.problem(v1alpha1.ReasonCheckpointFailed, "the last checkpoint that was due could not be taken; it is tried again when the next one is: "+why)
	}
	p.set(&p.checkpoints, is)
}

// pushed notes why the gitstore takes no checkpoints; nil when it took them. One
// that it will never take stands in the history, and holds nothing up.
func (p *problems) pushed(err error) {
	var is *daemonv1.Problem
	var refused *checkpoint.RefusedError
	if errors.As(err, &refused) && slices.Contains([]string{string(gitstoreapi.QuotaExceeded), string(gitstoreapi.VolumeFull)}, refused.Reason) {
		is = p.problem(v1alpha1.ReasonGitStoreRefused,
			"checkpoints wait on the task's volume, and the agent's end waits for them, since the gitstore has no room: "+refused.Message)
	} else if err != nil {
		if !p.failed() {
			return // it passes, or is told of otherwise
		}
		reason := v1alpha1.ReasonGitStoreUnreachable
		if worktree.ReasonOf(err) == worktree.MemoryExceeded {
			reason = v1alpha1.ReasonCheckpointFailed // the gitstore is well: this pod cannot send them
		}
		is = p.problem(reason,
			"the agent has ended, and its end waits until the gitstore has its checkpoints, which are safe on the task's volume: "+err.Error())
	}
	if err == nil {
		p.mu.Lock()
		p.failing = time.Time{}
		p.mu.Unlock()
	}
	p.set(&p.pushes, is)
}

// modelErrors notes an error of the model's API that the agent tries to get over;
// nil when it has, or has ended. Which of them came first is told for as long as
// they are of one kind.
func (p *problems) modelErrors(f *agent.Failure) {
	var is *daemonv1.Problem
	if f != nil {
		is = p.problem(v1alpha1.ReasonModelErrors, f.Message+"; the agent tries again by itself")
	}
	p.set(&p.model, is)
}

// Shipped notes why the server takes no records; nil when it takes them.
func (p *problems) Shipped(err error) {
	var is *daemonv1.Problem
	if err != nil {
		is = p.problem(v1alpha1.ReasonRecordingFailed,
			"the server refuses what the agent has said and done: it waits on the task's volume, and the agent's end waits for it: "+err.Error())
	}
	p.set(&p.records, is)
}

// WentBack notes that the server went back in time: it may say of this attempt
// what was so long ago.
func (p *problems) WentBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unknown = true
	nudge(p.news)
}

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
		nudge(p.news)
	}
}

// current is what is to be told, the worst first: the agent stands still while its
// output is held back.
func (p *problems) current() *daemonv1.Problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.recording, p.records, p.checkpoints, p.pushes, p.model)
}

// own reports whether there is a problem of Clew's own.
func (p *problems) own() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.recording, p.records, p.checkpoints, p.pushes) != nil
}

// again says, once, that everything is to be told again.
func (p *problems) again() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	unknown := p.unknown
	p.unknown = false
	return unknown
}

// run tells the server of every change until ctx ends. It begins with how things
// are: a daemon before this one may have told of something else.
func (p *problems) run(ctx context.Context) error {
	wait := backoff.Backoff{Min: problemPause, Max: time.Minute}
	for due, told := true, (*daemonv1.Problem)(nil); ; {
		due = p.again() || due
		if is := p.current(); due || !proto.Equal(is, told) {
			err := p.server.Report(ctx, is)
			switch {
			case errors.Is(err, gatewayclient.ErrFenced):
				return err
			case err == nil, errors.Is(err, gatewayclient.ErrInvalid): // a server of an older release does not know of problems
				due, told = false, is
				wait.Reset()
			default:
				p.log.V(1).Info("the server could not be told of a problem", "problem", is.GetReason(), "error", err.Error())
			}
			if err := wait.Wait(ctx); err != nil {
				return err
			}
			continue
		}
		select {
		case <-p.news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
