package conversationsnapshot

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

const (
	// minTurn and maxTurn bound how long the messages of one snapshot may be read at a time: it is twice
	// as long after each turn that did not suffice, since they may be many.
	minTurn, maxTurn = 30 * time.Second, 4 * time.Minute
	// restAfter is how long a snapshot then rests, as a multiple of its turn: it leaves its worker to
	// others.
	restAfter = 9
)

// tooLong is returned when the messages of a snapshot could not be read in its turn.
type tooLong struct{ turn time.Duration }

// Error says what follows.
func (e tooLong) Error() string {
	return fmt.Sprintf("the messages up to the position could not be read in %s: they are read again, with more time, in %s", e.turn, restAfter*e.turn)
}

// read reads the messages of a snapshot in the store.
func (r *Reconciler) read(ctx context.Context, s *v1alpha1.ConversationSnapshot, taskUID string, query history.SnapshotQuery) (history.Snapshot, error) {
	turn := r.turnOf(s.UID)
	bounded, cancel := context.WithTimeout(ctx, turn)
	defer cancel()
	found, err := r.Store.Snapshot(bounded, history.Key{Namespace: s.Namespace, UID: taskUID}, query)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		r.setTurn(s.UID, min(2*turn, maxTurn))
		return found, tooLong{turn}
	}
	r.setTurn(s.UID, 0)
	return found, err
}

// turnOf returns how long the messages of a snapshot may be read the next time.
func (r *Reconciler) turnOf(uid types.UID) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.turns[uid], r.least())
}

// least returns how long the messages of any snapshot may be read at a time.
func (r *Reconciler) least() time.Duration {
	if r.Turn > 0 {
		return r.Turn
	}
	return minTurn
}

// setTurn remembers how long the messages of a snapshot may be read the next time; 0 for no longer than
// those of others.
func (r *Reconciler) setTurn(uid types.UID, turn time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if turn == 0 {
		delete(r.turns, uid)
		return
	}
	if r.turns == nil {
		r.turns = map[types.UID]time.Duration{}
	}
	r.turns[uid] = turn
}
