package checkpoint

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/worktree"
)

// The gitstore may be put back to an older copy while a task is at work. What it
// then lacks is on the task's volume. A copy lacks the newest checkpoints first,
// so each push brings the newest that was pushed before as well: where that is
// new to the gitstore, others may be missing.

// witness is the newest checkpoint that the gitstore had.
type witness struct {
	point journal.Point // number 0: there is none
	// lost says that the gitstore did not have it any more.
	lost bool
}

// findWitness looks for it on the volume, for the first push of this process.
func (t *Taker) findWitness(ctx context.Context) error {
	if t.witness != nil {
		return nil
	}
	here, err := t.OnVolume(ctx)
	if err != nil {
		return err
	}
	t.witness = &witness{}
	state := t.Journal.State()
	for number, point := range here {
		if number > t.witness.point.Number && !state.Waits(number) && !state.IsLost(number) {
			t.witness.point = point
		}
	}
	return nil
}

// withWitness are the points of a push, and the witness.
func (t *Taker) withWitness(points []journal.Point) []journal.Point {
	if t.witness.point.Number == 0 {
		return points
	}
	return append(slices.Clip(points), t.witness.point)
}

// hearWitness takes note of what was new to the gitstore in a push through a point.
func (t *Taker) hearWitness(made []string, through journal.Point) {
	if n := t.witness.point.Number; n != 0 && slices.Contains(made, worktree.CodeRef(t.TaskUID, n)) {
		t.witness.lost = true
	}
	if through.Number > t.witness.point.Number {
		t.witness.point = through
	}
}

// dismissWitness is for a push that failed though its own checkpoints can be sent:
// it may be the witness that cannot. refs are those that the gitstore has.
func (t *Taker) dismissWitness(refs map[string]string) {
	if n := t.witness.point.Number; n != 0 && refs[worktree.CodeRef(t.TaskUID, n)] == "" {
		t.witness.lost = true
	}
	t.witness.point = journal.Point{}
}

func (t *Taker) gitstoreIsOlder() bool { return t.witness != nil && t.witness.lost }

// findLost has all checkpoints of the volume pushed that the gitstore lacks.
func (t *Taker) findLost(ctx context.Context) error {
	here, err := t.OnVolume(ctx)
	if err != nil {
		return err
	}
	there, err := t.InGitstore(ctx)
	if err != nil {
		return GitError(err)
	}
	state := t.Journal.State()
	var again []journal.Point
	for number, point := range here {
		if _, ok := there[number]; !ok && !state.IsLost(number) {
			again = append(again, point)
		}
	}
	if err := t.PushAgain(again); err != nil {
		return err
	}
	t.witness.lost = false
	return nil
}

// PushAgain has checkpoints of the volume pushed with those that wait.
func (t *Taker) PushAgain(points []journal.Point) error {
	if len(points) == 0 {
		return nil
	}
	t.Log.Info("the volume has checkpoints that the gitstore does not have: they are pushed again", "count", len(points))
	return t.Journal.Update(func(s *journal.State) error {
		for _, point := range points {
			if !s.Waits(point.Number) {
				s.Pending = append(s.Pending, point)
			}
		}
		slices.SortFunc(s.Pending, func(a, b journal.Point) int { return int(a.Number - b.Number) })
		return nil
	})
}

// OnVolume lists this task's checkpoints that the volume has, by number. Refs of a
// higher number than the journal's are no checkpoint: one is being taken, or a kill
// cut it, and the number may be given to another tree.
func (t *Taker) OnVolume(ctx context.Context) (map[int64]journal.Point, error) {
	last := t.Journal.State().LastNumber // before the refs are read
	points, err := t.RefsOnVolume(ctx)
	maps.DeleteFunc(points, func(n int64, _ journal.Point) bool { return n > last })
	return points, err
}

// RefsOnVolume is OnVolume for who cannot trust the journal's number.
func (t *Taker) RefsOnVolume(ctx context.Context) (map[int64]journal.Point, error) {
	refs, err := t.Repo.Refs(ctx, t.prefix())
	return Whole(refs, t.prefix()), err
}

// InGitstore lists this task's checkpoints that the gitstore has, by number: none
// where it has no such repository.
func (t *Taker) InGitstore(ctx context.Context) (map[int64]journal.Point, error) {
	remote, err := t.Remote()
	if err != nil {
		return nil, err
	}
	refs, err := t.Repo.RemoteRefs(ctx, remote, t.prefix())
	if worktree.ReasonOf(err) == worktree.RepositoryNotFound {
		return nil, nil
	}
	return Whole(refs, t.prefix()), err
}

func (t *Taker) prefix() string { return "refs/clew/" + t.TaskUID + "/" }

// Whole finds the checkpoints that have both a code and a state ref.
func Whole(refs map[string]string, prefix string) map[int64]journal.Point {
	points := map[int64]journal.Point{}
	for ref, code := range refs {
		number, ok := strings.CutPrefix(ref, prefix+"code/")
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		state := refs[prefix+"state/"+number]
		if err != nil || n < 1 || state == "" {
			continue
		}
		points[n] = journal.Point{Number: n, Code: code, State: state}
	}
	return points
}
