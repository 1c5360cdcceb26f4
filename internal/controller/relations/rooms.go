package relations

import (
	"container/list"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

// room is what a limited number of tasks have a place in: a contract, the lead of a contract, by its name,
// or the children of a parent, by its UID.
type room struct {
	kind, namespace, name string
}

// Kinds of rooms.
const (
	contractRoom = "contract"
	leadRoom     = "lead"
	childrenRoom = "children"
)

// places are those of a room.
type places struct {
	// limit is how many there are. known is false while it is not known, and open is false while none
	// is given away.
	limit       int
	known, open bool
	// held are the names of the tasks that have a place, as the cache has them, by UID; reserved are
	// those for whom this process keeps one that the cache does not show.
	held, reserved map[string]string
	// line are the names of the tasks that wait for a place, of type types.NamespacedName, the next one
	// first.
	line *list.List
}

// taken is how many places are not free.
func (p *places) taken() int { return len(p.held) + len(p.reserved) }

// has reports whether a task has a place.
func (p *places) has(uid string) bool {
	_, holds := p.held[uid]
	_, reserved := p.reserved[uid]
	return holds || reserved
}

// fits reports whether a task has a place, or could get one.
func (p *places) fits(uid string) bool { return p.has(uid) || p.open && p.taken() < p.limit }

// roomsOf returns the rooms in which a task has a place.
func roomsOf(namespace string, r plan.Relations) (rooms []room) {
	if r.Joined {
		rooms = append(rooms, room{contractRoom, namespace, r.Contract})
	}
	if r.ParentUID != "" {
		rooms = append(rooms, room{childrenRoom, namespace, r.ParentUID})
	}
	if r.Leads {
		rooms = append(rooms, room{leadRoom, namespace, r.Contract})
	}
	return rooms
}

// placesOf returns the places of a room. The caller holds mu.
func (a *Account) placesOf(in room) *places {
	p := a.rooms[in]
	if p == nil {
		p = &places{held: map[string]string{}, reserved: map[string]string{}, line: list.New()}
		switch in.kind {
		case contractRoom:
			p.limit, p.known, p.open = v1alpha1.MaxContractTasks, true, true
		case leadRoom:
			p.limit, p.known, p.open = 1, true, true
		}
		if a.rooms == nil {
			a.rooms = map[room]*places{}
		}
		a.rooms[in] = p
	}
	return p
}

// hold takes over the places that the cache shows of a task, in place of those that it showed before, and
// how many children it may have. The caller holds mu.
func (a *Account) hold(name types.NamespacedName, e *entry, was plan.Relations) {
	before, now := roomsOf(name.Namespace, was), roomsOf(name.Namespace, e.is)
	for _, in := range before {
		delete(a.placesOf(in).held, was.UID)
	}
	for _, in := range now {
		p := a.placesOf(in)
		p.held[e.is.UID] = name.Name
		delete(p.reserved, e.is.UID)
		e.reserved.Delete(in)
	}
	for _, in := range before {
		a.admit(in)
		a.tidy(in)
	}
	if was.Supervisor && e.is.UID == "" {
		in := room{childrenRoom, name.Namespace, was.UID}
		p := a.placesOf(in)
		p.known, p.open = false, false
		a.tidy(in)
	}
	if e.is.Supervisor {
		in := room{childrenRoom, name.Namespace, e.is.UID}
		p := a.placesOf(in)
		p.limit, p.known, p.open = e.is.Maximum, true, !e.closed
		a.admit(in)
	}
}

// admit keeps the free places of a room for the tasks that have waited longest, and wakes them. The
// caller holds mu.
func (a *Account) admit(in room) {
	p := a.rooms[in]
	for a.ready && p != nil && p.open && p.taken() < p.limit && p.line.Len() > 0 {
		name, _ := p.line.Front().Value.(types.NamespacedName)
		e := a.tasks[name]
		a.reserve(in, e, name.Name)
		a.leave(e)
		a.wake(name)
	}
}

// reserve keeps a place for a task. The caller holds mu.
func (a *Account) reserve(in room, e *entry, name string) {
	if p := a.placesOf(in); !p.has(e.is.UID) {
		p.reserved[e.is.UID] = name
		e.reserved.Insert(in)
	}
}

// giveBack gives a place that was kept for a task to the next one. The caller holds mu.
func (a *Account) giveBack(in room, e *entry, uid string) {
	delete(a.placesOf(in).reserved, uid)
	e.reserved.Delete(in)
	a.admit(in)
	a.tidy(in)
}

// leave takes a task out of its line. The caller holds mu.
func (a *Account) leave(e *entry) {
	if e.turn == nil {
		return
	}
	in := e.line
	a.placesOf(in).line.Remove(e.turn)
	e.line, e.turn = room{}, nil
	a.tidy(in)
}

// tidy forgets a room of which nothing is known. The caller holds mu.
func (a *Account) tidy(in room) {
	p := a.rooms[in]
	if p != nil && p.taken() == 0 && p.line.Len() == 0 && !(in.kind == childrenRoom && p.known) {
		delete(a.rooms, in)
	}
}
