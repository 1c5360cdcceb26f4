package codeadoption

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
)

// keepEvery is how often the gitstore is asked for the adoptions that it lacks.
const keepEvery = time.Minute

// All is a history store that lists the adoptions of all tasks.
type All interface {
	// Adoptions lists adoptions in the order of the former tasks' UIDs, after the given one.
	Adoptions(ctx context.Context, afterFormer string, limit int) ([]history.TaskAdoption, error)
}

// Keeper has the gitstore carry out again what it has forgotten. No attempt would ask for that of
// tasks that have completed, or sleep.
type Keeper struct {
	Store All
	Code  Code
	Log   logr.Logger
}

// Run asks the gitstore again and again, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	ticks := time.NewTicker(keepEvery)
	defer ticks.Stop()
	for {
		if err := k.Keep(ctx); err != nil && ctx.Err() == nil {
			k.Log.Info("could not find out whether the gitstore has the checkpoints of all former tasks; trying again", "error", err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// Keep goes through all adoptions once.
func (k *Keeper) Keep(ctx context.Context) error {
	for after := ""; ; {
		page, err := k.Store.Adoptions(ctx, after, gitstoreapi.MaxAdoptions)
		if err != nil || len(page) == 0 {
			return err
		}
		known := make([]gitstoreapi.TaskAdoption, 0, len(page))
		for _, a := range page {
			known = append(known, gitstoreapi.TaskAdoption{
				Namespace: a.Task.Namespace, UID: a.Task.UID, Former: a.Former.UID, NamespaceUID: a.Former.NamespaceUID,
			})
		}
		if err := adoptLacking(ctx, k.Code, known, k.Log); err != nil {
			return err
		}
		after = page[len(page)-1].Former.UID
	}
}
