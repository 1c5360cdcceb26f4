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
	// maxCovered bounds the remembered calls that have had their checkpoint.
	maxCovered = 1000
	// maxSeen bounds the calls seen in the agent's output that wait for a checkpoint. Only
	// a flood exceeds it; the calls beyond are counted, and do not wait.
	maxSeen = 32
	// checkBurst is how many checks for changes before risky calls are made without delay;
	// beyond it, one is made every pace.CheckPause.
	checkBurst = 20
	// maxName bounds, in bytes, how much of a tool's name or a call's id is recorded.
	maxName = 256
)

// riskyTools are the rules about risky calls.
type riskyTools []riskyTool

// riskyTool is a rule: what is done about the calls that it matches.
type riskyTool struct {
	tool, input *regexp.Regexp
	action      v1alpha1.RiskyToolAction // empty for a checkpoint
	message     string
}

// severity orders actions: of several rules that match, the most severe one counts.
func (r riskyTool) severity() int {
	return slices.Index([]v1alpha1.RiskyToolAction{v1alpha1.RiskyToolAsk, v1alpha1.RiskyToolDeny}, r.action)
}

// decides reports whether more is done about a call than a checkpoint taken before it.
func (r riskyTool) decides() bool { return r.severity() >= 0 }

// compileRisky compiles the patterns; bad explains those that do not compile.
func compileRisky(patterns []daemonapi.ToolPattern) (tools riskyTools, bad []error) {
	for _, p := range patterns {
		tool, err := regexp.Compile(p.Tool)
		if err != nil {
			bad = append(bad, invalidPattern(p.Tool, err))
			continue
		}
		input, err := regexp.Compile(p.Input)
		if err != nil {
			bad = append(bad, invalidPattern(p.Input, err))
			continue
		}
		tools = append(tools, riskyTool{tool: tool, input: input, action: p.Action, message: p.Message})
	}
	return tools, bad
}

func invalidPattern(pattern string, err error) error {
	return fmt.Errorf("the pattern %q in beforeRiskyTools is not a valid regular expression and is ignored; correct the task's checkpointPolicy: %w", pattern, err)
}

// find returns the rule about a call; false if it is not risky. A cut input counts as matching,
// since the missing part may match.
func (r riskyTools) find(name, input string, cut bool) (rule riskyTool, risky bool) {
	for _, t := range r {
		if t.tool.MatchString(name) && (cut || t.input.MatchString(input)) && (!risky || t.severity() > rule.severity()) {
			rule, risky = t, true
		}
	}
	return rule, risky
}

// guard tracks the risky calls that need a checkpoint. The calls of agents that ask before
// they run a tool wait for it; other agents are stopped when their call is seen in the
// output.
type guard struct {
	tools   riskyTools
	asks    bool            // the agent asks before it runs a tool
	calls   chan *riskyCall // new calls
	held    []*riskyCall    // calls that wait for their checkpoint; used by takeCheckpoints alone
	checks  *rate.Limiter   // of checks for changes
	drained chan struct{}   // no seen call waits any more, and some overflowed

	mu        sync.Mutex
	covered   []string     // calls that had their checkpoint, newest last
	unchanged time.Time    // when a check last found no change
	seen      int          // seen calls that wait
	overflow  int          // calls too many to wait, whose outcome is not recorded yet
	waiting   []*riskyCall // calls whose outcome is not recorded yet, without those of overflow
}

// riskyCall is a risky call that waits for its checkpoint.
type riskyCall struct {
	tool *daemonv1.RiskyTool
	done chan struct{} // closed when the call may proceed
	ctx  context.Context
	stop *socket.Stop // the agent's stop, made when the call was seen; nil for a call whose hook waits
}

// waits reports whether the call cannot have run yet.
func (c *riskyCall) waits() bool { return c.stop == nil || c.stop.Unbroken() }

