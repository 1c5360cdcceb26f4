package codeadoption

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
)

const (
	// keepEvery is how often the gitstore is asked for the adoptions that it lacks.
	keepEvery = time.Minute
	// maxPause is how many times in a row an adoption is left out that has failed.
	maxPause = 60
)

// All is a history store that lists the adoptions of all tasks.
type All interface {
	// Adoptions lists adoptions in the order of the former tasks' UIDs, after the given one.
	Adoptions(ctx context.Context, afterFormer string, limit int) ([]history.TaskAdoption, error)
}

// Keeper has the gitstore carry out again what it has forgotten. No attempt would ask for that of
// tasks that have completed, or sleep. One server at a time runs one.
type Keeper struct {
	Store All
	Code  Code
	Log   logr.Logger

	// failed are the adoptions that have failed.
	failed map[gitstoreapi.TaskAdoption]pause
	// next is when the next round is due.
	next time.Time
}

// pause is how often an adoption is left out: left more times of length.
type pause struct{ left, length int }

// Run asks the gitstore again and again, until ctx ends. Called again, it keeps the pace.
func (k *Keeper) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(k.next)):
		}
		k.next = time.Now().Add(keepEvery)
		if err := k.Keep(ctx); err != nil && ctx.Err() == nil {
			k.Log.Info("could not find out whether the gitstore has the checkpoints of all former tasks; trying again", "error", err.Error())
		}
	}
}

// Keep goes through all adoptions once. One that fails keeps no other one from being carried out: it
// is left out of the next rounds, of more of them each time.
func (k *Keeper) Keep(ctx context.Context) error {
	before := k.failed
	k.failed = make(map[gitstoreapi.TaskAdoption]pause)
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
		lacking, err := lackingOf(ctx, k.Code, known)
		if err != nil {
			return err
		}
		for len(lacking) > 0 {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			done := k.carryOut(ctx, lacking[0], before[lacking[0]])
			if lacking, err = restOf(ctx, k.Code, lacking, done); err != nil {
				return err
			}
		}
		after = page[len(page)-1].Former.UID
	}
}

// carryOut has the gitstore carry out an adoption, unless it is left out after it has failed. It
// reports whether that was done.
func (k *Keeper) carryOut(ctx context.Context, a gitstoreapi.TaskAdoption, p pause) (done bool) {
	if p.left > 0 {
		k.failed[a] = pause{left: p.left - 1, length: p.length}
		return false
	}
	err := adopt(ctx, k.Code, a, k.Log)
	if err != nil {
		length := min(2*p.length+1, maxPause)
		k.failed[a] = pause{left: length, length: length}
		k.Log.Info("an adoption cannot be carried out; trying again", "error", err.Error(), "namespace", a.Namespace, "after", (time.Duration(length+1) * keepEvery).String())
	}
	return err == nil
}
