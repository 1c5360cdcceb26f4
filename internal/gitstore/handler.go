package gitstore

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/clew-dev/clew/internal/connections"
	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// Limits bound what callers may use. Zero means no limit unless a field says otherwise.
type Limits struct {
	// NamespaceBytes is how much disk space the repositories of one namespace may take.
	NamespaceBytes int64
	// PushBytes is how many bytes the pack of one push may have.
	PushBytes int64
	// FreeBytes is how many bytes of the volume are kept free.
	FreeBytes int64
	// ConcurrentPushes and ConcurrentFetches are how many of them git serves at once, a
	// quarter of them for one namespace; defaults if zero. The requests that precede the
	// content of a push or fetch count as fetches.
	ConcurrentPushes, ConcurrentFetches int
	// RequestsPerSecond is how many requests a second one task or reader may make in the
	// long run, and burstSeconds times as many at once; no limit if zero.
	RequestsPerSecond int
	// Patience is how long a client may stall; a minute if zero.
	Patience time.Duration
	// RequestTime is how long one request may take.
	RequestTime time.Duration
}

// burstSeconds is for how many seconds a pausing caller may save up requests.
const burstSeconds = 10

const (
	defaultRequestsPerSecond = 4
	defaultConcurrentPushes  = 6
	defaultConcurrentFetches = 10
	defaultPatience          = time.Minute
	// defaultSlotTimeout is how long a request waits for a slot.
	defaultSlotTimeout = 20 * time.Second
	// authenticationTimeout is how long the Kubernetes API may take to check a token.
	authenticationTimeout = 15 * time.Second
	// maxFetchRequestBytes bounds the body of a fetch request, which is kept in
	// memory. Git's own server has the same limit (http.maxRequestBuffer).
	maxFetchRequestBytes = 10 << 20
)

// Handler serves the repositories of a Store.
type Handler struct {
	store         *Store
	authenticator Authenticator
	limits        Limits
	log           logr.Logger
	usage         *usage
	metrics       *metrics
	pushes        slots
	fetches       slots
	// rates are the rate limits of callers, which are tasks and readers.
	rates *fairshare.Rates
	// free returns how many bytes of the volume are free.
	free     func() (int64, error)
	purges   *purges
	replaced *replaced
	// verified is what verifications need not read again.
	verified *verified
	lacking  lacking
	left     left
	// telling is held while what the server tells about namespaces is written down; told is that,
	// by name.
	telling sync.Mutex
	told    map[string][]gitstoreapi.Namespace
	// onPush is called with each repository that has received a push, or refs of an adoption.
	onPush func(Repository)
	// slotTimeout is how long a request waits for a slot.
	slotTimeout time.Duration
	// drainTime is how long the rest of a push is read before it is answered, and graceTime
	// how much longer it is read afterwards.
	drainTime, graceTime time.Duration
	// beforeGit is called when a push has passed the handler's checks; tests set it to
	// interfere at that moment.
	beforeGit func()
}

// NewHandler returns a handler whose metrics are registered with registry.
func NewHandler(store *Store, authenticator Authenticator, limits Limits, log logr.Logger, registry prometheus.Registerer) (*Handler, error) {
	if limits.ConcurrentPushes <= 0 {
		limits.ConcurrentPushes = defaultConcurrentPushes
	}
	if limits.ConcurrentFetches <= 0 {
		limits.ConcurrentFetches = defaultConcurrentFetches
	}
	if limits.Patience <= 0 {
		limits.Patience = defaultPatience
	}
	h := &Handler{
		store:         store,
		authenticator: authenticator,
		limits:        limits,
		log:           log,
		usage:         newUsage(time.Now),
		purges:        &purges{last: map[string]time.Time{}},
		verified:      newVerified(time.Now),
		replaced:      &replaced{least: leastReplaced, bytes: map[string]int64{}},
		pushes:        newSlots(limits.ConcurrentPushes),
		fetches:       newSlots(limits.ConcurrentFetches),
		rates:         newRates(limits.RequestsPerSecond),
		free:          func() (int64, error) { return freeBytes(store.root) },
		onPush:        func(Repository) {},
		slotTimeout:   defaultSlotTimeout,
		drainTime:     defaultDrainTime,
		graceTime:     defaultDrainTime,
		beforeGit:     func() {},
	}
	var err error
	h.metrics, err = newMetrics(registry, h.usage, h.free)
	return h, err
}

// newRates returns the rate limits of callers; none for perSecond 0.
func newRates(perSecond int) *fairshare.Rates {
	if perSecond <= 0 {
		return fairshare.NewRates(rate.Inf, 0)
	}
	return fairshare.NewRates(rate.Limit(perSecond), perSecond*burstSeconds)
}