func newGuard(cfg daemonapi.Config, adapter agent.Adapter) (*guard, []error) {
	tools, bad := compileRisky(cfg.Policy.RiskyTools)
	return &guard{tools: tools, asks: adapter.AsksBeforeTools(), calls: make(chan *riskyCall), drained: make(chan struct{}, 1),
		checks: rate.NewLimiter(rate.Every(pace.CheckPause), checkBurst)}, bad
}

// enter adds a call that was seen. If too many wait, it only counts the call and returns
// false.
func (g *guard) enter(c *riskyCall) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen == maxSeen || !g.addLocked(c) {
		g.overflow++
		return false
	}
	g.seen++
	return true
}

// add adds a call whose hook waits, or only counts it if too many wait.
func (g *guard) add(c *riskyCall) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.addLocked(c) {
		g.overflow++
	}
}

// addLocked keeps a call until its outcome is recorded. There is room for all calls that
// can wait at a time; more may come when the agent is about to end, and calls no longer
// wait.
func (g *guard) addLocked(c *riskyCall) bool {
	if len(g.waiting) == maxSeen+socket.MaxAsking {
		return false
	}
	g.waiting = append(g.waiting, c)
	return true
}

// forget drops a call that has no outcome, or whose outcome is being recorded.
func (g *guard) forget(c *riskyCall) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = slices.DeleteFunc(g.waiting, func(other *riskyCall) bool { return other == c })
}

// leave undoes the count of enter.
func (g *guard) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen--; g.seen == 0 && g.overflow > 0 {
		nudge(g.drained)
	}
}

// untilCheck returns how long it is until the next check for changes is allowed.
func (g *guard) untilCheck() time.Duration {
	missing := 1 - g.checks.Tokens()
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing*float64(pace.CheckPause)) + time.Millisecond
}

// isCovered reports whether a call has had its checkpoint. It is used for agents that ask
// before they run a tool, and may ask again; others may give two calls the same id.
func (g *guard) isCovered(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return id != "" && slices.Contains(g.covered, id)
}

// setCovered notes that a call has had its checkpoint.
func (g *guard) setCovered(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if id != "" {
		g.covered = append(g.covered[max(0, len(g.covered)-maxCovered+1):], id)
	}
}

// setUnchanged notes that a check has found no change.
func (g *guard) setUnchanged() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unchanged = time.Now()
}

// checkPause returns how long after a check without changes no other one is made.
func (g *guard) checkPause() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Until(g.unchanged.Add(pace.CheckPause))
}

// BeforeTool returns when the tool may run, or why it must not. ctx ends with the connection of its
// hook.
func (d *daemon) BeforeTool(ctx context.Context, b wire.BeforeTool) (refused string) {
	rule, risky := d.guard.tools.find(b.Name, b.Input, b.Cut)
	request := ""
	if risky && rule.decides() {
		if request, refused = d.decide(ctx, b, rule); refused != "" || ctx.Err() != nil {
			return refused
		}
	}
	if d.adapter.HookComesFirst() {
		if err := d.recorder.BeginCall(ctx, b); err != nil {
			return "" // the daemon or the hook ends
		}
	}
	if risky && !d.guard.isCovered(b.ID) {
		d.guardHook(ctx, b)
	}
	if request != "" && ctx.Err() == nil && !d.use(request) {
		return usedText
	}
	return ""
}

// guardHook returns when a tool whose hook waits has had its checkpoint.
func (d *daemon) guardHook(ctx context.Context, b wire.BeforeTool) {
	g := d.guard
	c := &riskyCall{ctx: ctx, tool: d.riskyTool(b.ID, b.Name, true), done: make(chan struct{})}
	g.add(c)
	defer func() {
		if ctx.Err() != nil {
			g.forget(c) // the hook has ended, and the tool is not run
		}
	}()
	// An agent that asks in a loop must not cause a check for changes each time.
	if _, records := d.recorder.Progress(); records == 0 {
		select {
		case <-time.After(g.checkPause()):
		case <-ctx.Done():
			return
		}
	}
	d.awaitCheckpoint(ctx, c)
}

