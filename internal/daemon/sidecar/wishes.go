package sidecar

import (
	"crypto/rand"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/tools"
	"github.com/clew-dev/clew/internal/toolcall"
)

// A call that the agent repeats is the same call until the agent has its answer. The server knows that by
// its own records; should it lose them, with an older copy of its database, it makes the call's id again
// from that of the wish, which is kept here.

// wishOf returns the id of what a call wishes; "" if the call changes nothing or has an id of the agent's
// own, or if the wish cannot be kept.
func (d *daemon) wishOf(c tools.Call, arguments string) string {
	if c.ID != "" || !toolcall.Changes(c.Tool) {
		return ""
	}
	digest, id := toolcall.Digest(c.Tool, []byte(arguments)), ""
	err := d.volume.Journal.Update(func(s *journal.State) error {
		w, known := s.WishFor(digest)
		if !known {
			w = journal.Wish{Digest: digest, ID: strings.ToLower(rand.Text())}
			s.KeepWish(w)
		}
		id = w.ID
		return nil
	})
	if err != nil {
		d.log.Error(err, "what a call wishes could not be kept; it takes effect twice if it is repeated after the server has lost it", "tool", c.Tool)
		return ""
	}
	return id
}

// noteWish notes which call a wish has become. It must be done before it can be known that the answer has
// reached the agent.
func (d *daemon) noteWish(c tools.Call, arguments, call string) {
	digest := toolcall.Digest(c.Tool, []byte(arguments))
	state := d.volume.Journal.State()
	if w, known := state.WishFor(digest); !known || w.Call == call {
		return
	}
	err := d.volume.Journal.Update(func(s *journal.State) error {
		if w, known := s.WishFor(digest); known {
			w.Call = call
			s.KeepWish(w)
		}
		return nil
	})
	if err != nil {
		d.log.Error(err, "which call a wish has become could not be kept", "call", call)
	}
}

// forgetWishes returns a function that forgets the wish of a call whose answer has reached the agent: what
// it calls then is wished anew.
func forgetWishes(j *journal.Journal, log logr.Logger) func(call string) {
	return func(call string) {
		if !slices.ContainsFunc(j.State().Wishes, func(w journal.Wish) bool { return w.Call == call }) {
			return
		}
		err := j.Update(func(s *journal.State) error { s.ForgetWish(call); return nil })
		if err != nil {
			log.Error(err, "a wish could not be forgotten", "call", call)
		}
	}
}
