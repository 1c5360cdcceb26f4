package verification

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/history"
)

// Verdicts is the part of the history store that verifications on demand need. Its errors wrap
// those of package history.
type Verdicts interface {
	DamagedConversations(ctx context.Context, task history.Key) (map[int64]string, error)
	RecordVerdicts(ctx context.Context, task history.Key, verdicts []history.Verdict, conversations map[int64]string) ([]history.VerdictChange, error)
	eventStore
}

// ErrInProgress is returned for a verification that takes longer than its caller waits. It goes
// on, and whoever asks for it again waits for the same one.
var ErrInProgress = errors.New("the checkpoint is still being verified")

const (
	// demandsOfNamespace and demandsInAll are how many verifications on demand run at once.
	demandsOfNamespace, demandsInAll = 1, 4
	// conversationsKept is how many tasks' conversations are remembered as verified, and
	// conversationsFor how long: whoever verifies all checkpoints of a task asks for one after
	// the other.
	conversationsKept, conversationsFor = 256, 15 * time.Minute
)

// OnDemand verifies a checkpoint when somebody asks for it. Make one with NewOnDemand.
type OnDemand struct {
	store Verdicts
	code  Code
	log   logr.Logger
	slots *fairshare.Slots
	read  *cache.LRUExpireCache

	mu      sync.Mutex
	running map[demand]*run
}

// demand names a checkpoint.
type demand struct {
	uid    string
	number int64
}

// run is a verification in progress; err is set when done is closed.
type run struct {
	done chan struct{}
	err  error
}

// readConversation is what a verification of a task's messages found, and when it began.
type readConversation struct {
	began   time.Time
	damaged map[int64]string
}

// NewOnDemand returns an OnDemand.
func NewOnDemand(store Verdicts, code Code, log logr.Logger) *OnDemand {
	return &OnDemand{
		store: store, code: code, log: log, slots: fairshare.NewSlots(demandsInAll),
		read: cache.NewLRUExpireCache(conversationsKept), running: map[demand]*run{},
	}
}

// Verify verifies a checkpoint, unless that was done after since, and records what it finds. It
// returns when that is recorded; ErrInProgress if ctx ends before. Errors: those of the history
// and the gitstore, and fairshare.ErrBusy.
func (d *OnDemand) Verify(ctx context.Context, task history.Task, number int64, since time.Time) error {
	r := d.join(context.WithoutCancel(ctx), task, number, since)
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ErrInProgress
	}
}

// join returns the verification of a checkpoint that is in progress, and begins one if there is
// none.
func (d *OnDemand) join(ctx context.Context, task history.Task, number int64, since time.Time) *run {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := demand{task.UID, number}
	if r := d.running[of]; r != nil {
		return r
	}
	r := &run{done: make(chan struct{})}
	d.running[of] = r
	go func() {
		ctx, cancel := context.WithTimeout(ctx, demandTime)
		defer cancel()
		r.err = d.verify(ctx, task, number, since)
		d.mu.Lock()
		delete(d.running, of)
		d.mu.Unlock()
		close(r.done)
	}()
	return r
}

// verify verifies a checkpoint in turns, each twice as long as the one before: who waits for a slot
// gets it when a turn ends, however long the verifications of others take. What the gitstore has
// verified in one turn it does not read again in the next.
func (d *OnDemand) verify(ctx context.Context, task history.Task, number int64, since time.Time) error {
	for turn := minTurn; ; turn *= 2 {
		if err := d.turn(ctx, turn, task, number, since); !errors.Is(err, errTurnEnded) {
			return err
		}
	}
}

// errTurnEnded is returned if a turn did not suffice.
var errTurnEnded = errors.New("the turn ended before the checkpoint was verified")

// turn verifies a checkpoint if that takes no longer than a turn, from when it begins.
func (d *OnDemand) turn(ctx context.Context, turn time.Duration, task history.Task, number int64, since time.Time) error {
	release, err := d.slots.Take(ctx, fairshare.Share{Of: task.Namespace, Slots: demandsOfNamespace})
	if err != nil {
		return err
	}
	defer release()
	timed, cancel := context.WithTimeout(ctx, turn)
	defer cancel()
	if err = d.once(timed, task, number, since); err != nil && timed.Err() != nil && ctx.Err() == nil {
		return errTurnEnded
	}
	return err
}

func (d *OnDemand) once(ctx context.Context, task history.Task, number int64, since time.Time) error {
	conversations, err := d.conversations(ctx, task, since)
	if err != nil {
		return err
	}
	damage, err := Objects(ctx, d.code, task.Key(), number, since)
	if err != nil {
		return err
	}
	changes, err := d.store.RecordVerdicts(ctx, task.Key(), []history.Verdict{{Number: number, Damage: damage}}, conversations)
	if err != nil {
		return fmt.Errorf("record the verification of checkpoint %d: %w", number, err)
	}
	tell(ctx, d.store, d.log.WithValues("namespace", task.Namespace, "task", task.Name), task, changes)
	return nil
}

// conversations verifies the messages of a task, unless that was done after since.
func (d *OnDemand) conversations(ctx context.Context, task history.Task, since time.Time) (map[int64]string, error) {
	if known, ok := d.read.Get(task.UID); ok && !known.(readConversation).began.Before(since) {
		return known.(readConversation).damaged, nil
	}
	began := time.Now()
	damaged, err := d.store.DamagedConversations(ctx, task.Key())
	if err == nil {
		d.read.Add(task.UID, readConversation{began, damaged}, conversationsFor)
	}
	return damaged, err
}
