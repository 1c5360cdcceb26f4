package podidentity

import (
	"context"
	"errors"
	"time"

	"github.com/clew-dev/clew/internal/namespaceid"
)

// Namespaces tells which namespace has a name; see package namespaceid.
type Namespaces interface {
	Get(ctx context.Context, name string) (namespaceid.Namespace, error)
}

// place is the namespace that an answer is about. The zero value is none; without a UID, there is
// no namespace of the name.
type place struct{ name, uid string }

// placeOf returns the namespace that has a name now. It is asked for before what is kept about it.
func (v *Verifier) placeOf(ctx context.Context, name string) (place, error) {
	if name == "" {
		return place{}, nil
	}
	found, err := v.names.Get(ctx, name)
	switch {
	case errors.Is(err, namespaceid.ErrNone):
		return place{name: name}, nil
	case err != nil:
		return place{}, fail(ErrUnavailable, "it could not be found out which namespace has the name %s: %v; try again", name, err)
	}
	return place{name: name, uid: found.UID}, nil
}

// answerAbout is an answer that is kept.
type answerAbout struct {
	value any
	about place
}

// keep keeps an answer for as long as its namespace exists, and until a time at most.
func (v *Verifier) keep(key digest, value any, about place, until time.Time) {
	if left := until.Sub(v.answers.clock.Now()); left > 0 && (about.name == "" || about.uid != "") {
		v.answers.accepted.Add(key, answerAbout{value, about}, left)
	}
}

// known returns an answer that is kept. One about a namespace whose name another one has now is
// forgotten.
func (v *Verifier) known(ctx context.Context, key digest) (value any, ok bool, err error) {
	found, ok := v.answers.accepted.Get(key)
	if !ok {
		return nil, false, nil
	}
	kept := found.(answerAbout)
	now, err := v.placeOf(ctx, kept.about.name)
	switch {
	case err != nil:
		return nil, false, err
	case now != kept.about:
		v.answers.accepted.Remove(key)
		return nil, false, nil
	}
	return kept.value, true, nil
}
