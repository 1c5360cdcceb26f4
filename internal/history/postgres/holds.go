package postgres

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// maxHolds bounds the ends of holds that are kept of a task: whoever waits for one reads it within
// minutes.
const maxHolds = 16

// updateHolds adds how holds ended. The first record about a checkpoint counts: a daemon that was killed
// may record again how its hold ended.
func (b *batch) updateHolds(row *sqlc.Task) error {
	if len(b.holds) == 0 {
		return nil
	}
	ended, err := holdsOf(row.Holds)
	if err != nil {
		return err
	}
	for _, end := range b.holds {
		if !slices.ContainsFunc(ended, func(e history.HoldEnd) bool { return e.Checkpoint == end.Checkpoint }) {
			ended = append(ended, end)
		}
	}
	ended = ended[max(0, len(ended)-maxHolds):]
	if row.Holds, err = json.Marshal(ended); err != nil {
		return fmt.Errorf("encode how holds ended: %w", err)
	}
	return nil
}

// holdsOf decodes the column holds.
func holdsOf(text []byte) (ended []history.HoldEnd, err error) {
	if len(text) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(text, &ended); err != nil {
		return nil, fmt.Errorf("read how holds ended: %w", err)
	}
	return ended, nil
}
