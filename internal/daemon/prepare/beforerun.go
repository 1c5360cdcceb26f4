package prepare

import (
	"context"
	"fmt"

	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
)

// keepBeforeRun takes a checkpoint before the agent is started, if the task's policy says so and
// the worktree is not left at one of the task's checkpoints already.
func (p *preparer) keepBeforeRun(ctx context.Context) error {
	state := p.journal.State()
	if !p.cfg.Pod.Policy.BeforeRun || p.cfg.Pod.PrepareOnly || kept(state) {
		return nil
	}
	message := "Before the first run"
	if state.LastNumber > 0 || p.cfg.Pod.Attempt > 1 {
		message = fmt.Sprintf("Before the run of attempt %d", p.cfg.Pod.Attempt)
	}
	_, err := p.taker.Take(ctx, checkpoint.Request{Trigger: triggerBeforeRun, Message: message,
		Also: func(s *journal.State, point journal.Point) { s.Clean = &point }})
	return err
}
