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
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/clew-dev/clew/internal/connections"
	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// Limits of what callers may use; zero means no limit where nothing else is
// said.
type Limits struct {
	// NamespaceBytes is how much of the disk the repositories of one namespace
	// may take.
	NamespaceBytes int64
	// PushBytes is how large the pack of one push may be.
	PushBytes int64
	// FreeBytes are kept free on the volume.
	FreeBytes int64
	// ConcurrentPushes and ConcurrentFetches are how many git works on at once, a
	// quarter of them for one namespace; defaults if zero. What pushes and fetches
	// ask before they bring or take content counts as a fetch.
	ConcurrentPushes, ConcurrentFetches int
	// RequestsPerSecond is how often one task or reader may ask in the long run, and for
	// burstSeconds of it at once; any number if zero.
	RequestsPerSecond int
	// Patience is how long a client may stand still; a minute if zero.
	Patience time.Duration
	// RequestTime is how long one request may take.
	RequestTime time.Duration
}

// burstSeconds is for how many seconds a caller may have saved up requests.
const burstSeconds = 10

const (
	defaultRequestsPerSecond = 4
	defaultConcurrentPushes  = 6
	defaultConcurrentFetches = 10
	defaultPatience          = time.Minute
	// defaultSlotTimeout is how long a request waits for its turn.
	defaultSlotTimeout = 20 * time.Second
	// authenticationTimeout is how long the Kubernetes API may take.
	authenticationTimeout = 15 * time.Second
	// maxFetchRequestBytes bounds what a client may say in a fetch, which is kept in
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
	// paces are those of the callers, tasks and readers.
	paces *fairshare.Rates
	// free returns the bytes that are free on the volume.
	free   func() (int64, error)
	purges *purges
	// pushed is told of each repository that was pushed to.
	pushed func(Repository)
	// slotTimeout is how long a request waits for its turn.
	slotTimeout time.Duration
	// drainTime is how long the rest of a push is read before it is answered, and graceTime
	// how much longer if there is more.
	drainTime, graceTime time.Duration
	// beforeGit is called when a push has passed the handler's checks; it gives
	// tests their chance.
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
		pushes:        newSlots(limits.ConcurrentPushes),
		fetches:       newSlots(limits.ConcurrentFetches),
		paces:         newPaces(limits.RequestsPerSecond),
		free:          func() (int64, error) { return freeBytes(store.root) },
		pushed:        func(Repository) {},
		slotTimeout:   defaultSlotTimeout,
		drainTime:     defaultDrainTime,
		graceTime:     defaultDrainTime,
		beforeGit:     func() {},
	}
	var err error
	h.metrics, err = newMetrics(registry, h.usage, h.free)
	return h, err
}

func newPaces(perSecond int) *fairshare.Rates {
	if perSecond <= 0 {
		return fairshare.NewRates(rate.Inf, 0)
	}
	return fairshare.NewRates(rate.Limit(perSecond), perSecond*burstSeconds)
}

const (
	servicePush  = "git-receive-pack"
	serviceFetch = "git-upload-pack"
)

// call is one request in the making.
type call struct {
	repository Repository
	service    string
	// advertise: the first of the two requests of a fetch or push.
	advertise bool
	caller    Caller
	// whose is the caller's name among all of them.
	whose   string
	request *http.Request
	body    *pacedBody
	log     logr.Logger
	// begun: the beginning of a push was read, or could not be; sideBand: it says that its
	// client shows messages sent beside the report.
	begun, sideBand bool
	// duplex: the answer may begin before the request's body has been read, and many a
	// client reads none before it has sent everything.
	duplex bool
	// judged: git has stored or refused what a push brought; answer says so, and is sent
	// when the place of the call is free.
	judged bool
	answer []byte
	// pressure is what those who wait put on the request.
	pressure *pressure
}

func (c *call) push() bool { return c.service == servicePush }

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
	// On a copy: by the body of its own request the server sees that one was not read to its
	// end, and ends the connection instead of taking the rest for the next request.
	r = r.WithContext(r.Context())
	body := &pacedBody{body: r.Body, control: control, pace: pace{patience: h.limits.Patience, pressure: pressed}}
	r.Body = body
	// What is left to be read and written when this returns must not wait for ever either:
	// the server reads some of what was not read of a request.
	defer func() {
		until := time.Now().Add(h.limits.Patience)
		body.endBy(until)
		_ = control.SetWriteDeadline(until) // as good as possible
	}()
	if h.limits.RequestTime > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), h.limits.RequestTime)
		defer cancel()
		r = r.WithContext(ctx)
	}
	if namespace, uid, ok := parseTaskPath(r.URL.Path); ok && r.URL.RawPath == "" {
		h.serveDeletion(recorder, r, namespace, uid)
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
	case c.judged:
		h.acknowledge(recorder, c)
	}
}

