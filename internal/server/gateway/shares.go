package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"

	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/podidentity"
)

// How many requests of daemons are worked on at once: as many as the history store
// has connections, but for a few, so that none of them waits for a connection while
// its time runs, and what the gateway asks by itself finds one. The rest waits in
// line for its own. A namespace gets what is not for those who have none (see
// package places): two thirds. So whatever a few namespaces make the store do, for
// as long as a request is worked on, the others' requests find places.
//
// A request is worked on when it has come, and a long answer only while a part of
// it is being made: how fast a caller writes and reads costs the caller's own share
// of the arrivals, and no other's work.
const (
	defaultConnections  = 14
	spareConnections    = 2
	placesOfTask        = 2
	arrivalsInAll       = 128
	arrivalsOfNamespace = 8
	arrivalsOfTask      = 2
	// Requests of more bytes or elements than that take a place more until they are answered, so
	// that the memory for all of them is bounded. Daemons send less, but for
	// records that are large by themselves.
	largeBytes       = 2 << 20
	largeElements    = 20_000
	largeInAll       = 8
	largeOfNamespace = 2
	// streamsOfTask is how many streams of commands one task may hold: one, and
	// those of which the server has not noticed yet that they were cut.
	streamsOfTask = 8
	streamsInAll  = 20_000
	// placeTimeout is how long a request waits for its turn, and workTimeout for how
	// long it is then worked on, whatever it asks for: daemons give up after that.
	placeTimeout = 15 * time.Second
	workTimeout  = 30 * time.Second
	// sendTimeout is how long a caller may take to read one part of an answer.
	sendTimeout = time.Minute
)

const (
	defaultTaskBytesPerSecond = 4 << 20
	// paceBurst is for how many seconds a task may have saved up.
	paceBurst = 8
	// recordCost is what a record costs the store besides its bytes.
	recordCost = 1 << 10
	// openingCost is what it costs to open a stream of commands: with what a task may send,
	// four in a second, and 32 at once. A daemon opens one and keeps it.
	openingCost = 1 << 20
	// owingInAll is how many tasks may wait for their pace at once.
	owingInAll = 16384
)

// The procedures whose answers last.
const (
	procedureCommands     = "Commands"
	procedureConversation = "Conversation"
)

func lasts(r *http.Request) bool {
	procedure := procedureOf(r)
	return procedure == procedureCommands || procedure == procedureConversation
}

// errBusy is what a request is told that waited for too long, or found too many in line.
var errBusy = errors.New("too many requests of this task or namespace are being served at the moment; try again")

// shares keeps each task and namespace to its part of the server.
type shares struct {
	owing, arrivals, large, requests, streams *fairshare.Slots
	requestsOfNamespace                       int
	paces                                     *fairshare.Rates // of tasks
}

func newShares(bytesPerSecond, connections int) *shares {
	atWork := max(connections-spareConnections, 1)
	return &shares{
		owing: fairshare.NewSlots(owingInAll), arrivals: fairshare.NewSlots(arrivalsInAll), large: fairshare.NewSlots(largeInAll), requests: fairshare.NewSlots(atWork), streams: fairshare.NewSlots(streamsInAll),
		requestsOfNamespace: atWork - fairshare.Reserve(atWork),
		paces:               fairshare.NewRates(rate.Limit(bytesPerSecond), bytesPerSecond*paceBurst),
	}
}

// arrive waits until the request may be read; leave when it is answered.
func (s *shares) arrive(r *http.Request, id podidentity.Identity) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(r.Context(), placeTimeout)
	defer cancel()
	if procedureOf(r) == procedureCommands {
		leave, err = s.open(ctx, id)
	} else if err = s.awaitPace(ctx, id); err == nil {
		leave, err = s.arrivals.Take(ctx,
			fairshare.Share{Of: "task/" + id.TaskUID, Slots: arrivalsOfTask},
			fairshare.Share{Of: "namespace/" + id.Namespace, Slots: arrivalsOfNamespace})
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, errBusy)
	}
	return leave, nil
}