const (
	servicePush  = "git-receive-pack"
	serviceFetch = "git-upload-pack"
)

// call is the state of one request being served.
type call struct {
	repository Repository
	service    string
	// advertise is set for the first of the two requests of a fetch or push, which asks
	// for the list of refs.
	advertise bool
	caller    Caller
	// callerKey is a key that is unique to the caller.
	callerKey string
	request   *http.Request
	body      *pacedBody
	log       logr.Logger
	// headRead is set once the head of a push was read, or could not be read. sideBand is set
	// if the head says that the client shows messages sent beside the report.
	headRead, sideBand bool
	// duplex is set if the response may begin before the request's body has been read.
	// Many clients read no response before they have sent everything.
	duplex bool
	// decided is set once git has stored or refused a push. answer is git's report, which
	// is sent after the call's slot is released.
	decided bool
	answer  []byte
	// quota is how much the repositories of the namespace may take once checkSpace was called; 0
	// for no limit.
	quota int64
	// pressure says whether others wait for the request's slot.
	pressure *pressure
}

// push reports whether the request belongs to a push.
func (c *call) push() bool { return c.service == servicePush }

// operation names the request in logs and metrics.
func (c *call) operation() string {
	if c.advertise {
		return "advertise"
	}
	return "exchange"
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	pressed := &pressure{}
	recorder := &statusRecorder{ResponseWriter: w, control: control, pace: pace{patience: h.limits.Patience, pressure: pressed}}
	// Replace the body of a copy only: the server checks its own request's body to see
	// whether it was read to its end. If not, it closes the connection instead of taking
	// the rest for the next request.
	r = r.WithContext(r.Context())
	body := &pacedBody{body: r.Body, control: control, pace: pace{patience: h.limits.Patience, pressure: pressed}}
	r.Body = body
	// Reads and writes after this returns must not block forever either: the server still
	// reads some of an unread body.
	defer func() {
		until := time.Now().Add(h.limits.Patience)
		body.endBy(until)
		_ = control.SetWriteDeadline(until) // best effort
	}()
	if h.limits.RequestTime > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), h.limits.RequestTime)
		defer cancel()
		r = r.WithContext(ctx)
	}
	if r.URL.Path == gitstoreapi.NamespacesPath {
		h.serveNamespaces(recorder, r)
		return
	}
	if r.URL.Path == gitstoreapi.AdoptionsPath {
		h.serveAdoptions(recorder, r)
		return
	}
	if namespace, uid, operation, ok := parseTaskPath(r.URL.Path); ok && r.URL.RawPath == "" {
		switch operation {
		case "diff":
			h.serveDiff(recorder, r, namespace, uid)
		case "branch":
			h.serveBranch(recorder, r, namespace, uid)
		case "checkpoints":
			h.serveCheckpoints(recorder, r, namespace, uid)
		case "verify":
			h.serveVerification(recorder, r, namespace, uid)
		case "adopt":
			h.serveAdoption(recorder, r, namespace, uid)
		case "formers":
			h.serveFormers(recorder, r, namespace, uid)
		default:
			h.serveDeletion(recorder, r, namespace, uid)
		}
		return
	}
	if m := healPath.FindStringSubmatch(r.URL.Path); m != nil && r.URL.RawPath == "" && namespaceName.MatchString(m[1]) && repositoryName.MatchString(m[2]) {
		h.serveHealing(recorder, r, pressed, m[1], m[2])
		return
	}
	c, refused := h.parse(r)
	if refused == nil {
		c.body, c.pressure = body, pressed
		defer func() {
			h.metrics.requests.WithLabelValues(c.service, c.operation(), strconv.Itoa(recorder.status)).Inc()
		}()
		refused = h.serve(recorder, c)
	}
	switch {
	case refused != nil:
		h.refuse(recorder, c, refused)
	case c.decided:
		h.acknowledge(recorder, c)
	}
}