// parse understands the URL and refuses all that is not git's smart protocol.
func (h *Handler) parse(r *http.Request) (*call, *gitstoreapi.Refusal) {
	namespace, repository, operation, ok := parsePath(r.URL.Path)
	if !ok || r.URL.RawPath != "" {
		return nil, gitstoreapi.New(gitstoreapi.NotFound, "there is nothing here; the URL of a repository is /<namespace>/<repository>.git, and only git's smart protocol is spoken")
	}
	c := &call{repository: h.store.repository(namespace, repository), service: operation, request: r}
	method := http.MethodPost
	if operation == "info/refs" {
		method, c.advertise, c.service = http.MethodGet, true, r.URL.Query().Get("service")
		if c.service != servicePush && c.service != serviceFetch {
			return nil, gitstoreapi.New(gitstoreapi.BadRequest, "only git's smart protocol is spoken here; use a git client of this decade")
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

// serve does all that every request needs and hands on to fetch or push.
func (h *Handler) serve(w http.ResponseWriter, c *call) *gitstoreapi.Refusal {
	if refused := h.authenticate(c); refused != nil {
		return refused
	}
	slots := h.fetches
	if c.push() && !c.advertise {
		slots = h.pushes
	}
	release, refused := h.turn(c, slots)
	if refused != nil {
		return refused
	}
	c.pressure.held.Store(slots.Slots)
	defer func() { c.pressure.held.Store(nil); release() }()
	newest, refused := h.raise(c)
	if refused != nil {
		return refused
	}
	if c.push() {
		if refused := h.mayPush(c, newest); refused != nil {
			return refused
		}
	}
	if refused := h.find(c); refused != nil {
		return refused
	}
	if c.push() {
		return h.push(w, c)
	}
	return h.fetch(w, c)
}

func (h *Handler) authenticate(c *call) *gitstoreapi.Refusal {
	token := tokenOf(c.request)
	if token == "" {
		return gitstoreapi.New(gitstoreapi.Unauthenticated, "a token is needed, as bearer token or as password of Basic authentication")
	}
	ctx, cancel := context.WithTimeout(c.request.Context(), authenticationTimeout)
	defer cancel()
	caller, err := h.authenticator.Authenticate(ctx, token, c.repository.Namespace)
	if err != nil {
		c.log.Info("authentication failed", "error", err.Error())
		return refuseAuthentication(err, c.repository.Namespace)
	}
	c.caller = caller
	c.log = c.log.WithValues("caller", caller.Name)
	task := caller.Task
	if task == nil {
		c.whose = "reader/" + caller.Name
		// There may be any number of service accounts: who lets those of another
		// namespace read does not give them their own connections.
		knowCaller(c.request, cmp.Or(caller.Namespace, c.repository.Namespace), c.whose)
		return nil
	}
	// These names become parts of paths and refs.
	if task.Namespace != c.repository.Namespace || !taskUID.MatchString(task.UID) || !taskName.MatchString(task.Name) || task.Attempt < 1 {
		c.log.Info("the caller's identity cannot be used", "task", task.Name, "uid", task.UID, "attempt", task.Attempt)
		return gitstoreapi.New(gitstoreapi.Forbidden, "this token does not open the repositories of the namespace %s", c.repository.Namespace)
	}
	c.log = c.log.WithValues("task", task.Name, "attempt", task.Attempt)
	c.whose = "task/" + task.UID
	knowCaller(c.request, task.Namespace, c.whose)
	return nil
}

// connectionsOfCaller is how many connections one caller may keep. A git has one.
const connectionsOfCaller = 32

// knowCaller notes whose a request's connection is: of a task or a reader of a
// namespace's code, or, of no namespace, of Clew's server. Who has more open is served
// as well, on one that is closed soon.
func knowCaller(r *http.Request, namespace, name string) {
	connections.Known(r.Context(), connections.Caller{Namespace: namespace, Name: name, Most: connectionsOfCaller})
}

// raise lets the fence know the attempt that calls, and returns the newest one.
func (h *Handler) raise(c *call) (int64, *gitstoreapi.Refusal) {
	if c.caller.Task == nil {
		return 0, nil
	}
	fences, err := h.store.fences(c.repository.Namespace)
	if err == nil {
		var newest int64
		if newest, err = fences.raise(c.request.Context(), *c.caller.Task); err == nil {
			return newest, nil
		}
	}
	if errors.Is(err, errTaskDeleted) {
		return 0, taskDeleted(*c.caller.Task)
	}
	c.log.Error(err, "the fence of the task cannot be raised")
	return 0, h.storageRefusal(err, "the attempt of the task could not be recorded; try again")
}

// mayPush checks what can be known of a push before its content.
func (h *Handler) mayPush(c *call, newest int64) *gitstoreapi.Refusal {
	if c.caller.Task == nil {
		return gitstoreapi.New(gitstoreapi.Forbidden, "only the pod of a task may push; your token allows to read")
	}
	if refused := stale(*c.caller.Task, newest); refused != nil {
		return refused
	}
	if err := h.store.hookReady(); err != nil {
		c.log.Error(err, "pushes cannot be checked and are refused")
		return gitstoreapi.New(gitstoreapi.Unavailable, "the gitstore cannot check pushes at the moment; its log says why")
	}
	return h.room(c)
}

// find makes sure that the repository exists; a task's first access makes it.
func (h *Handler) find(c *call) *gitstoreapi.Refusal {
	exists, err := c.repository.exists()
	if err == nil && !exists {
		if c.caller.Task == nil {
			return gitstoreapi.New(gitstoreapi.NotFound, "the namespace %s has no repository %s", c.repository.Namespace, c.repository.Name)
		}
		if refused := h.room(c); refused != nil {
			return refused
		}
		err = h.store.create(c.request.Context(), c.repository)
	}
	if err != nil {
		c.log.Error(err, "the repository cannot be opened")
		return h.storageRefusal(err, "the repository could not be opened; try again, and see the gitstore's log")
	}
	return nil
}

// fetch answers both requests of a fetch.
func (h *Handler) fetch(w http.ResponseWriter, c *call) *gitstoreapi.Refusal {
	started := time.Now()
	r := c.request
	encoding := r.Header.Get("Content-Encoding")
	if encoding != "" && encoding != "gzip" {
		return gitstoreapi.New(gitstoreapi.BadRequest, "the content encoding %q is not understood; use gzip or none", encoding)
	}
	request := h.backendRequest(c)
	request.env = withConfig(viewOf(c.caller).hide()...)
	used, err := c.repository.use(r.Context())
	if err != nil {
		return h.unavailable(c, err)
	}
	defer used.Close()
	if !c.advertise {
		request.body = http.MaxBytesReader(w, r.Body, maxFetchRequestBytes)
		unseen, refused := h.checkWants(c, &request, encoding == "gzip")
		if refused != nil {
			return refused
		}
		if unseen != "" {
			c.log.Info("an object was asked for that the caller may not see", "object", unseen)
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

// readWhole reads what a fetch says to its end, before git begins to answer: a client
// that does not read until it has sent everything would wait for git, and git for it.
func readWhole(request *backendRequest) *gitstoreapi.Refusal {
	said, err := io.ReadAll(request.body)
	if err != nil {
		return gitstoreapi.New(gitstoreapi.BadRequest, "the request could not be read to its end: %v", err)
	}
	request.body = bytes.NewReader(said)
	return nil
}

// backendRequest fills in what fetches and pushes have in common.
func (h *Handler) backendRequest(c *call) backendRequest {
	return backendRequest{repository: c.repository, service: c.service, advertise: c.advertise, caller: c.caller.Name}
}

// finish deals with the error of a git process: with a refusal if nothing has
// been answered yet, else by breaking the connection off, so that the client
// does not take a half answer for a whole one.
func (h *Handler) finish(w http.ResponseWriter, c *call, err error) *gitstoreapi.Refusal {
	if err == nil {
		return nil
	}
	if recorder, ok := w.(*statusRecorder); ok && recorder.status == 0 {
		return h.unavailable(c, err)
	}
	if c.request.Context().Err() != nil {
		c.log.Info("the client went away", "error", err.Error())
	} else {
		c.log.Error(err, "the request broke off")
	}
	panic(http.ErrAbortHandler)
}

func (h *Handler) unavailable(c *call, err error) *gitstoreapi.Refusal {
	if c.request.Context().Err() != nil {
		c.log.Info("the request ended early", "error", err.Error())
	} else {
		c.log.Error(err, "git failed")
	}
	return h.storageRefusal(err, "git could not answer; try again, and see the gitstore's log")
}

// storageRefusal tells a full volume from other trouble.
func (h *Handler) storageRefusal(err error, message string) *gitstoreapi.Refusal {
	if isFull(err) {
		return gitstoreapi.New(gitstoreapi.VolumeFull, "the gitstore's volume is full; make it larger or delete what is not needed")
	}
	return gitstoreapi.New(gitstoreapi.Unavailable, "%s", message)
}
