package history

import (
	"context"
	"errors"
)

// Adopter gives the histories of former tasks to later ones.
type Adopter interface {
	// Adopt gives the history of a former task to one that has none. It may be repeated.
	Adopt(ctx context.Context, task Task, former string) error
}

// AdoptAgain gives a task the history that it continues, if the store is an older copy which has it
// under the UID of a former task. There is at least one of these, newest first. If the copy does not know
// the newest either, that one first gets the history that it had continued: all adoptions are then
// recorded as they were, and no pod of a former task may write, and forks of each find their source. It
// may be repeated. Its errors are those of Adopt, of which ErrNotFound says that no such history is to be
// had now.
func AdoptAgain(ctx context.Context, store Adopter, task Task, formers []string) error {
	newest, earlier := formers[0], formers[1:]
	err := store.Adopt(ctx, task, newest)
	if len(earlier) == 0 || !errors.Is(err, ErrNotFound) {
		return err
	}
	former := task
	former.UID = newest
	switch again := AdoptAgain(ctx, store, former, earlier); {
	case errors.Is(again, ErrExists): // the former task's own is being deleted
		return err
	case again != nil:
		return again
	}
	return store.Adopt(ctx, task, newest)
}
