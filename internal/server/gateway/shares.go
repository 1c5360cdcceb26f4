package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/podidentity"
)

// Limits of concurrent requests. There are as many work slots as the history store has
// connections, less a few, so that no request waits for a connection while its time runs,
// and the gateway's own queries find one. Other requests queue. A namespace may use all
// slots except those reserved for namespaces that hold none (see package fairshare), that
// is two thirds. So the load of a few namespaces cannot take the slots of the others.
//
// A request takes a work slot once it has been received, and a streamed response only
// while a part of it is being produced: a caller that writes or reads slowly uses up its
// own share of arrivals and delays nobody else's work.
const (
	defaultConnections  = 14
	spareConnections    = 2
	slotsOfTask         = 2
	arrivalsInAll       = 128
	arrivalsOfNamespace = 8
	arrivalsOfTask      = 2
	// Requests with more bytes or elements than that take an additional slot until they
	// are answered, so that their total memory is bounded. Daemons send less, except for
	// single large records.
	largeBytes       = 2 << 20
	largeElements    = 20_000
	largeInAll       = 8
	largeOfNamespace = 2
	// streamsOfTask is the number of command streams a task may hold: one, and those
	// whose loss the server has not noticed yet.
	streamsOfTask = 8
	streamsInAll  = 20_000
	// slotTimeout bounds how long a request waits for a slot, and workTimeout how long it
	// is then processed, whatever it asks for: daemons give up after that.
	slotTimeout = 15 * time.Second
	workTimeout = 30 * time.Second
	// sendTimeout is how long a caller may take to read one part of a response.
	sendTimeout = time.Minute
	// Calls of tools that wait, for an answer or for tasks, hold one of these slots and no other. So
	// do comparisons, which keep the gitstore busy and hold what it returns.
	waitsInAll             = 2000
	waitsOfNamespace       = 200
	waitsOfTask            = 4
	comparisonsInAll       = 6
	comparisonsOfNamespace = 2
	comparisonsOfTask      = 1
	// A search of an agent's holds one of these slots and no other. So many connections are for them,
	// each of which may keep a processor of the database busy.
	searchesInAll       = 3
	searchesOfNamespace = 1
	// searchShare is the part of the time, one in searchShare, for which the tasks of a namespace may
	// search in the long run, and searchBurst how long at once after a pause.
	searchShare = 4
	searchBurst = 20 * time.Second
)

const (
	defaultTaskBytesPerSecond = 4 << 20
	// paceBurst is the number of seconds of its rate that a task may save up.
	paceBurst = 8
	// recordCost is what a record costs the store besides its bytes.
	recordCost = 1 << 10
	// requestCost is the cost of any request, and beginCost that of a Begin, which may write to the
	// task's row and notify the manager.
	requestCost = 4 << 10
	beginCost   = 256 << 10
	// openingCost is the cost of opening a command stream: at the default rate, a task
	// may open four per second, and 32 at once. A daemon opens one and keeps it.
	openingCost = 1 << 20
	// owingInAll is the number of tasks that may wait for their rate limit at once.
	owingInAll = 16384
)

// The procedures with streamed responses.
const (
	procedureCommands     = "Commands"
	procedureConversation = "Conversation"
)

// The procedures that take a slot for work by themselves, and give it up while they wait.
const (
	procedureCallTool = "CallTool"
	procedureSearch   = "SearchHistory"
)

func takesSlot(r *http.Request) bool {
	procedure := procedureOf(r)
	return procedure == procedureCallTool || procedure == procedureSearch
}

func isStreaming(r *http.Request) bool {
	procedure := procedureOf(r)
	return procedure == procedureCommands || procedure == procedureConversation
}

// errBusy is returned for a request that waited too long, or found the queue full.
var errBusy = errors.New("too many requests of this task or namespace are being served; try again")

// shares limits each task and namespace to its part of the server.
type shares struct {
	owing, arrivals, large, requests, streams *fairshare.Slots
	waits, comparisons, searches              *fairshare.Slots
	requestsOfNamespace                       int
	paces                                     *fairshare.Rates // of tasks
	searchTimes                               *fairshare.Rates // of namespaces, in milliseconds
}

func newShares(bytesPerSecond, connections int) *shares {
	atWork := max(connections-spareConnections, 1)
	return &shares{
		owing: fairshare.NewSlots(owingInAll), arrivals: fairshare.NewSlots(arrivalsInAll), large: fairshare.NewSlots(largeInAll), requests: fairshare.NewSlots(atWork), streams: fairshare.NewSlots(streamsInAll),
		waits: fairshare.NewSlots(waitsInAll), comparisons: fairshare.NewSlots(comparisonsInAll), searches: fairshare.NewSlots(searchesInAll),
		requestsOfNamespace: atWork - fairshare.Reserve(atWork),
		paces:               fairshare.NewRates(rate.Limit(bytesPerSecond), bytesPerSecond*paceBurst),
		searchTimes:         fairshare.NewRates(rate.Limit(time.Second.Milliseconds()/searchShare), int(searchBurst.Milliseconds())),
	}
}

// arrive waits until the request may be read; leave is called when it has been answered.
func (s *shares) arrive(r *http.Request, id podidentity.Identity) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(r.Context(), slotTimeout)
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
	s.spend(id, requestCost, 0)
	return leave, nil
}

// open waits until a command stream may begin. Each stream queries the store at once, so
// opening many counts against the task's rate.
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

