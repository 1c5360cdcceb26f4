package prepare

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// step is one step of prepare.
type step struct {
	name string
	do   func(context.Context) error
}

// timed does a step and notes how long it took.
func (p *preparer) timed(ctx context.Context, s step) error {
	began := time.Now()
	err := s.do(ctx)
	p.took.add(s.name, time.Since(began))
	return err
}

// durations are how long the steps took. A step within another one counts in both.
type durations []string

// notable is the shortest duration of a step that is worth a word in the log.
const notable = 5 * time.Millisecond

func (d *durations) add(name string, took time.Duration) {
	if took >= notable {
		*d = append(*d, fmt.Sprintf("%s %dms", name, took.Milliseconds()))
	}
}

// String lists the steps in the order in which they ended.
func (d *durations) String() string { return strings.Join(*d, ", ") }