// ToolCalled is called for each call in the agent's output, before it is recorded.
func (d *daemon) ToolCalled(ctx context.Context, call record.Call) {
	g := d.guard
	rule, risky := g.tools.find(call.Name, call.Input, call.Cut)
	if g.asks || !risky {
		return
	}
	c := &riskyCall{ctx: ctx, tool: d.riskyTool(call.ID, call.Name, false), done: make(chan struct{})}
	if !g.enter(c) {
		return
	}
	go func() {
		defer g.leave()
		c.stop = d.socket.Stop(ctx) // at once, even while another checkpoint is taken
		defer c.stop.End()
		if rule.decides() && !d.passes(call) {
			g.forget(c)
			d.stopFor(ctx, call, rule)
			return
		}
		d.awaitCheckpoint(ctx, c)
	}()
}

func (d *daemon) riskyTool(id, name string, before bool) *daemonv1.RiskyTool {
	text := func(s string) string { return clip.Bytes(d.cfg.Mask.Text(agent.Text([]byte(s))), maxName) }
	return &daemonv1.RiskyTool{CallId: text(id), Name: text(name), Before: before}
}

// awaitCheckpoint queues a call and waits until it may proceed.
func (d *daemon) awaitCheckpoint(ctx context.Context, c *riskyCall) {
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

// takeRisky takes one checkpoint for all held calls, none of which has run yet. If nothing
// has changed since the last checkpoint, and the agent was stopped for that one, it covers
// them. If recent checkpoints were too many or too expensive, the calls stay held until
// the pace allows another.
func (d *daemon) takeRisky(ctx context.Context) error {
	g := d.guard
	g.collect()
	if len(g.held) == 0 || d.pace.RiskyRest() > 0 || !g.checks.Allow() {
		return nil
	}
	if latest := d.volume.Journal.State().Latest; latest != nil && !latest.Ran && !d.changed(ctx) {
		g.setUnchanged()
		d.cover(*latest, nil)
		return nil
	}
	if d.pace.UntilTurn() > 0 {
		return nil
	}
	d.pace.Spend()
	return d.take(ctx, checkpoint.Request{Trigger: v1alpha1.TriggerBeforeRiskyTool, RiskyTool: g.held[0].tool})
}

// releaseUnguarded releases all held calls because their checkpoint could not be taken: the
// calls that were held when it began, or when the agent was stopped for it.
func (d *daemon) releaseUnguarded(err error) {
	d.recordOverflow(func(more int) (string, string, map[string]string) {
		return v1alpha1.EventRiskyToolUnguarded, fmt.Sprintf("%d more risky calls, made at the same time as others, run without a checkpoint before them, since the one that would have covered them could not be taken", more), nil
	})
	for _, c := range d.guard.release() {
		d.recordOutcome(v1alpha1.EventRiskyToolUnguarded, c.tool, nil,
			fmt.Sprintf("the tool %s runs without a checkpoint before it, since the one that would have covered it could not be taken: %s", c.tool.GetName(), agent.Text([]byte(err.Error()))))
	}
}

// collect moves queued calls to held, and drops the calls whose hook has ended or that have
// had a checkpoint.
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
		drop := c.ctx.Err() != nil || c.stop == nil && g.isCovered(c.tool.GetCallId())
		if drop {
			g.forget(c)
			close(c.done)
		}
		return drop
	})
}

// release lets all held calls proceed, and returns them.
func (g *guard) release() []*riskyCall {
	released := g.held
	g.held = nil
	for _, c := range released {
		g.forget(c)
		close(c.done)
	}
	return released
}

// cause returns the trigger of a checkpoint for risky calls, now that the agent is stopped,
// and the call to name in it: one that has not run yet. If all may have run, the trigger is
// only ToolCalls.
func (g *guard) cause() (v1alpha1.CheckpointTrigger, *daemonv1.RiskyTool) {
	for _, c := range g.held {
		if c.waits() {
			return v1alpha1.TriggerBeforeRiskyTool, c.tool
		}
	}
	return v1alpha1.TriggerToolCalls, nil
}