// awaitPace waits until the task is within its rate limit. One of its requests waits for
// the limit and the others queue behind it, so their number is bounded by the queue.
func (s *shares) awaitPace(ctx context.Context, id podidentity.Identity) error {
	next, err := s.owing.Take(ctx, fairshare.Share{Of: id.TaskUID, Slots: 1})
	if err != nil {
		return err
	}
	defer next()
	return s.paces.Of(id.TaskUID).WaitN(ctx, 0)
}

// arrival is a request that has been received.
type arrival struct {
	shares     *shares
	id         podidentity.Identity
	controller *http.ResponseController
	// release returns the work slot, reduce the slot of a large request; nil if there is
	// none. leave returns the slot of an arrival, and may be called again.
	release, reduce, leave func()
}

type arrivalKey struct{}

// arrivalOf returns the arrival that authentication put into the context.
func arrivalOf(ctx context.Context) (*arrival, error) {
	arrived, ok := ctx.Value(arrivalKey{}).(*arrival)
	if !ok {
		return nil, connect.NewError(connect.CodeInternal, errors.New("the request did not pass the gateway's handler"))
	}
	return arrived, nil
}

// work waits until the request may be processed. The slot is held until releaseSlot; the
// context it returns ends then, or after workTimeout.
func (a *arrival) work(ctx context.Context) (working context.Context, err error) {
	waiting, cancel := context.WithTimeout(ctx, slotTimeout)
	defer cancel()
	release, err := a.shares.requests.Take(waiting,
		fairshare.Share{Of: "task/" + a.id.TaskUID, Slots: slotsOfTask},
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

// checkSlot waits until a command stream may query the store, one per task at a time:
// opening and closing streams loads the store as well.
func (s *shares) checkSlot(ctx context.Context, id podidentity.Identity) (release func(), err error) {
	return s.requests.Take(ctx,
		fairshare.Share{Of: "commands/" + id.TaskUID, Slots: 1},
		fairshare.Share{Of: "namespace/" + id.Namespace, Slots: s.requestsOfNamespace})
}

// enlarge waits until the request may be a large one; the slot is held until end.
func (a *arrival) enlarge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, slotTimeout)
	defer cancel()
	reduce, err := a.shares.large.Take(ctx, fairshare.Share{Of: a.id.Namespace, Slots: largeOfNamespace})
	if err != nil {
		return connect.NewError(connect.CodeUnavailable, errBusy)
	}
	a.reduce = reduce
	return nil
}

func (a *arrival) end() {
	a.releaseSlot()
	if a.reduce != nil {
		a.reduce()
	}
}

func (a *arrival) releaseSlot() {
	if a.release != nil {
		a.release()
		a.release = nil
	}
}

// aside is what a call of a tool holds while it waits.
type aside struct {
	slots               *fairshare.Slots
	ofTask, ofNamespace int
}

// aside returns what calls of a tool hold while they wait.
func (s *shares) aside(tool v1alpha1.AgentTool) aside {
	if tool == v1alpha1.ToolTaskDiff {
		return aside{s.comparisons, comparisonsOfTask, comparisonsOfNamespace}
	}
	return aside{s.waits, waitsOfTask, waitsOfNamespace}
}

// setAside gives up the slots of a request for one in which it waits until end, or fails if there is
// none.
func (a *arrival) setAside(in aside) (end func(), err error) {
	end, err = in.slots.Try(
		fairshare.Share{Of: "task/" + a.id.TaskUID, Slots: in.ofTask},
		fairshare.Share{Of: "namespace/" + a.id.Namespace, Slots: in.ofNamespace})
	if err != nil {
		return nil, err
	}
	a.releaseSlot()
	a.leave()
	return end, nil
}

// search waits for its turn to search, and holds no other slot from then on. done ends the turn, and counts
// the time that it took.
func (a *arrival) search(ctx context.Context) (searching context.Context, done func(), err error) {
	a.releaseSlot()
	a.leave()
	waiting, cancel := context.WithTimeout(ctx, slotTimeout)
	defer cancel()
	times := a.shares.searchTimes.Of(a.id.Namespace)
	var release func()
	if err = times.WaitN(waiting, 0); err == nil {
		release, err = a.shares.searches.Take(waiting, fairshare.Share{Of: "namespace/" + a.id.Namespace, Slots: searchesOfNamespace})
	}
	if err != nil {
		return nil, nil, connect.NewError(connect.CodeUnavailable, errBusy)
	}
	began := time.Now()
	searching, stop := context.WithTimeout(ctx, workTimeout)
	return searching, func() {
		stop()
		release()
		times.ReserveN(time.Now(), min(int(time.Since(began).Milliseconds()), times.Burst()))
	}, nil
}

// send sends a part of the response while the request holds no work slot. A caller that
// does not read it in time is cut off. It returns the context for the work that follows.
func (a *arrival) send(ctx context.Context, part func() error) (working context.Context, err error) {
	a.releaseSlot()
	// If deadlines are not supported, a slow caller takes only its own share.
	_ = a.controller.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err := part(); err != nil {
		return nil, err
	}
	_ = a.controller.SetWriteDeadline(time.Time{})
	return a.work(ctx)
}

// spend records what a task has sent. A task that exceeds its rate limit waits before its
// next request is read.
func (s *shares) spend(id podidentity.Identity, bytes, records int) {
	pace := s.paces.Of(id.TaskUID)
	pace.ReserveN(time.Now(), min(bytes+records*recordCost, pace.Burst()))
}
