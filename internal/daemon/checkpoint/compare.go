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

// compareInterval is how long the gitstore is assumed to still have what it had.
const compareInterval = time.Minute

// mustCompare reports whether a push must first ask what else the gitstore lacks.
func (t *Taker) mustCompare(s *journal.State) bool {
	return time.Since(t.compared) >= compareInterval || s.Final != nil && s.IsPending(s.Final.Number)
}

// Listing is what the gitstore had of a task at one moment.
type Listing struct {
	at   time.Time
	refs map[string]string
}

// List asks the gitstore what it has of the task. A gitstore without such a repository has
// nothing.
func (t *Taker) List(ctx context.Context) (Listing, error) {
	now := time.Now()
	refs, err := t.refsInGitstore(ctx)
	return Listing{now, refs}, err
}

// Compare queues for pushing what the gitstore lacks according to a listing, and returns the
// checkpoints that the gitstore has, by number. Nothing may have been pushed since, except by
// this Taker. The next Push then need not ask.
func (t *Taker) Compare(ctx context.Context, there Listing) (map[int64]journal.Point, error) {
	t.pushing.Lock()
	defer t.pushing.Unlock()
	return Whole(there.refs, t.prefix()), t.compareWith(ctx, there)
}

// compare queues for pushing what the gitstore lacks.
func (t *Taker) compare(ctx context.Context) error {
	there, err := t.List(ctx)
	if err != nil {
		return GitError(err)
	}
	if err := t.compareWith(ctx, there); err != nil {
		return err
	}
	t.Heal(ctx)
	return nil
}

// compareWith queues for pushing all checkpoints of the volume that the gitstore lacks, and the
// agent's commits. It keeps numbers that only the gitstore has from being given again.
func (t *Taker) compareWith(ctx context.Context, listing Listing) error {
	last := t.Journal.State().LastNumber // before the refs are read
	refsHere, err := t.Repo.Refs(ctx, t.prefix())
	if err != nil {
		return err
	}
	here, there := upTo(last, Whole(refsHere, t.prefix())), Whole(listing.refs, t.prefix())
	state := t.Journal.State()
	var lacking []journal.Point
	for number, point := range here {
		if _, ok := there[number]; !ok && !state.IsLost(number) && !state.IsPending(number) {
			lacking = append(lacking, point)
		}
	}
	if err := errors.Join(t.Reserve(ctx, Highest(there)), t.QueuePush(lacking)); err != nil {
		return err
	}
	t.compared = listing.at
	t.lacking = t.lostHeads(refsHere, listing.refs)
	return nil
}

// Heal brings the gitstore the objects that it lacks of this task's checkpoints, or of those of
// the task it was started from, as far as the volume has them. If that fails it is tried again
// later.
func (t *Taker) Heal(ctx context.Context) {
	remote, err := t.Remote()
	healed := 0
	if err == nil {
		healed, err = t.Repo.Heal(ctx, remote)
	}
	switch {
	case err != nil:
		t.Log.V(1).Info("could not heal damaged checkpoints in the gitstore", "error", err.Error())
	case healed > 0:
		t.Log.Info("the gitstore lacked objects that the volume has: sent them", "count", healed)
	}
}

// Reserve keeps the numbers up to through from being given, or given again: the gitstore or
// somebody else has a checkpoint of that number, and the volume may have gone back to
// before it was taken. Refs that an interrupted checkpoint left among them would from now
// on count as a checkpoint, so they are deleted first.
func (t *Taker) Reserve(ctx context.Context, through int64) error {
	if through <= t.Journal.State().LastNumber {
		return nil
	}
	t.taking.Lock() // Take's refs are ahead of the journal
	defer t.taking.Unlock()
	if err := t.deleteUnknownRefs(ctx); err != nil {
		return err
	}
	return t.Journal.Update(func(s *journal.State) error {
		s.LastNumber = max(s.LastNumber, through)
		return nil
	})
}

// deleteUnknownRefs deletes the refs of numbers that are not in the journal, provided that
// the journal is the one with which the refs were made.
func (t *Taker) deleteUnknownRefs(ctx context.Context) error {
	if s := t.Journal.State(); !s.KnowsNumbers() {
		return nil
	}
	last := t.Journal.State().LastNumber
	refs, err := t.Repo.Refs(ctx, t.prefix())
	if err != nil {
		return err
	}
	var unknown []string
	for ref := range refs {
		_, number, _ := strings.Cut(strings.TrimPrefix(ref, t.prefix()), "/")
		if n, err := strconv.ParseInt(number, 10, 64); err == nil && n > last {
			unknown = append(unknown, ref)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return t.Repo.DeleteRefs(ctx, unknown...)
}

// Highest returns the highest number of some checkpoints; 0 if there are none.
func Highest(points map[int64]journal.Point) (number int64) {
	for n := range points {
		number = max(number, n)
	}
	return number
}

// QueuePush adds checkpoints of the volume to those that are to be pushed.
func (t *Taker) QueuePush(points []journal.Point) error {
	if len(points) == 0 {
		return nil
	}
	t.Log.Info("the gitstore lacks checkpoints that the volume has: pushing them again", "count", len(points))
	return t.Journal.Update(func(s *journal.State) error {
		for _, point := range points {
			if !s.IsPending(point.Number) {
				s.Pending = append(s.Pending, point)
			}
		}
		slices.SortFunc(s.Pending, func(a, b journal.Point) int { return int(a.Number - b.Number) })
		return nil
	})
}

// OnVolume lists this task's checkpoints that the volume has, by number. Refs with a higher
// number than the journal's are not checkpoints: one is being taken, or was interrupted by
// a kill, and the number may be given to another tree.
func (t *Taker) OnVolume(ctx context.Context) (map[int64]journal.Point, error) {
	last := t.Journal.State().LastNumber // before the refs are read
	points, err := t.RefsOnVolume(ctx)
	return upTo(last, points), err
}

// upTo deletes the points with a higher number.
func upTo(last int64, points map[int64]journal.Point) map[int64]journal.Point {
	maps.DeleteFunc(points, func(n int64, _ journal.Point) bool { return n > last })
	return points
}

// RefsOnVolume is OnVolume without the journal's bound, for callers that cannot trust the
// journal's number.
func (t *Taker) RefsOnVolume(ctx context.Context) (map[int64]journal.Point, error) {
	refs, err := t.Repo.Refs(ctx, t.prefix())
	return Whole(refs, t.prefix()), err
}

// InGitstore lists this task's checkpoints that the gitstore has, by number; none if it has
// no such repository.
func (t *Taker) InGitstore(ctx context.Context) (map[int64]journal.Point, error) {
	refs, err := t.refsInGitstore(ctx)
	return Whole(refs, t.prefix()), err
}

// refsInGitstore lists this task's refs that the gitstore has.
func (t *Taker) refsInGitstore(ctx context.Context) (map[string]string, error) {
	remote, err := t.Remote()
	if err != nil {
		return nil, err
	}
	refs, err := t.Repo.RemoteRefs(ctx, remote, t.prefix())
	if worktree.ReasonOf(err) == worktree.RepositoryNotFound {
		return nil, nil
	}
	return refs, err
}

func (t *Taker) prefix() string { return refname.OfTask(t.TaskUID) }

// Whole returns the checkpoints that have both a code and a state ref.
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
