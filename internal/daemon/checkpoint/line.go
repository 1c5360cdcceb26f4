package checkpoint

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/worktree"
)

// Standing is a checkpoint of the task that the worktree continues: no rewind has left it
// behind.
type Standing struct {
	Number  int64
	Commit  string
	Time    time.Time
	Trigger v1alpha1.CheckpointTrigger
	// Message is the first line of its message.
	Message string
}

// History is the part of the worktree's repository that Line reads.
type History interface {
	Line(ctx context.Context, commit, base string, limit int) ([]worktree.LoggedCommit, error)
}

// maxLine is how many commits are looked at.
const maxLine = 10_000

// Line returns the task's checkpoints that the worktree continues, newest first, and the
// commit with the files that the task started from; "" for no files. Only those that are on the
// volume are known.
func (t *Taker) Line(ctx context.Context, repo History) (line []Standing, start string, err error) {
	state := t.Journal.State()
	if state.Parent == "" {
		return nil, "", nil
	}
	base := state.Base
	if base == state.Parent {
		return nil, base, nil
	}
	commits, err := repo.Line(ctx, state.Parent, base, maxLine)
	if err != nil {
		return nil, "", err
	}
	start = state.Parent
	for _, c := range commits {
		if s, ok := t.standing(c); ok {
			line, start = append(line, s), c.Parent
		}
	}
	return line, start, nil
}

// standing reads what commitMessage has written.
func (t *Taker) standing(c worktree.LoggedCommit) (Standing, bool) {
	s := Standing{Commit: c.Commit, Time: c.Time}
	at := strings.LastIndex(c.Message, "\n\n"+trailerTask)
	if at < 0 {
		return s, false
	}
	own := false
	for line := range strings.Lines(c.Message[at+2:]) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name + ": " {
		case trailerTask:
			own = value == t.TaskUID
		case trailerCheckpoint:
			s.Number, _ = strconv.ParseInt(value, 10, 64)
		case trailerTrigger:
			s.Trigger = v1alpha1.CheckpointTrigger(value)
		}
	}
	s.Message, _, _ = strings.Cut(c.Message[:at], "\n")
	return s, own && s.Number > 0
}

// The trailers of checkpoints' commits.
const (
	trailerTask       = "Clew-Task: "
	trailerCheckpoint = "Clew-Checkpoint: "
	trailerAttempt    = "Clew-Attempt: "
	trailerTrigger    = "Clew-Trigger: "
)
