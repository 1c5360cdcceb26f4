package gateway

import (
	"context"
	"fmt"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/podidentity"
)

// adoptCode makes sure, before an attempt begins, that the gitstore has the checkpoints of a
// task's history under the task's own UID: the daemon takes any other for lost.
func (g *Gateway) adoptCode(ctx context.Context, id podidentity.Identity) error {
	if g.code == nil {
		return nil
	}
	formers, err := g.store.PendingCode(ctx, id.TaskUID)
	if err != nil || len(formers) == 0 {
		return err
	}
	for _, former := range formers {
		if err := g.code.AdoptTask(ctx, id.Namespace, id.TaskUID, former); err != nil {
			return fmt.Errorf("%w: the gitstore could not give this task the checkpoints of the former one with UID %s: %w", history.ErrUnavailable, former, err)
		}
	}
	g.log.Info("a task has adopted the checkpoints of a former one", "namespace", id.Namespace, "task", id.TaskName, "formers", formers)
	return g.store.CodeAdopted(ctx, id.TaskUID, formers)
}