// open waits until a stream of commands may begin. Each has the store asked at once, so
// that who opens many owes their pace for it.
func (s *shares) open(ctx context.Context, id podidentity.Identity) (leave func(), err error) {
	if leave, err = s.streams.Take(ctx, fairshare.Share{Of: id.TaskUID, Slots: streamsOfTask}); err != nil {
		return nil, err
	}
	if err := s.awaitPace(ctx, id); err != nil {
		leave()
		return nil, err
	}
	s.spend(id, openingCost, 0)
	return leave, nil
}

// awaitPace waits until a task owes its pace nothing. One of its requests does so, and the
// next ones in line behind it: so they are not more than a line holds.
func (s *shares) awaitPace(ctx context.Context, id podidentity.Identity) error {
	next, err := s.owing.Take(ctx, fairshare.Share{Of: id.TaskUID, Slots: 1})
	if err != nil {
		return err
	}
	defer next()
	return s.paces.Of(id.TaskUID).WaitN(ctx, 0)
}

// arrival is a request that has come.
type arrival struct {
	shares     *shares
	id         podidentity.Identity
	controller *http.ResponseController
	// release gives the place at work back, reduce that of a large request; nil
	// while there is none.
	release, reduce func()
}

type arrivalKey struct{}

// work waits until the request may be worked on, until rest; the context that it
// returns ends with that, and in time.
func (a *arrival) work(ctx context.Context) (working context.Context, err error) {
	waiting, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	release, err := a.shares.requests.Take(waiting,
		fairshare.Share{Of: "task/" + a.id.TaskUID, Slots: placesOfTask},
		fairshare.Share{Of: "namespace/" + a.id.Namespace, Slots: a.shares.requestsOfNamespace})
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, errBusy)
	}
	working, stop := context.WithTimeout(ctx, workTimeout)
	a.release = func() {
		stop()
		release()
	}
	return working, nil
}

// look waits until a stream of commands may ask the store something, one of its task
// at a time: whoever opens and closes streams makes the store work as well.
func (s *shares) look(ctx context.Context, id podidentity.Identity) (release func(), err error) {
	return s.requests.Take(ctx,
		fairshare.Share{Of: "commands/" + id.TaskUID, Slots: 1},
		fairshare.Share{Of: "namespace/" + id.Namespace, Slots: s.requestsOfNamespace})
}

// enlarge waits until the request may be a large one, until end.
func (a *arrival) enlarge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	reduce, err := a.shares.large.Take(ctx, fairshare.Share{Of: a.id.Namespace, Slots: largeOfNamespace})
	if err != nil {
		return connect.NewError(connect.CodeUnavailable, errBusy)
	}
	a.reduce = reduce
	return nil
}

func (a *arrival) end() {
	a.rest()
	if a.reduce != nil {
		a.reduce()
	}
}

func (a *arrival) rest() {
	if a.release != nil {
		a.release()
		a.release = nil
	}
}

// send has a part of the answer sent while nothing is worked on. A caller that does
// not read it in time is cut off. What is worked on afterwards has the context that
// is returned.
func (a *arrival) send(ctx context.Context, part func() error) (working context.Context, err error) {
	a.rest()
	// Where there are no deadlines, it takes the caller's own share alone.
	_ = a.controller.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err := part(); err != nil {
		return nil, err
	}
	_ = a.controller.SetWriteDeadline(time.Time{})
	return a.work(ctx)
}

// spend notes what a task has sent. Who has sent more than their pace allows
// waits for it before the next request is read.
func (s *shares) spend(id podidentity.Identity, bytes, records int) {
	pace := s.paces.Of(id.TaskUID)
	pace.ReserveN(time.Now(), min(bytes+records*recordCost, pace.Burst()))
}
