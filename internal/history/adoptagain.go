package history

import (
	"context"
	"errors"
	"slices"
)

// Adopter gives the histories of former tasks to later ones.
type Adopter interface {
	// Adopt gives the history of a former task to one that has none. It may be repeated.
	Adopt(ctx context.Context, task Task, former string) error
}

// AdoptAgain gives a task the history that it continues, if the store is an older copy which has it
// under the UID of a former task. There is at least one of these, newest first. The former tasks between
// first get it one after the other, as they once had: all adoptions are then recorded as they were, and
// no pod of a former task may write, and forks of each find their source. One whose UID another history
// has, which somebody imported under it, is left out. It may be repeated. Its errors are those of Adopt,
// of which ErrNotFound says that no such history is to be had now, and ErrInvalid that only an imported
// one is there.
func AdoptAgain(ctx context.Context, store Adopter, task Task, formers []string) error {
	err := store.Adopt(ctx, task, formers[0])
	if len(formers) == 1 || !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrInvalid) {
		return err
	}
	var imported error
	holder := formers[len(formers)-1] // of what there is of the history so far
	for _, former := range slices.Backward(formers[:len(formers)-1]) {
		next := task
		next.UID = former
		switch err := store.Adopt(ctx, next, holder); {
		case errors.Is(err, ErrExists): // and the holder has the history
			continue
		case errors.Is(err, ErrInvalid):
			imported = err
		case err != nil && !errors.Is(err, ErrNotFound):
			return err
		}
		holder = former
	}
	err = store.Adopt(ctx, task, holder)
	if errors.Is(err, ErrNotFound) && imported != nil {
		return imported
	}
	return err
}
