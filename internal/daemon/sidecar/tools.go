package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/tools"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/worktree"
)

const (
	// maxAgentCheckpoints is how many checkpoints an agent may ask for in one attempt.
	maxAgentCheckpoints = 200
	// askEvery is how often it may ask, beyond askBurst times: each time all files are compared.
	askEvery = 5 * time.Second
	askBurst = 5
	// maxMessage bounds the message of a checkpoint that the agent asks for, in bytes.
	maxMessage = 500
	// maxListedFiles is how many files are named that are not in a checkpoint.
	maxListedFiles = 10
)

// ServeTools serves a connection to Clew's tools.
func (d *daemon) ServeTools(ctx context.Context, c io.ReadWriteCloser) { d.tools.Serve(ctx, c) }

// toolCalls counts the calls of tools of the task itself that change nothing, for one entry of the
// timeline: the conversation has the calls themselves, if the agent prints them.
type toolCalls struct {
	mu     sync.Mutex
	counts map[string]int
}

func (t *toolCalls) count(tool string) {
	if tool == string(v1alpha1.ToolCheckpoint) || tools.IsSupervisors(v1alpha1.AgentTool(tool)) { // have entries of their own
		return
	}
	t.add(tool)
}

// unchangedCheckpoint counts calls of the tool checkpoint that took none.
const unchangedCheckpoint = "checkpoint without a change"

func (t *toolCalls) add(tool string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[string]int{}
	}
	t.counts[tool]++
}

// take returns the counts and forgets them.
func (t *toolCalls) take() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := t.counts
	t.counts = nil
	return counts
}

// reportToolCalls records which tools the agent has called, and how often.
func (d *daemon) reportToolCalls() {
	counts := d.toolCalls.take()
	if len(counts) == 0 {
		return
	}
	var parts []string
	details := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s (%d)", name, counts[name]))
		details[name] = strconv.Itoa(counts[name])
	}
	d.recordToolCall("in this attempt, the agent called "+strings.Join(parts, ", "), details)
}

// recordToolCall records an event about a call.
func (d *daemon) recordToolCall(message string, details map[string]string) {
	if err := d.taker.Event(v1alpha1.EventToolCalled, clip.Bytes(message, maxDetail), details); err != nil {
		d.log.Error(err, "the event about a call of a tool could not be recorded")
	}
}

// toolAnswers answers the agent's calls.
type toolAnswers struct {
	d *daemon
	// asks limits how often checkpoints are asked for.
	asks *rate.Limiter
	// searching and diffing hold a place each: one search and one comparison at a time.
	searching, diffing chan struct{}

	mu    sync.Mutex
	taken int // checkpoints that the agent asked for
}

func newToolAnswers(d *daemon) *toolAnswers {
	return &toolAnswers{d: d, asks: rate.NewLimiter(rate.Every(askEvery), askBurst), searching: make(chan struct{}, 1), diffing: make(chan struct{}, 1)}
}

