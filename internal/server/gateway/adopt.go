package gateway

import (
	"context"
	"fmt"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/podidentity"
)

// adoptCode makes sure, before an attempt begins, that the gitstore has the checkpoints of a
// task's history under the task's own UID: the daemon takes any other for lost. One that the gitstore does not know stays pending: the gitstore may have been
// restored from an older copy, and get a newer one.
func (g *Gateway) adoptCode(ctx context.Context, id podidentity.Identity) error {
	if g.code == nil {
		return nil
	}
	formers, err := g.store.PendingCode(ctx, id.TaskUID)
	if err != nil || len(formers) == 0 {
		return err
	}
	log := g.log.WithValues("namespace", id.Namespace, "task", id.TaskName)
	var adopted []string
	for _, former := range formers {
		known, err := g.code.AdoptTask(ctx, id.Namespace, id.TaskUID, former)
		if err != nil {
			return fmt.Errorf("%w: the gitstore could not give this task the checkpoints of the former one with UID %s: %w", history.ErrUnavailable, former, err)
		}
		if known {
			adopted = append(adopted, former)
		} else {
			log.Info("the gitstore does not know the former task; its checkpoints are asked for again at the next attempt", "former", former)
		}
	}
	if len(adopted) == 0 {
		return nil
	}
	log.Info("a task has adopted the checkpoints of a former one", "formers", adopted)
	return g.store.CodeAdopted(ctx, id.TaskUID, adopted)
}
