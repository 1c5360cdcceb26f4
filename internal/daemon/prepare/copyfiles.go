package prepare

import (
	"context"
	"fmt"
	"strconv"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/refname"
)

// copySource copies files of another task's checkpoint over the worktree that was cloned. It
// may be killed at any instant: it then begins again, and what is there already stays.
func (p *preparer) copySource(ctx context.Context, layout journal.Layout) error {
	src := p.cfg.Pod.Source
	if src == nil {
		return fmt.Errorf("files of checkpoint %d of another task are to be copied, but the pod's configuration names none", layout.Point.Number)
	}
	// The files alone: the state holds the conversation.
	point, err := p.fetchRefs(ctx, placeSource, src.TaskUID, src.Checkpoint, src.Commit, refname.Code(src.TaskUID, src.Checkpoint))
	if err != nil {
		return err
	}
	copied := 0
	err = p.retry(ctx, func() (err error) {
		copied, err = p.repo.CopyFiles(ctx, point.Code, src.CopyFiles)
		return err
	})
	if err != nil {
		return fmt.Errorf("copy files of %s: %w", src, err)
	}
	files := "files"
	if copied == 1 {
		files = "file"
	}
	p.log.Info("copied files of the other task's checkpoint", "task", src.TaskUID, "checkpoint", src.Checkpoint, "files", copied)
	err = p.once("copied/"+p.cfg.Pod.TaskUID, func() error {
		return p.taker.Event(v1alpha1.EventFilesCopied, fmt.Sprintf("the task starts with %d %s of %s", copied, files, src),
			map[string]string{"files": strconv.Itoa(copied), "checkpoint": strconv.FormatInt(src.Checkpoint, 10)})
	})
	if err != nil {
		return err
	}
	return p.journal.Update(func(s *journal.State) error {
		s.Layout = &journal.Layout{Stage: journal.LayoutReady}
		return nil
	})
}
