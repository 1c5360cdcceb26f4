package historyapi

import (
	"context"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/clew-dev/clew/internal/fairshare"
)

// Limits of concurrent requests, per namespace and in total, so that requests about some
// namespaces leave connections and memory to the others.
//
// A reader holds an answer slot until its response is written, and a read slot only while
// the history store is queried: a caller that reads slowly uses up the share of its own
// namespace. There are as many read slots as the store has connections, less one for
// audit events. A search holds a search slot as well. A difference to the present holds neither,
// but a slot for that, while it waits for the task's daemon, which costs the server next to
// nothing. A watch holds a slot for that, and a read slot only while it reads what is new.
const (
	defaultConnections                   = 6
	spareConnections                     = 1
	answersOfNamespace, answersInAll     = 4, 12
	searchesOfNamespace, searchesInAll   = 2, 4
	exportsOfNamespace, exportsInAll     = 1, 3
	uploadsOfNamespace, uploadsInAll     = 1, 4
	deletionsOfNamespace, deletionsInAll = 1, 2
	waitsOfNamespace, waitsInAll         = 8, 40
	watchesOfNamespace, watchesInAll     = 16, 64
	// patience is how long a request waits for a slot, and answerTimeout how long a
	// caller may take to read a response.
	patience      = 10 * time.Second
	answerTimeout = 2 * time.Minute
)

// share is the slots of a costly kind of request, and how many of them a namespace gets.
type share struct {
	among       *fairshare.Slots
	ofNamespace int
}

type shares struct{ answers, reads, searches, exports, uploads, deletions, waits, watches share }

func newShares(connections int) shares {
	if connections <= 0 {
		connections = defaultConnections
	}
	reads := max(connections-spareConnections, 1)
	return shares{
		answers: share{fairshare.NewSlots(answersInAll), answersOfNamespace},
		// Half of them, so that it takes several namespaces to use them all.
		reads:     share{fairshare.NewSlots(reads), (reads + 1) / 2},
		searches:  share{fairshare.NewSlots(searchesInAll), searchesOfNamespace},
		exports:   share{fairshare.NewSlots(exportsInAll), exportsOfNamespace},
		uploads:   share{fairshare.NewSlots(uploadsInAll), uploadsOfNamespace},
		deletions: share{fairshare.NewSlots(deletionsInAll), deletionsOfNamespace},
		waits:     share{fairshare.NewSlots(waitsInAll), waitsOfNamespace},
		watches:   share{fairshare.NewSlots(watchesInAll), watchesOfNamespace},
	}
}

// enter waits for a slot for a request.
func (a *api) enter(c *call, s share) (release func(), err error) {
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	release, err = s.among.Take(ctx, fairshare.Share{Of: c.access.Namespace, Slots: s.ofNamespace})
	if err != nil {
		return nil, busy()
	}
	return release, nil
}

// inReadSlot queries the history store while holding a read slot.
func (a *api) inReadSlot(c *call, do func() error) error {
	release, err := a.enter(c, a.reads)
	if err != nil {
		return err
	}
	defer release()
	return do()
}

// withReadSlot runs f while holding a read slot.
func (a *api) withReadSlot(f func(*call) (any, error)) func(*call) (any, error) {
	return func(c *call) (answer any, err error) {
		err = a.inReadSlot(c, func() error {
			answer, err = f(c)
			return err
		})
		return answer, err
	}
}

// searchHandler answers a search. It takes its search slot before any other: searches
// that wait for one must not delay the namespace's other reads.
func (a *api) searchHandler(w http.ResponseWriter, c *call) error {
	release, err := a.enter(c, a.searches)
	if err != nil {
		return err
	}
	defer release()
	found := func(c *call) (any, error) {
		defer release() // it may be called twice
		return a.withReadSlot(a.search)(c)
	}
	return a.withAnswerSlot(answering(http.StatusOK, found))(w, c)
}

// withAnswerSlot holds an answer slot while f writes a response.
func (a *api) withAnswerSlot(f func(http.ResponseWriter, *call) error) func(http.ResponseWriter, *call) error {
	return func(w http.ResponseWriter, c *call) error {
		release, err := a.enter(c, a.answers)
		if err != nil {
			return err
		}
		defer release()
		controller := http.NewResponseController(w)
		// If deadlines are not supported, a slow caller takes only its own share.
		_ = controller.SetWriteDeadline(time.Now().Add(answerTimeout))
		defer func() { _ = controller.SetWriteDeadline(time.Time{}) }()
		return f(w, c)
	}
}

func busy() error {
	return apierrors.NewTooManyRequests("too many requests for histories are in progress, in this namespace or in total; try again later", retryAfter)
}
