// Package codeadoption has the gitstore give a task that adopts the history of a former one that
// one's checkpoints, which until then it has under the former UID alone.
//
// It promises that it may be repeated, and that once it has succeeded, the gitstore has all of
// them under the task's own UID, but those of a former task that it does not know.
package codeadoption

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
)

// Store is the part of the history store that knows what is yet to be adopted.
type Store interface {
	// PendingCode returns the former UIDs of a task's history under which alone the gitstore has
	// its checkpoints.
	PendingCode(ctx context.Context, taskUID string) (formers []string, err error)
	// CodeAdopted records that the gitstore has those checkpoints under the task's own UID.
	CodeAdopted(ctx context.Context, taskUID string, formers []string) error
}

// Code is the gitstore.
type Code interface {
	// AdoptTask gives the checkpoints of a former task to another one of its namespace. It may be
	// repeated.
	AdoptTask(ctx context.Context, namespace, uid, former string) (gitstoreapi.Adoption, error)
}

// Adopt has the gitstore give a task the checkpoints of the former ones whose history it has
// adopted. A former task that the gitstore does not know stays pending: the gitstore may have been
// restored from an older copy, and get a newer one. When the gitstore cannot do it, the error
// wraps history.ErrUnavailable.
func Adopt(ctx context.Context, store Store, code Code, task history.Key, log logr.Logger) error {
	formers, err := store.PendingCode(ctx, task.UID)
	if err != nil || len(formers) == 0 {
		return err
	}
	var adopted []string
	for _, former := range formers {
		adoption, err := code.AdoptTask(ctx, task.Namespace, task.UID, former)
		if err != nil {
			return fmt.Errorf("%w: the gitstore could not give this task the checkpoints of the former one with UID %s: %w", history.ErrUnavailable, former, err)
		}
		if adoption.Unknown {
			log.Info("the gitstore does not know the former task; its checkpoints are asked for again at the next attempt", "former", former)
			continue
		}
		adopted = append(adopted, former)
	}
	if len(adopted) == 0 {
		return nil
	}
	log.Info("a task has adopted the checkpoints of a former one", "formers", adopted)
	return store.CodeAdopted(ctx, task.UID, adopted)
}
