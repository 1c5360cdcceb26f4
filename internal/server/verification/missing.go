package verification

import (
	"context"
	"fmt"
	"slices"

	"github.com/clew-dev/clew/internal/history"
)

// maxMissing bounds the checkpoints that one comparison finds missing: the daily pass finds the others
// of very many.
const maxMissing = 20

// missing returns verdicts on the task's checkpoints that were pushed, and that the gitstore has not: it
// may have been restored from a copy of before them.
func (v *Verifier) missing(ctx context.Context, task history.Key) (verdicts []history.Verdict, err error) {
	pushed, _, err := v.Store.PushedCheckpoints(ctx, task.UID)
	if err != nil || len(pushed) == 0 {
		return nil, err
	}
	there, err := v.Code.Checkpoints(ctx, task.Namespace, task.UID)
	if err != nil {
		return nil, fmt.Errorf("list the checkpoints of the task with UID %s in the gitstore: %w", task.UID, err)
	}
	slices.Sort(there)
	for _, number := range pushed {
		if _, has := slices.BinarySearch(there, number); !has && len(verdicts) < maxMissing {
			verdicts = append(verdicts, history.Verdict{Number: number, Damage: "the gitstore does not have it"})
		}
	}
	return verdicts, nil
}
