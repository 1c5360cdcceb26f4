package history_test

import (
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/history"
)

// TestATimeCountsTheCheckpointsTakenByThen: times are shown in whole seconds, and such a time
// stands for its whole second.
func TestATimeCountsTheCheckpointsTakenByThen(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		query history.PositionQuery
		taken time.Time
		want  bool
	}{
		"before it":                   {history.PositionQuery{Time: at}, at.Add(-time.Hour), true},
		"in its second":               {history.PositionQuery{Time: at}, at.Add(900 * time.Millisecond), true},
		"in the next second":          {history.PositionQuery{Time: at}, at.Add(time.Second), false},
		"just after a fraction":       {history.PositionQuery{Time: at.Add(time.Millisecond)}, at.Add(2 * time.Millisecond), false},
		"exactly then":                {history.PositionQuery{Time: at.Add(time.Millisecond)}, at.Add(time.Millisecond), true},
		"for a message, whenever":     {history.PositionQuery{Message: 3}, at, true},
		"for messages back, whenever": {history.PositionQuery{Back: 3}, at, true},
	} {
		if got := c.query.Counts(c.taken); got != c.want {
			t.Errorf("%s: counts is %v, want %v", name, got, c.want)
		}
	}
}
