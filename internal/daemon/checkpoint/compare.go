package checkpoint

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// compareAgain is how long the gitstore is believed to have what it had.
const compareAgain = time.Minute

// toCompare says whether a push is to find out first what else the gitstore lacks.
func (t *Taker) toCompare(s *journal.State) bool {
	return time.Since(t.compared) >= compareAgain || s.Final != nil && s.Waits(s.Final.Number)
}

// compare has all checkpoints of the volume pushed that the gitstore lacks, and
// keeps the numbers of those that only the gitstore has from being given again.
func (t *Taker) compare(ctx context.Context) error {
	now := time.Now()
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
		if _, ok := there[number]; !ok && !state.IsLost(number) && !state.Waits(number) {
			again = append(again, point)
		}
	}
	if err := errors.Join(t.Reserve(ctx, Highest(there)), t.PushAgain(again)); err != nil {
		return err
	}
	t.compared = now
	return nil
}

// Reserve keeps numbers up to one from being given, or given again: the gitstore or
// somebody else knows a checkpoint of that number, and the volume may have gone back
// to before it was taken. What a kill cut short among them would be taken for a
// checkpoint from now on, so its refs go first.
func (t *Taker) Reserve(ctx context.Context, through int64) error {
	if through <= t.Journal.State().LastNumber {
		return nil
	}
	t.taking.Lock() // whose refs are ahead of the journal
	defer t.taking.Unlock()
	if err := t.forgetCut(ctx); err != nil {
		return err
	}
	return t.Journal.Update(func(s *journal.State) error {
		s.LastNumber = max(s.LastNumber, through)
		return nil
	})
}

// forgetCut removes the refs of numbers that the journal does not know, if it is the
// one that the refs were made with.
func (t *Taker) forgetCut(ctx context.Context) error {
	if s := t.Journal.State(); !s.KnowsNumbers() {
		return nil
	}
	last := t.Journal.State().LastNumber
	refs, err := t.Repo.Refs(ctx, t.prefix())
	if err != nil {
		return err
	}
	var cut []string
	for ref := range refs {
		_, number, _ := strings.Cut(strings.TrimPrefix(ref, t.prefix()), "/")
		if n, err := strconv.ParseInt(number, 10, 64); err == nil && n > last {
			cut = append(cut, ref)
		}
	}
	if len(cut) == 0 {
		return nil
	}
	return t.Repo.DeleteRefs(ctx, cut...)
}

// Highest is the highest number of some checkpoints; 0 if there are none.
func Highest(points map[int64]journal.Point) (number int64) {
	for n := range points {
		number = max(number, n)
	}
	return number
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

func (t *Taker) prefix() string { return refname.OfTask(t.TaskUID) }

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