// parse interprets the URL, and refuses everything but git's smart protocol.
func (h *Handler) parse(r *http.Request) (*call, *gitstoreapi.Refusal) {
	namespace, repository, operation, ok := parsePath(r.URL.Path)
	if !ok || r.URL.RawPath != "" {
		return nil, gitstoreapi.New(gitstoreapi.NotFound, "there is nothing at this URL; a repository is at /<namespace>/<repository>.git, and is served over git's smart protocol only")
	}
	c := &call{repository: h.store.repository(namespace, repository), service: operation, request: r}
	method := http.MethodPost
	if operation == "info/refs" {
		method, c.advertise, c.service = http.MethodGet, true, r.URL.Query().Get("service")
		if c.service != servicePush && c.service != serviceFetch {
			return nil, gitstoreapi.New(gitstoreapi.BadRequest, "only git's smart protocol is supported; use a git client that speaks it")
		}
	}
	if r.Method != method {
		return nil, gitstoreapi.New(gitstoreapi.BadRequest, "the method must be %s", method)
	}
	if content := r.Header.Get("Content-Type"); !c.advertise && content != "application/x-"+c.service+"-request" {
		return nil, gitstoreapi.New(gitstoreapi.BadRequest, "the content type must be application/x-%s-request", c.service)
	}
	c.log = h.log.WithValues("namespace", c.repository.Namespace, "repository", c.repository.Name,
		"service", c.service, "operation", c.operation())
	return c, nil
}

// serve authenticates the caller, waits for a slot, checks the fence, and serves the fetch
// or push.
func (h *Handler) serve(w http.ResponseWriter, c *call) *gitstoreapi.Refusal {
	if refused := h.authenticate(c); refused != nil {
		return refused
	}
	slots := h.fetches
	if c.push() && !c.advertise {
		slots = h.pushes
	}
	release, refused := h.admit(c, slots)
	if refused != nil {
		return refused
	}
	defer release()
	if refused := h.leaveOutSources(c); refused != nil {
		return refused
	}
	newest, refused := h.raise(c)
	if refused != nil {
		return refused
	}
	if c.push() {
		if refused := h.mayPush(c, newest); refused != nil {
			return refused
		}
	}
	if refused := h.ensureRepository(c); refused != nil {
		return refused
	}
	if c.push() {
		return h.push(w, c)
	}
	return h.fetch(w, c)
}

// authenticate identifies the caller and records it in the call.
func (h *Handler) authenticate(c *call) *gitstoreapi.Refusal {
	token := tokenOf(c.request)
	if token == "" {
		return gitstoreapi.New(gitstoreapi.Unauthenticated, "a token is needed, as bearer token or as password of Basic authentication")
	}
	ctx, cancel := context.WithTimeout(c.request.Context(), authenticationTimeout)
	defer cancel()
	caller, err := h.authenticator.Authenticate(ctx, token, c.repository.Namespace, c.repository.Name)
	if err != nil {
		c.log.Info("authentication failed", "error", err.Error())
		return refuseAuthentication(err, c.repository.Namespace)
	}
	c.caller = caller
	c.log = c.log.WithValues("caller", caller.Name)
	task := caller.Task
	if task == nil {
		c.callerKey = "reader/" + caller.Name
		// A namespace may have any number of service accounts: a namespace that lets those
		// of another one read does not give them a part of its own connections.
		identifyConnection(c.request, cmp.Or(caller.Namespace, c.repository.Namespace), c.callerKey)
		return nil
	}
	// These names become parts of paths and refs.
	if task.Namespace != c.repository.Namespace || !taskUID.MatchString(task.UID) || !taskName.MatchString(task.Name) || task.Attempt < 1 && !task.ReadOnly {
		c.log.Info("the caller's identity is invalid", "task", task.Name, "uid", task.UID, "attempt", task.Attempt)
		return gitstoreapi.New(gitstoreapi.Forbidden, "this token does not give access to the repositories of the namespace %s", c.repository.Namespace)
	}
	c.log = c.log.WithValues("task", task.Name, "attempt", task.Attempt)
	c.callerKey = "task/" + task.UID
	identifyConnection(c.request, task.Namespace, c.callerKey)
	return nil
}

// leaveOutSources hides the sources of a task that continues a history from which it can be restored.
// It lists refs, and so comes after a slot was waited for.
func (h *Handler) leaveOutSources(c *call) *gitstoreapi.Refusal {
	task := c.caller.Task
	if task == nil || !task.Continues || len(task.Sources) == 0 {
		return nil
	}
	has, err := h.store.hasCheckpoint(c.request.Context(), c.repository, task.UID)
	if err != nil {
		return h.unavailable(c, err)
	}
	if has {
		task.Sources = nil
	}
	return nil
}

// maxCallerConnections is how many connections one caller may keep. A git process uses one.
const maxCallerConnections = 32

// identifyConnection records who a request's connection belongs to: a task or a reader of a
// namespace's code, or, with no namespace, Clew's server. A caller with too many open
// connections is still served, but the connection is closed soon.
func identifyConnection(r *http.Request, namespace, name string) {
	connections.Identify(r.Context(), connections.Caller{Namespace: namespace, Name: name, Max: maxCallerConnections})
}

