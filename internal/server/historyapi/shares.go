package historyapi

import (
	"context"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/clew-dev/clew/internal/fairshare"
)

// How many requests are served at once, of one namespace and in all, so that what
// is asked about some namespaces leaves connections, and memory, to the others.
//
// Whoever reads has a place among the answers until all is written, and a place at
// the history store only while that is asked: how fast a caller takes an answer
// costs the caller's own namespace. There are as many places at the store as it has
// connections, but for one, for what is asked by the way: who exported what. A
// search has one of the places for searches as well.
const (
	defaultConnections                   = 6
	spareConnections                     = 1
	answersOfNamespace, answersInAll     = 4, 12
	searchesOfNamespace, searchesInAll   = 2, 4
	exportsOfNamespace, exportsInAll     = 1, 3
	uploadsOfNamespace, uploadsInAll     = 1, 4
	deletionsOfNamespace, deletionsInAll = 1, 2
	// patience is how long a request waits for a place, and answerTimeout how long
	// a caller may take to read an answer.
	patience      = 10 * time.Second
	answerTimeout = 2 * time.Minute
)

// share is the places for what costs much, and how many of them a namespace gets.
type share struct {
	among       *fairshare.Slots
	ofNamespace int
}

type shares struct{ answers, reads, searches, exports, uploads, deletions share }

func newShares(connections int) shares {
	if connections <= 0 {
		connections = defaultConnections
	}
	reads := max(connections-spareConnections, 1)
	return shares{
		answers: share{fairshare.NewSlots(answersInAll), answersOfNamespace},
		// Half of them, so that it takes several namespaces to have them all.
		reads:     share{fairshare.NewSlots(reads), (reads + 1) / 2},
		searches:  share{fairshare.NewSlots(searchesInAll), searchesOfNamespace},
		exports:   share{fairshare.NewSlots(exportsInAll), exportsOfNamespace},
		uploads:   share{fairshare.NewSlots(uploadsInAll), uploadsOfNamespace},
		deletions: share{fairshare.NewSlots(deletionsInAll), deletionsOfNamespace},
	}
}

// enter waits for a place for a request.
func (a *api) enter(c *call, s share) (release func(), err error) {
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	release, err = s.among.Take(ctx, fairshare.Share{Of: c.access.Namespace, Slots: s.ofNamespace})
	if err != nil {
		return nil, busy()
	}
	return release, nil
}

// atStore does something at the history store, when there is a place.
func (a *api) atStore(c *call, do func() error) error {
	release, err := a.enter(c, a.reads)
	if err != nil {
		return err
	}
	defer release()
	return do()
}

// whenThereIsAPlace is f with a place at the store.
func (a *api) whenThereIsAPlace(f func(*call) (any, error)) func(*call) (any, error) {
	return func(c *call) (answer any, err error) {
		err = a.atStore(c, func() error {
			answer, err = f(c)
			return err
		})
		return answer, err
	}
}

// searching answers a search, which has its place before any other: those that wait
// for one must not keep the namespace's other reads waiting.
func (a *api) searching(w http.ResponseWriter, c *call) error {
	release, err := a.enter(c, a.searches)
	if err != nil {
		return err
	}
	defer release()
	found := func(c *call) (any, error) {
		defer release() // it may be called twice
		return a.whenThereIsAPlace(a.search)(c)
	}
	return a.reading(answering(http.StatusOK, found))(w, c)
}

// reading has a place among the answers while f writes one.
func (a *api) reading(f func(http.ResponseWriter, *call) error) func(http.ResponseWriter, *call) error {
	return func(w http.ResponseWriter, c *call) error {
		release, err := a.enter(c, a.answers)
		if err != nil {
			return err
		}
		defer release()
		controller := http.NewResponseController(w)
		// Where there are no deadlines, it takes the caller's own share alone.
		_ = controller.SetWriteDeadline(time.Now().Add(answerTimeout))
		defer func() { _ = controller.SetWriteDeadline(time.Time{}) }()
		return f(w, c)
	}
}

func busy() error {
	return apierrors.NewTooManyRequests("too many requests for histories are under way, in this namespace or in all; try again when they are done", retryAfter)
}