// place takes a place, which free gives back, or fails when ctx ends.
func place(ctx context.Context, places chan struct{}) (free func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// checkpointAnswer is the answer of the tool checkpoint for programs.
type checkpointAnswer struct {
	Checkpoint   int64  `json:"checkpoint"`
	Taken        bool   `json:"taken"`
	Message      string `json:"message,omitempty"`
	FilesChanged int32  `json:"filesChanged"`
	LinesAdded   int64  `json:"linesAdded"`
	LinesRemoved int64  `json:"linesRemoved"`
}

// Checkpoint implements tools.Answerer.
func (a *toolAnswers) Checkpoint(ctx context.Context, in tools.CheckpointInput) (tools.Answer, error) {
	d := a.d
	// One line, since the message becomes that of a commit, and masked before it is cut.
	message := clip.Bytes(d.cfg.Mask.Text(strings.Join(strings.Fields(agent.Text([]byte(in.Message))), " ")), maxMessage)
	if message == "" {
		return tools.Answer{}, tools.Refuse("Say in message what this state is, in one line, such as: before the refactoring.")
	}
	if !a.asks.Allow() {
		return tools.Answer{}, tools.Refuse("No checkpoint was taken: one can be asked for every %d s. Go on with your work, and ask again later.", int(askEvery/time.Second))
	}
	if a.asked() >= maxAgentCheckpoints {
		return tools.Answer{}, tools.Refuse("No checkpoint was taken: %d were taken in this attempt because the agent asked, and no more are. Clew still takes them by itself.", maxAgentCheckpoints)
	}
	var answer tools.Answer
	var failed error
	err := d.inTurn(ctx, func(ctx context.Context) error {
		answer, failed = a.takeCheckpoint(ctx, message)
		if errors.As(failed, new(*tools.Refusal)) {
			return nil
		}
		return failed
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return tools.Answer{}, tools.Refuse("The checkpoint is not taken yet, since there is much to store or to do first. Go on with your work; the tool checkpoints says later whether it was taken.")
	case err != nil:
		return tools.Answer{}, err
	}
	return answer, failed
}

func (a *toolAnswers) asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.taken
}

// takeCheckpoint takes a checkpoint, unless the newest one holds the work as it is. It is run by
// takeCheckpoints.
func (a *toolAnswers) takeCheckpoint(ctx context.Context, message string) (tools.Answer, error) {
	d := a.d
	latest := d.volume.Journal.State().Latest
	if latest != nil && !latest.Ran && d.sameWork(ctx, *latest) {
		d.toolCalls.add(unchangedCheckpoint)
		return tools.Answer{
			Text: fmt.Sprintf("Nothing has changed since checkpoint %d, which holds the files as they are now. No other checkpoint was taken.", latest.Number),
			Data: checkpointAnswer{Checkpoint: latest.Number},
		}, nil
	}
	if wait := d.pace.UntilTurn(); wait > 0 {
		return tools.Answer{}, tools.Refuse("No checkpoint was taken: this task's checkpoints are too frequent. Go on with your work, and ask again in %d s or later.", seconds(wait))
	}
	d.pace.Spend()
	var taken *daemonv1.CheckpointRecord
	err := d.take(ctx, checkpoint.Request{Trigger: v1alpha1.TriggerAgent, Message: message, Taken: func(r *daemonv1.CheckpointRecord) { taken = r }})
	if err != nil {
		return tools.Answer{}, err
	}
	a.mu.Lock()
	a.taken++
	a.mu.Unlock()
	d.recordToolCall(fmt.Sprintf("the agent took checkpoint %d: %s", taken.GetNumber(), message),
		map[string]string{"tool": string(v1alpha1.ToolCheckpoint), "checkpoint": strconv.FormatInt(taken.GetNumber(), 10)})
	return tools.Answer{Text: takenText(taken, latest), Data: checkpointAnswer{
		Checkpoint: taken.GetNumber(), Taken: true, Message: message,
		FilesChanged: taken.GetFilesChanged(), LinesAdded: taken.GetLinesAdded(), LinesRemoved: taken.GetLinesRemoved(),
	}}, nil
}

// takenText says what a checkpoint holds.
func takenText(taken *daemonv1.CheckpointRecord, before *journal.Point) string {
	since := ""
	if before != nil {
		since = fmt.Sprintf(" since checkpoint %d", before.Number)
	}
	text := fmt.Sprintf("Checkpoint %d is taken: %s changed%s, +%d -%d lines.", taken.GetNumber(),
		counted(int64(taken.GetFilesChanged()), "file"), since, taken.GetLinesAdded(), taken.GetLinesRemoved())
	if n := taken.GetSkippedCount(); n > 0 {
		var names []string
		for _, f := range taken.GetSkipped()[:min(len(taken.GetSkipped()), maxListedFiles)] {
			names = append(names, fmt.Sprintf("%s (%s)", f.GetPath(), f.GetReason()))
		}
		text += fmt.Sprintf("\nIt does not hold %s: %s", counted(int64(n), "file"), strings.Join(names, ", "))
		if more := int(n) - len(names); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		text += "."
	}
	if taken.GetConsistency() != string(v1alpha1.ConsistencyPointInTime) {
		text += "\nA process of yours ran while it was taken, so that its files may be from different moments."
	}
	return text
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// sameWork reports whether a checkpoint holds the work as it is. Agents whose sessions Clew
// knows note each call in their homes, which is no work; the home of any other command may
// hold some.
func (d *daemon) sameWork(ctx context.Context, latest journal.Point) bool {
	if len(d.adapter.StatePaths()) == 0 {
		return !d.changed(ctx)
	}
	defer d.pace.CountWork()()
	same, err := d.volume.Repo.SameWork(ctx, worktree.Target{Code: latest.Code, State: latest.State})
	return err == nil && same
}
