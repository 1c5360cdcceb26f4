package journal

import "slices"

// maxWishes bounds the remembered wishes; the oldest are forgotten.
const maxWishes = 100

// Wish is a call of a supervisor's tool for as long as the agent may repeat it, which is then the same
// call: until its answer has reached the agent, or the conversation is taken back.
type Wish struct {
	// Digest identifies the tool and its arguments.
	Digest string `json:"digest"`
	// ID is what the server makes the id of the call from, so that it is the same again should the server
	// lose the call.
	ID string `json:"id"`
	// Call is the call's id; empty while it has no answer.
	Call string `json:"call,omitempty"`
}

// WishFor returns the wish with a digest; false if there is none.
func (s *State) WishFor(digest string) (Wish, bool) {
	if i := slices.IndexFunc(s.Wishes, func(w Wish) bool { return w.Digest == digest }); i >= 0 {
		return s.Wishes[i], true
	}
	return Wish{}, false
}

// KeepWish remembers a wish, in place of an earlier one with its digest.
func (s *State) KeepWish(w Wish) {
	s.Wishes = slices.DeleteFunc(slices.Clone(s.Wishes), func(x Wish) bool { return x.Digest == w.Digest })
	s.Wishes = lastOf(append(s.Wishes, w), maxWishes)
}

// ForgetWish forgets the wish of a call.
func (s *State) ForgetWish(call string) {
	s.Wishes = slices.DeleteFunc(slices.Clone(s.Wishes), func(w Wish) bool { return w.Call == call })
}
