package gateway

import (
	"context"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/codeadoption"
	"github.com/clew-dev/clew/internal/podidentity"
)

// adoptCode makes sure, before an attempt begins, that the gitstore has the checkpoints of a
// task's history under the task's own UID: the daemon takes any other for lost. The manager has
// asked for it before, but the gitstore may have been restored since.
func (g *Gateway) adoptCode(ctx context.Context, id podidentity.Identity) error {
	if g.code == nil {
		return nil
	}
	log := g.log.WithValues("namespace", id.Namespace, "task", id.TaskName)
	return codeadoption.Adopt(ctx, g.store, g.code, history.Key{Namespace: id.Namespace, UID: id.TaskUID}, log)
}
