// Package codeadoption has the gitstore give a task that adopts the history of a former one that
// one's checkpoints, which until then it has under the former UID alone.
//
// It promises that it may be repeated, and that once it has succeeded, the gitstore has all of
// them under the task's own UID. What the gitstore lacks, only the gitstore knows: it may be restored
// from an older copy at any time, and get a newer one back. So it is asked each time.
package codeadoption

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
)

// Store is the part of the history store that knows what a task has adopted.
type Store interface {
	// FormerTasks returns the former tasks whose history a task continues, the earliest first.
	FormerTasks(ctx context.Context, taskUID string) ([]history.FormerTask, error)
}

// Code is the gitstore.
type Code interface {
	// LackingAdoptions returns those of the given adoptions of which the gitstore knows nothing.
	LackingAdoptions(ctx context.Context, known []gitstoreapi.TaskAdoption) ([]gitstoreapi.TaskAdoption, error)
	// AdoptTask gives the checkpoints of a former task to another one of its namespace. It may be
	// repeated.
	AdoptTask(ctx context.Context, adoption gitstoreapi.TaskAdoption) (gitstoreapi.Adoption, error)
}

// Adopt has the gitstore give a task the checkpoints of the former ones whose history it has
// adopted. When the gitstore cannot do it, the error wraps history.ErrUnavailable.
func Adopt(ctx context.Context, store Store, code Code, task history.Key, log logr.Logger) error {
	formers, err := store.FormerTasks(ctx, task.UID)
	if err != nil || len(formers) == 0 {
		return err
	}
	known := make([]gitstoreapi.TaskAdoption, 0, len(formers))
	// The newest first: it brings what the gitstore has given it of the earlier ones.
	for _, former := range slices.Backward(formers) {
		known = append(known, gitstoreapi.TaskAdoption{Namespace: task.Namespace, UID: task.UID, Former: former.UID, NamespaceUID: former.NamespaceUID})
	}
	var failed error // the first one; each of the others is tried all the same
	for page := range slices.Chunk(known, gitstoreapi.MaxAdoptions) {
		lacking, err := lackingOf(ctx, code, page)
		if err != nil {
			return err
		}
		for len(lacking) > 0 {
			err := adopt(ctx, code, lacking[0], log)
			if gitstoreapi.NoRoom(err) != nil {
				return err // there is none for the others either
			}
			failed = cmp.Or(failed, err)
			if lacking, err = restOf(ctx, code, lacking, err == nil); err != nil {
				return err
			}
		}
	}
	return failed
}

// lackingOf returns those of the adoptions, at most gitstoreapi.MaxAdoptions, that the gitstore lacks.
func lackingOf(ctx context.Context, code Code, known []gitstoreapi.TaskAdoption) ([]gitstoreapi.TaskAdoption, error) {
	lacking, err := code.LackingAdoptions(ctx, known)
	if err != nil {
		return nil, fmt.Errorf("%w: the gitstore could not tell which checkpoints of former tasks it lacks: %w", history.ErrUnavailable, err)
	}
	return lacking, nil
}

// restOf returns which adoptions the gitstore still lacks after the first of those was asked for, and
// done or not: that may have brought others of the same task.
func restOf(ctx context.Context, code Code, lacking []gitstoreapi.TaskAdoption, done bool) ([]gitstoreapi.TaskAdoption, error) {
	first, rest := lacking[0], lacking[1:]
	if !done || !slices.ContainsFunc(rest, func(a gitstoreapi.TaskAdoption) bool { return a.Namespace == first.Namespace && a.UID == first.UID }) {
		return rest, nil
	}
	return lackingOf(ctx, code, rest)
}

// adopt has the gitstore carry out one adoption.
func adopt(ctx context.Context, code Code, a gitstoreapi.TaskAdoption, log logr.Logger) error {
	log = log.WithValues("namespace", a.Namespace, "uid", a.UID, "former", a.Former)
	adoption, err := code.AdoptTask(ctx, a)
	switch {
	case err != nil:
		return fmt.Errorf("%w: the gitstore could not give the task with UID %s the checkpoints of the former one with UID %s: %w", history.ErrUnavailable, a.UID, a.Former, err)
	case adoption.Unknown:
		log.Info("the gitstore does not know the former task: if it was restored from an older copy, what it has lost is pushed again from the volume of the task, if that has it")
	default:
		log.Info("a task has adopted the checkpoints of a former one", "refs", adoption.Refs)
	}
	return nil
}
