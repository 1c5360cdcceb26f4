package gitstore

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/pathmatch"
)

const (
	// diffTime is how long the answer to one query may take: less than its own caller waits.
	diffTime = 20 * time.Second
	// compareTime is how long git may take to find renamed files and to count lines.
	compareTime = 8 * time.Second
)

// serveDiff serves GET /{namespace}/tasks/{uid}/diff: a page of the difference between two
// points of a task, for Clew's server, which has checked what its own caller may read.
func (h *Handler) serveDiff(w *statusRecorder, r *http.Request, namespace, uid string) {
	log := h.log.WithValues("namespace", namespace, "uid", uid, "operation", "diff")
	defer func() {
		h.metrics.requests.WithLabelValues("diff", "exchange", strconv.Itoa(w.status)).Inc()
	}()
	ctx, cancel := context.WithTimeout(r.Context(), diffTime)
	defer cancel()
	c := &call{request: r.WithContext(ctx), log: log}
	diff, refused := h.diff(c, namespace, uid)
	h.answerJSON(w, c, diff, refused)
}

// diff checks a query and answers it.
func (h *Handler) diff(c *call, namespace, uid string) (gitstoreapi.Diff, *gitstoreapi.Refusal) {
	if c.request.Method != http.MethodGet {
		return gitstoreapi.Diff{}, gitstoreapi.New(gitstoreapi.BadRequest, "the method must be GET")
	}
	if refused := h.authenticateServer(c); refused != nil {
		return gitstoreapi.Diff{}, refused
	}
	query, refused := diffQuery(c.request.URL.Query())
	if refused != nil {
		return gitstoreapi.Diff{}, refused
	}
	release, refused := h.slot(c.request.Context(), h.fetches, namespace)
	if refused != nil {
		return gitstoreapi.Diff{}, refused
	}
	defer release()
	repository, err := h.store.repositoryOf(namespace, uid)
	if refusal := (*gitstoreapi.Refusal)(nil); errors.As(err, &refusal) {
		return gitstoreapi.Diff{}, refusal
	}
	if err != nil {
		return gitstoreapi.Diff{}, h.unavailable(c, err)
	}
	// Deletions wait, so that no object disappears meanwhile.
	used, err := repository.use(c.request.Context())
	if err != nil {
		return gitstoreapi.Diff{}, h.unavailable(c, err)
	}
	defer used.Close()
	started := time.Now()
	defer func() { h.store.git.effort.charge(namespace, time.Since(started)) }()
	d := differ{ctx: c.request.Context(), git: h.store.gitFor(*repository), path: repository.Path, held: []*os.File{used}, uid: uid}
	page, err := d.page(query)
	if refusal := (*gitstoreapi.Refusal)(nil); errors.As(err, &refusal) {
		return page, refusal
	}
	if err != nil {
		return page, h.diffRefusal(c, *repository, err)
	}
	return page, nil
}

// diffRefusal returns the refusal for an error of git.
func (h *Handler) diffRefusal(c *call, repository Repository, err error) *gitstoreapi.Refusal {
	if errors.Is(c.request.Context().Err(), context.DeadlineExceeded) {
		c.log.Info("a difference took too long", "error", err.Error())
		return gitstoreapi.New(gitstoreapi.Unavailable, "comparing the two takes too long: restrict the difference with paths")
	}
	if damaged.MatchString(err.Error()) && c.request.Context().Err() == nil {
		c.log.Error(err, "objects of a difference are damaged")
		h.verified.suspect(repository, err.Error())
		return gitstoreapi.New(gitstoreapi.Damaged, "objects of one of the two checkpoints are missing or damaged in the gitstore, so that they cannot be compared: compare others")
	}
	return h.unavailable(c, err)
}

// pagedQuery is a query whose values were checked.
type pagedQuery struct {
	gitstoreapi.DiffQuery
	paths pathmatch.Set
}

// diffQuery reads and checks the parameters of a query.
func diffQuery(values url.Values) (pagedQuery, *gitstoreapi.Refusal) {
	bad := func(format string, args ...any) (pagedQuery, *gitstoreapi.Refusal) {
		return pagedQuery{}, gitstoreapi.New(gitstoreapi.BadRequest, format, args...)
	}
	q := pagedQuery{DiffQuery: gitstoreapi.DiffQuery{
		From: values.Get("from"), To: values.Get("to"), Paths: values["path"], Format: gitstoreapi.DiffFormat(values.Get("format")),
		FromCommit: values.Get("fromCommit"), ToCommit: values.Get("toCommit"), Listing: gitstoreapi.Listing(values.Get("listing")), Base: values.Get("base"),
		Limit: gitstoreapi.DefaultDiffFiles,
	}}
	var err error
	for name, flag := range map[string]*bool{"ignored": &q.Ignored, "restored": &q.Restored} {
		if text := values.Get(name); text != "" {
			if *flag, err = strconv.ParseBool(text); err != nil {
				return bad("%s is %q; it must be true or false", name, text)
			}
		}
	}
	if q.paths, err = pathmatch.New(q.Paths); err != nil {
		return bad("%v", err)
	}
	if text := values.Get("limit"); text != "" {
		if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 1 {
			return bad("limit is %q; it must be a number of files, at least 1", text)
		}
	}
	q.Limit = min(q.Limit, gitstoreapi.MaxDiffFiles)
	if text := values.Get("after"); text != "" {
		if q.After, err = strconv.Atoi(text); err != nil || q.After < 0 {
			return bad("after is %q; it must be a number of files", text)
		}
	}
	if !slices.Contains([]gitstoreapi.DiffFormat{"", gitstoreapi.DiffHunks, gitstoreapi.DiffPatch}, q.Format) {
		return bad("format is %q; it must be hunks, patch, or left out", q.Format)
	}
	return q, nil
}

// repositoryOf returns the repository of a namespace that has checkpoints of a task. A pod may
// push to any repository of its namespace: if it used several, nobody could tell which one its
// checkpoints are restored from.
func (s *Store) repositoryOf(namespace, uid string) (*Repository, error) {
	repositories, err := s.namespaceRepositories(namespace)
	if err != nil {
		return nil, err
	}
	var found *Repository
	for _, repository := range repositories {
		has, err := repository.hasRefs(checkpointRefs + uid + "/")
		switch {
		case err != nil:
			return nil, err
		case has && found != nil:
			return nil, gitstoreapi.New(gitstoreapi.Ambiguous, "the task with UID %s has checkpoints in several repositories, %s and %s, so that it is unclear which ones to compare", uid, found.Name, repository.Name)
		case has:
			found = &repository
		}
	}
	if found == nil {
		return nil, gitstoreapi.New(gitstoreapi.NotFound, "the gitstore has no checkpoint of the task with UID %s", uid)
	}
	return found, nil
}