// cover releases the held calls after a checkpoint, and records for each whether the
// checkpoint holds the state before it. No event is recorded for the call own, which the
// checkpoint's record names. The checkpoint may hold effects of a call if the agent ran
// while it was taken, or if the agent has run since the call because its stop timed out.
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
			d.recordOutcome(v1alpha1.EventRiskyToolUnguarded, c.tool, details,
				fmt.Sprintf("checkpoint %d may not hold the state before the tool %s: %s", point.Number, c.tool.GetName(), why))
			continue
		case c.tool != own:
			d.recordOutcome(v1alpha1.EventRiskyToolGuarded, c.tool, details,
				fmt.Sprintf("checkpoint %d holds the state before the tool %s", point.Number, c.tool.GetName()))
		}
		d.guard.setCovered(c.tool.GetCallId())
	}
	d.guard.release()
	d.recordOverflow(func(calls int) (string, string, map[string]string) {
		if more != "" {
			return v1alpha1.EventRiskyToolUnguarded, fmt.Sprintf("checkpoint %d may not hold the state before %d more risky calls, made at the same time as others: %s", point.Number, calls, more), details
		}
		return v1alpha1.EventRiskyToolGuarded, fmt.Sprintf("checkpoint %d holds the state before %d more risky calls, made at the same time as others", point.Number, calls), details
	})
}

// recordOverflow records one event for the calls that were only counted, if any were.
func (d *daemon) recordOverflow(event func(more int) (reason, message string, details map[string]string)) {
	g := d.guard
	g.mu.Lock()
	more := g.overflow
	g.overflow = 0
	g.mu.Unlock()
	if more == 0 {
		return
	}
	reason, message, details := event(more)
	all := map[string]string{"calls": strconv.Itoa(more)}
	maps.Copy(all, details)
	if err := d.taker.Event(reason, message, all); err != nil {
		d.log.Error(err, "the event about risky calls could not be recorded")
	}
}

// reportUncovered records an event for each call that still waited for a checkpoint when
// the agent ended. The last checkpoint does not cover them, since it may hold their
// effects.
func (d *daemon) reportUncovered() {
	g := d.guard
	g.mu.Lock()
	waited := g.waiting
	g.waiting = nil
	g.mu.Unlock()
	for _, c := range waited {
		d.recordOutcome(v1alpha1.EventRiskyToolUnguarded, c.tool, nil,
			fmt.Sprintf("the tool %s was called without a checkpoint before it: the agent ended before one was taken", c.tool.GetName()))
	}
	d.reportOverflow()
}

// reportOverflow records the calls that were only counted, when no checkpoint follows that
// could cover them.
func (d *daemon) reportOverflow() {
	d.recordOverflow(func(more int) (string, string, map[string]string) {
		return v1alpha1.EventRiskyToolUnguarded, fmt.Sprintf("%d more risky calls, made at the same time as others, run without a checkpoint before them", more), nil
	})
}

// recordOutcome records an event about a risky call.
func (d *daemon) recordOutcome(reason string, tool *daemonv1.RiskyTool, details map[string]string, message string) {
	all := map[string]string{"tool": tool.GetName(), "call": tool.GetCallId()}
	maps.Copy(all, details)
	if err := d.taker.Event(reason, clip.Bytes(message, maxDetail), all); err != nil {
		d.log.Error(err, "the event about a risky call could not be recorded")
	}
}

// reportInvalidPatterns records policy patterns that do not compile.
func (d *daemon) reportInvalidPatterns(bad []error) {
	for _, err := range bad {
		d.log.Error(err, "ignoring a pattern of the task's policy")
		if err := d.taker.Event(v1alpha1.EventRiskyToolPatternInvalid, clip.Bytes(err.Error(), maxDetail), nil); err != nil {
			d.log.Error(err, "the event about an invalid pattern could not be recorded")
		}
	}
}
