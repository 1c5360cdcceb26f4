package gateway

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/codeadoption"
	"github.com/clew-dev/clew/internal/podidentity"
)

// errFormerKept refuses a task whose former one still has a history that cannot be given to it now.
var errFormerKept = errors.New("the history store was restored from an older copy, which has the history of this task under the UID of a former one whose history it has adopted, and cannot give it to this task now, for example because it is being deleted; try again")

// adoptAgain gives a task the history that its object says it continues, if the store does not know the
// task: a store that was restored from a copy of before the adoption has that history still under the UID
// of a former one. Begun without it, the task could never get it back.
func (g *Gateway) adoptAgain(ctx context.Context, id podidentity.Identity) error {
	if _, err := g.store.Attempt(ctx, id.TaskUID); err == nil {
		return nil
	} else if !errors.Is(err, history.ErrNotFound) {
		return g.failure(ctx, err)
	}
	formers, err := g.tasks.Adopted(ctx, id)
	if err == nil && len(formers) > 0 {
		err = history.AdoptAgain(ctx, g.store, taskOf(id), formers)
	}
	switch {
	case errors.Is(err, history.ErrExists), errors.Is(err, history.ErrInvalid): // it has one, or can have none
		return nil
	case errors.Is(err, history.ErrNotFound):
		return g.formersGone(ctx, id, formers)
	case err != nil:
		return g.failure(ctx, err)
	case len(formers) > 0:
		g.log.Info("a task continues the history of a former one again, which an older copy of the history store did not know", "namespace", id.Namespace, "task", id.TaskName, "formers", formers)
	}
	return nil
}

// formersGone refuses to begin a task while there is a history that it continues and could not adopt. One
// of another namespace or name, which somebody has imported under the UID of a former task, is none.
func (g *Gateway) formersGone(ctx context.Context, id podidentity.Identity, formers []string) error {
	for _, former := range formers {
		state, err := g.store.TaskState(ctx, former)
		switch {
		case err == nil && state.Task.Namespace == id.Namespace && state.Task.Name == id.TaskName:
			return connect.NewError(connect.CodeUnavailable, errFormerKept)
		case err != nil && !errors.Is(err, history.ErrNotFound):
			return g.failure(ctx, err)
		}
	}
	return nil
}

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