// fetch serves both requests of a fetch.
func (h *Handler) fetch(w http.ResponseWriter, c *call) *gitstoreapi.Refusal {
	started := time.Now()
	r := c.request
	encoding := r.Header.Get("Content-Encoding")
	if encoding != "" && encoding != "gzip" {
		return gitstoreapi.New(gitstoreapi.BadRequest, "the content encoding %q is not supported; use gzip or none", encoding)
	}
	request := h.backendRequest(c)
	used, err := c.repository.use(r.Context())
	if err != nil {
		return h.unavailable(c, err)
	}
	defer used.Close()
	shown, err := h.store.viewOf(r.Context(), c.caller, c.repository)
	if errors.Is(err, errNotTold) {
		return gitstoreapi.New(gitstoreapi.Unavailable, "%v", err)
	}
	if err != nil {
		return h.unavailable(c, err)
	}
	if shown.empty() {
		return noRepository(c.repository)
	}
	request.env = withConfig(shown.hide()...)
	if !c.advertise {
		request.body = http.MaxBytesReader(w, r.Body, maxFetchRequestBytes)
		unseen, refused := h.checkWants(c, shown, &request, encoding == "gzip")
		if refused != nil {
			return refused
		}
		if unseen != "" {
			c.log.Info("the caller asked for an object that it may not see", "object", unseen)
			w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
			_, _ = w.Write(notOurs(unseen)) // the client may be gone
			return nil
		}
		if refused := readWhole(&request); refused != nil {
			return refused
		}
	}
	request.files = append(request.files, used)
	err = h.store.serveBackend(r.Context(), request, func(answer *bufio.Reader) error {
		writeHeader(w, request)
		if request.advertise {
			if _, err := w.Write(announcement(request.service)); err != nil {
				return err
			}
		}
		return copyFlushing(w, answer)
	})
	if refused := h.finish(w, c, err); refused != nil {
		return refused
	}
	if !c.advertise {
		h.metrics.fetchSeconds.Observe(time.Since(started).Seconds())
	}
	c.log.V(1).Info("fetch served", "seconds", time.Since(started).Seconds())
	return nil
}

// readWhole reads the body of a fetch to its end before git begins to answer: with a client
// that sends everything before it reads, client and git would wait for each other.
func readWhole(request *backendRequest) *gitstoreapi.Refusal {
	body, err := io.ReadAll(request.body)
	if err != nil {
		return gitstoreapi.New(gitstoreapi.BadRequest, "the request could not be read to its end: %v", err)
	}
	request.body = bytes.NewReader(body)
	return nil
}

// backendRequest returns a git request with the fields that fetches and pushes share.
func (h *Handler) backendRequest(c *call) backendRequest {
	return backendRequest{repository: c.repository, service: c.service, advertise: c.advertise, caller: c.caller.Name}
}

// finish handles the error of a git process: with a refusal if nothing has been sent yet,
// otherwise by aborting the connection, so that the client does not take a partial
// response for a complete one.
func (h *Handler) finish(w http.ResponseWriter, c *call, err error) *gitstoreapi.Refusal {
	if err == nil {
		return nil
	}
	h.verified.suspect(c.repository, err.Error())
	if recorder, ok := w.(*statusRecorder); ok && recorder.status == 0 {
		return h.unavailable(c, err)
	}
	if c.request.Context().Err() != nil {
		c.log.Info("the client disconnected", "error", err.Error())
	} else {
		c.log.Error(err, "the request failed after the response had begun")
	}
	panic(http.ErrAbortHandler)
}

// unavailable logs an error and returns the refusal for it.
func (h *Handler) unavailable(c *call, err error) *gitstoreapi.Refusal {
	if c.request.Context().Err() != nil {
		c.log.Info("the request ended early", "error", err.Error())
	} else {
		c.log.Error(err, "git failed")
		h.verified.suspect(c.repository, err.Error())
	}
	return h.storageRefusal(err, "git could not answer; try again, and see the gitstore's log")
}

// storageRefusal returns a refusal with VolumeFull if err means a full volume, otherwise
// with Unavailable and the message.
func (h *Handler) storageRefusal(err error, message string) *gitstoreapi.Refusal {
	if isFull(err) {
		return gitstoreapi.New(gitstoreapi.VolumeFull, "the gitstore's volume is full; enlarge it or delete histories that are not needed")
	}
	return gitstoreapi.New(gitstoreapi.Unavailable, "%s", message)
}
