package sidecar

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/pace"
	"github.com/clew-dev/clew/internal/daemon/record"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// maxGuarded bounds the calls that are known to have had their checkpoint.
	maxGuarded = 1000
	// maxSeen bounds the calls seen in the agent's output that wait for a checkpoint.
	// Only a flood has more of them at once: those beyond are counted, and do not wait.
	maxSeen = 32
	// lookBurst is how often it is looked at any pace whether something has changed
	// before a risky call; beyond that, it is each pace.LookPause.
	lookBurst = 20
	// maxName is how much of a tool's name or a call's id is recorded.
	maxName = 256
)

// riskyTools are the calls that a checkpoint is taken before.
type riskyTools []riskyTool

type riskyTool struct{ tool, input *regexp.Regexp }

// compileRisky leaves out patterns that do not compile, and says why.
func compileRisky(patterns []daemonapi.ToolPattern) (tools riskyTools, bad []error) {
	for _, p := range patterns {
		tool, err := regexp.Compile(p.Tool)
		if err != nil {
			bad = append(bad, fmt.Errorf("the pattern %q of beforeRiskyTools is no regular expression, so that no checkpoint is taken for it: correct the task's checkpointPolicy: %w", p.Tool, err))
			continue
		}
		input, err := regexp.Compile(p.Input)
		if err != nil {
			bad = append(bad, fmt.Errorf("the pattern %q of beforeRiskyTools is no regular expression, so that no checkpoint is taken for it: correct the task's checkpointPolicy: %w", p.Input, err))
			continue
		}
		tools = append(tools, riskyTool{tool, input})
	}
	return tools, bad
}

// match reports whether a call is risky. What is not there of a cut input may
// be what makes it so.
func (r riskyTools) match(name, input string, cut bool) bool {
	return slices.ContainsFunc(r, func(t riskyTool) bool {
		return t.tool.MatchString(name) && (cut || t.input.MatchString(input))
	})
}

// guard takes checkpoints for risky tools. Those of agents that ask before they
// run a tool wait for it; other agents are stopped when their call is seen.
type guard struct {
	tools riskyTools
	asks  bool // the agent asks before it runs a tool
	calls chan *riskyCall
	held  []*riskyCall // those that wait for their checkpoint; of takeCheckpoints alone
	looks *rate.Limiter
	over  chan struct{} // the last of those that waited has gone, and others were left out

	mu      sync.Mutex
	guarded []string     // calls that had their checkpoint, newest last
	looked  time.Time    // when it was last found that nothing had changed
	seen    int          // calls seen that wait
	left    int          // calls that were too many to wait, and are not told of yet
	untold  []*riskyCall // the others of which it is not told yet what came
}

// riskyCall is one that waits for its checkpoint.
type riskyCall struct {
	tool *daemonv1.RiskyTool
	done chan struct{} // closed when the call may proceed
	ctx  context.Context
	stop *socket.Stop // of its agent, from when it was seen; nil for one that waits by itself
}

// waits reports whether a call that is held back cannot have done anything yet.
func (c *riskyCall) waits() bool { return c.stop == nil || c.stop.Unbroken() }

func newGuard(cfg daemonapi.Config, adapter agent.Adapter) (*guard, []error) {
	tools, bad := compileRisky(cfg.Policy.RiskyTools)
	return &guard{tools: tools, asks: adapter.AsksBeforeTools(), calls: make(chan *riskyCall), over: make(chan struct{}, 1),
		looks: rate.NewLimiter(rate.Every(pace.LookPause), lookBurst)}, bad
}

// enter counts a call that was seen; false if too many wait.
func (g *guard) enter(c *riskyCall) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen == maxSeen || !g.noteLocked(c) {
		g.left++
		return false
	}
	g.seen++
	return true
}

// ask counts a call that waits by itself.
func (g *guard) ask(c *riskyCall) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.noteLocked(c) {
		g.left++
	}
}

// noteLocked keeps a call until it is told what came of it. There is room for all that
// can wait; none wait any more, however many come, when the agent is about to end.
func (g *guard) noteLocked(c *riskyCall) bool {
	if len(g.untold) == maxSeen+socket.MaxAsking {
		return false
	}
	g.untold = append(g.untold, c)
	return true
}

// forget notes that there is nothing to tell of a call, or that it is being told.
func (g *guard) forget(c *riskyCall) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.untold = slices.DeleteFunc(g.untold, func(other *riskyCall) bool { return other == c })
}

func (g *guard) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen--; g.seen == 0 && g.left > 0 {
		nudge(g.over)
	}
}

// untilLook is how long it is until it may be looked whether something has changed.
func (g *guard) untilLook() time.Duration {
	missing := 1 - g.looks.Tokens()
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing*float64(pace.LookPause)) + time.Millisecond
}

// known reports whether a call has had its checkpoint, of an agent that asks before it
// runs a tool and may ask again. Others may give two calls the same id.
func (g *guard) known(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return id != "" && slices.Contains(g.guarded, id)
}

