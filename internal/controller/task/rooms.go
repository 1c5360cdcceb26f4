package task

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// room is what a limited number of tasks have a place in: a contract, a parent's children, or the lead
// of a contract.
type room struct {
	kind, namespace, name string
}

// Kinds of rooms.
const (
	contractRoom = "contract"
	leadRoom     = "lead"
	childrenRoom = "children"
)

func parentRoom(namespace string, uid types.UID) room {
	return room{childrenRoom, namespace, string(uid)}
}

// rooms remembers the places that this process has given away and that the cache does not show yet, so
// that no more are given away than there are. The zero value is ready.
type rooms struct {
	mu    sync.Mutex
	given map[room]map[types.UID]int64
}

// occupants are the tasks that the cache has of a room.
type occupants struct {
	// holders have a place.
	holders sets.Set[types.UID]
	// sequences are the numbers of the newest transitions of all tasks that have a place or may get
	// one.
	sequences map[types.UID]int64
}

func occupantsOf(tasks []v1alpha1.Task, holds func(*v1alpha1.Task) bool) occupants {
	o := occupants{holders: sets.Set[types.UID]{}, sequences: map[types.UID]int64{}}
	for i := range tasks {
		t := &tasks[i]
		o.sequences[t.UID] = t.Status.HistorySequence
		if holds(t) {
			o.holders.Insert(t.UID)
		}
	}
	return o
}

// has reports whether a task has a place, or could get one.
func (r *rooms) has(in room, uid types.UID, o occupants, places int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fits(in, uid, o, places)
}

// give gives a task a place, which the write of its transition with the given number shows. It returns
// an error if there is none left by now.
func (r *rooms) give(in room, uid types.UID, o occupants, places int, sequence int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.fits(in, uid, o, places) {
		return fmt.Errorf("the last place (%s of %s) was given to another task: decide again", in.kind, in.name)
	}
	if r.given == nil {
		r.given = map[room]map[types.UID]int64{}
	}
	if r.given[in] == nil {
		r.given[in] = map[types.UID]int64{}
	}
	r.given[in][uid] = sequence
	return nil
}

// fits forgets what the cache shows by now, and reports whether a task has a place or could get one.
func (r *rooms) fits(in room, uid types.UID, o occupants, places int) bool {
	taken := o.holders.Clone()
	for other, sequence := range r.given[in] {
		if seen, exists := o.sequences[other]; !exists || seen >= sequence {
			delete(r.given[in], other)
			continue
		}
		taken.Insert(other)
	}
	if len(r.given[in]) == 0 {
		delete(r.given, in)
	}
	return taken.Has(uid) || taken.Len() < places
}
