package history_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/clew-dev/clew/internal/history"
)

// olderCopy is a store that was restored from a copy which has a history under the UID of one task, and
// into which somebody has imported others under the UIDs of tasks that it does not know.
type olderCopy struct {
	of, imported, elsewhere string
	asked                   int
}

func (c *olderCopy) Adopt(_ context.Context, task history.Task, former string) error {
	c.asked++
	switch {
	case former == c.imported:
		return fmt.Errorf("%w: it was imported, and has no code", history.ErrInvalid)
	case former != c.of:
		return history.ErrNotFound
	case slices.Contains([]string{c.imported, c.elsewhere}, task.UID):
		return fmt.Errorf("%w: the task has begun without it", history.ErrExists)
	}
	c.of = task.UID
	return nil
}

// Whoever asks takes ErrInvalid for "it can have none", and begins the task without its history for good.
func TestATaskHasItsHistoryAgainBehindImportedOnes(t *testing.T) {
	formers := []string{"third", "second", "first"}
	for name, store := range map[string]*olderCopy{
		"nothing imported":                         {of: "first"},
		"under the newest":                         {of: "first", imported: "third"},
		"under one between":                        {of: "first", imported: "second"},
		"under an earlier one":                     {of: "second", imported: "first"},
		"into another namespace, under the newest": {of: "first", elsewhere: "third"},
		"into another namespace, between":          {of: "first", elsewhere: "second"},
		"into both":                                {of: "first", imported: "third", elsewhere: "second"},
	} {
		err := history.AdoptAgain(t.Context(), store, history.Task{Namespace: "team", Name: "fix", UID: "last"}, formers)
		if store.of != "last" || err != nil {
			t.Errorf("%s: the history that the copy has stays with %s: %v", name, store.of, err)
		}
		if most := len(formers) + 1; store.asked > most {
			t.Errorf("%s: asked for %d adoptions, want at most %d", name, store.asked, most)
		}
	}
}

// The task may begin without an imported history, and not while another one may come back.
func TestATaskWithoutAHistoryToHaveAgain(t *testing.T) {
	for imported, want := range map[string]error{"": history.ErrNotFound, "third": history.ErrInvalid, "second": history.ErrInvalid, "first": history.ErrInvalid} {
		err := history.AdoptAgain(t.Context(), &olderCopy{of: "other", imported: imported}, history.Task{Namespace: "team", Name: "fix", UID: "last"}, []string{"third", "second", "first"})
		if !errors.Is(err, want) {
			t.Errorf("%q imported: %v, want %v", imported, err, want)
		}
	}
}