// taken notes a call that has had its checkpoint.
func (g *guard) taken(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if id != "" {
		g.guarded = append(g.guarded[max(0, len(g.guarded)-maxGuarded+1):], id)
	}
}

// unchanged notes that there was nothing to take a checkpoint of.
func (g *guard) unchanged() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.looked = time.Now()
}

// pause is how long it is not looked again whether something has changed.
func (g *guard) pause() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Until(g.looked.Add(pace.LookPause))
}

// BeforeTool returns when a tool may run that waits for it. ctx ends with the
// connection, or the daemon.
func (d *daemon) BeforeTool(ctx context.Context, b wire.BeforeTool) {
	if d.adapter.HookComesFirst() {
		if err := d.recorder.BeginCall(ctx, b); err != nil {
			return // the daemon or the hook ends
		}
	}
	g := d.guard
	if !g.tools.match(b.Name, b.Input, b.Cut) || g.known(b.ID) {
		return
	}
	c := &riskyCall{ctx: ctx, tool: d.riskyTool(b.ID, b.Name, true), done: make(chan struct{})}
	g.ask(c)
	defer func() {
		if ctx.Err() != nil {
			g.forget(c) // who asked has gone, and does not run the tool
		}
	}()
	// An agent that asks without end makes nobody look for changes without end.
	if _, records := d.recorder.Progress(); records == 0 {
		select {
		case <-time.After(g.pause()):
		case <-ctx.Done():
			return
		}
	}
	d.await(ctx, c)
}

// ToolCalled is told of each call in the agent's output, before it is recorded.
func (d *daemon) ToolCalled(ctx context.Context, call record.Call) {
	g := d.guard
	if g.asks || !g.tools.match(call.Name, call.Input, call.Cut) {
		return
	}
	c := &riskyCall{ctx: ctx, tool: d.riskyTool(call.ID, call.Name, false), done: make(chan struct{})}
	if !g.enter(c) {
		return
	}
	go func() {
		defer g.leave()
		c.stop = d.socket.Stop(ctx) // whatever else is being done
		defer c.stop.End()
		d.await(ctx, c)
	}()
}

func (d *daemon) riskyTool(id, name string, before bool) *daemonv1.RiskyTool {
	text := func(s string) string { return clip.Bytes(d.cfg.Mask.Text(agent.Text([]byte(s))), maxName) }
	return &daemonv1.RiskyTool{CallId: text(id), Name: text(name), Before: before}
}

// await has a call's checkpoint taken.
func (d *daemon) await(ctx context.Context, c *riskyCall) {
	select {
	case d.guard.calls <- c:
	case <-d.idle:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-c.done:
	case <-d.idle:
	case <-ctx.Done():
	}
}

// takeRisky takes one checkpoint for all calls that are held back: none of them
// has run yet. If nothing has changed since the last one, which the agent stood still
// for, that one stands for them; if there were too many checkpoints of late, or too dear
// ones, they wait for its turn.
func (d *daemon) takeRisky(ctx context.Context) error {
	g := d.guard
	g.collect()
	if len(g.held) == 0 || d.pace.RiskyRest() > 0 || !g.looks.Allow() {
		return nil
	}
	if latest := d.volume.Journal.State().Latest; latest != nil && !latest.Ran && !d.changed(ctx) {
		g.unchanged()
		d.cover(*latest, nil)
		return nil
	}
	if d.pace.UntilTurn() > 0 {
		return nil
	}
	d.pace.Spend()
	return d.take(ctx, checkpoint.Request{Trigger: v1alpha1.TriggerBeforeRiskyTool, RiskyTool: g.held[0].tool})
}

// unguarded lets all calls run that a checkpoint which could not be taken would have stood
// for: those that were held back when it began, or when the agent stood still for it.
func (d *daemon) unguarded(err error) {
	d.tellOfMore(func(more int) (string, string, map[string]string) {
		return v1alpha1.EventRiskyToolUnguarded, fmt.Sprintf("%d more risky calls, which came at once with others, run without a checkpoint before them, since the one that would have covered them could not be taken", more), nil
	})
	for _, c := range d.guard.release() {
		d.tellGuarded(v1alpha1.EventRiskyToolUnguarded, c.tool, nil,
			fmt.Sprintf("the tool %s runs without a checkpoint before it, since the one that would have covered it could not be taken: %s", c.tool.GetName(), agent.Text([]byte(err.Error()))))
	}
}

// collect takes in whoever else waits, and drops who has gone, or has had a
// checkpoint.
func (g *guard) collect() {
	for more := true; more; {
		select {
		case c := <-g.calls:
			g.held = append(g.held, c)
		default:
			more = false
		}
	}
	g.held = slices.DeleteFunc(g.held, func(c *riskyCall) bool {
		drop := c.ctx.Err() != nil || c.stop == nil && g.known(c.tool.GetCallId())
		if drop {
			g.forget(c)
			close(c.done)
		}
		return drop
	})
}

// release lets all calls go that are held back, and returns them.
func (g *guard) release() []*riskyCall {
	released := g.held
	g.held = nil
	for _, c := range released {
		g.forget(c)
		close(c.done)
	}
	return released
}

// cause is the call that a checkpoint is taken for, now that the agent stands still: one
// that waits. If all have gone on, it is merely one that calls have caused.
func (g *guard) cause() (v1alpha1.CheckpointTrigger, *daemonv1.RiskyTool) {
	for _, c := range g.held {
		if c.waits() {
			return v1alpha1.TriggerBeforeRiskyTool, c.tool
		}
	}
	return v1alpha1.TriggerToolCalls, nil
}

// cover lets the calls go that are held back, since a checkpoint stands for what
// was before them, and tells which one. It was taken for the call own, if any, which its
// record names. One of an agent that ran may hold what a call has done already, as may
// any one for a call whose stop is over: the agent is only stopped for so long.
func (d *daemon) cover(point journal.Point, own *daemonv1.RiskyTool) {
	details := map[string]string{"checkpoint": strconv.FormatInt(point.Number, 10)}
	ran := ""
	if point.Ran {
		ran = "the agent ran while it was taken"
	}
	more := ran
	for _, c := range d.guard.held {
		why := ran
		if !c.waits() {
			why = cmp.Or(ran, "the agent has run since the call")
		}
		more = cmp.Or(more, why)
		switch {
		case why != "":
			d.tellGuarded(v1alpha1.EventRiskyToolUnguarded, c.tool, details,
				fmt.Sprintf("checkpoint %d may not hold what was before the tool %s: %s", point.Number, c.tool.GetName(), why))
			continue
		case c.tool != own:
			d.tellGuarded(v1alpha1.EventRiskyToolGuarded, c.tool, details,
				fmt.Sprintf("checkpoint %d holds what was before the tool %s", point.Number, c.tool.GetName()))
		}
		d.guard.taken(c.tool.GetCallId())
	}
	d.guard.release()
	d.tellOfMore(func(calls int) (string, string, map[string]string) {
		if more != "" {
			return v1alpha1.EventRiskyToolUnguarded, fmt.Sprintf("checkpoint %d may not stand for %d more risky calls, which came at once with others: %s", point.Number, calls, more), details
		}
		return v1alpha1.EventRiskyToolGuarded, fmt.Sprintf("checkpoint %d stands for %d more risky calls, which came at once with others", point.Number, calls), details
	})
}

// tellOfMore records once what came of the calls that were counted alone, if any were.
func (d *daemon) tellOfMore(told func(more int) (reason, message string, details map[string]string)) {
	g := d.guard
	g.mu.Lock()
	more := g.left
	g.left = 0
	g.mu.Unlock()
	if more == 0 {
		return
	}
	reason, message, details := told(more)
	all := map[string]string{"calls": strconv.Itoa(more)}
	maps.Copy(all, details)
	if err := d.taker.Event(reason, message, all); err != nil {
		d.log.Error(err, "what came of risky tools could not be recorded")
	}
}

// tellOfEnded tells of calls that still waited for a checkpoint when the agent ended. The
// last one does not stand for them: it is taken of what they may have done.
func (d *daemon) tellOfEnded() {
	g := d.guard
	g.mu.Lock()
	waited := g.untold
	g.untold = nil
	g.mu.Unlock()
	for _, c := range waited {
		d.tellGuarded(v1alpha1.EventRiskyToolUnguarded, c.tool, nil,
			fmt.Sprintf("the tool %s was called without a checkpoint before it: the agent ended before one was taken", c.tool.GetName()))
	}
	d.tellOfRest()
}

// tellOfRest tells of calls that were left out when no checkpoint was taken any more
// that could stand for them.
func (d *daemon) tellOfRest() {
	d.tellOfMore(func(more int) (string, string, map[string]string) {
		return v1alpha1.EventRiskyToolUnguarded, fmt.Sprintf("%d more risky calls, which came at once with others, run without a checkpoint before them", more), nil
	})
}

// tellGuarded records what came of a risky call.
func (d *daemon) tellGuarded(reason string, tool *daemonv1.RiskyTool, details map[string]string, message string) {
	all := map[string]string{"tool": tool.GetName(), "call": tool.GetCallId()}
	maps.Copy(all, details)
	if err := d.taker.Event(reason, clip.Bytes(message, maxDetail), all); err != nil {
		d.log.Error(err, "what came of a risky tool could not be recorded")
	}
}

// reportInvalidPatterns records policy patterns that do not compile.
func (d *daemon) reportInvalidPatterns(bad []error) {
	for _, err := range bad {
		d.log.Error(err, "a pattern of the task's policy is left out")
		if err := d.taker.Event(v1alpha1.EventRiskyToolPatternInvalid, clip.Bytes(err.Error(), maxDetail), nil); err != nil {
			d.log.Error(err, "that could not be recorded")
		}
	}
}
