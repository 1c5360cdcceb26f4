package gitstore

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

// verifyTime is how long one verification may take.
const verifyTime = 14 * time.Minute

// serveVerification serves GET /{namespace}/tasks/{uid}/verify?checkpoint=<number>&since=<time>:
// whether every object of a checkpoint is as it was stored, for Clew's server. What was verified
// before since, if that is given, is read again, at most once in rereadPause.
func (h *Handler) serveVerification(w *statusRecorder, r *http.Request, namespace, uid string) {
	log := h.log.WithValues("namespace", namespace, "uid", uid, "operation", "verify")
	defer func() {
		h.metrics.requests.WithLabelValues("verify", "exchange", strconv.Itoa(w.status)).Inc()
	}()
	ctx, cancel := context.WithTimeout(r.Context(), verifyTime)
	defer cancel()
	c := &call{request: r.WithContext(ctx), log: log}
	found, refused := h.verification(c, namespace, uid)
	h.answerJSON(w, c, found, refused)
}

// verification checks a request for a verification and carries it out.
func (h *Handler) verification(c *call, namespace, uid string) (gitstoreapi.Verification, *gitstoreapi.Refusal) {
	var none gitstoreapi.Verification
	if c.request.Method != http.MethodGet {
		return none, gitstoreapi.New(gitstoreapi.BadRequest, "the method must be GET")
	}
	if refused := h.authenticateServer(c); refused != nil {
		return none, refused
	}
	query := c.request.URL.Query()
	number, err := strconv.ParseInt(query.Get("checkpoint"), 10, 32)
	if err != nil || number < 1 {
		return none, gitstoreapi.New(gitstoreapi.BadRequest, "checkpoint must be the number of a checkpoint")
	}
	since, err := time.Parse(time.RFC3339Nano, query.Get("since"))
	if err != nil && query.Get("since") != "" {
		return none, gitstoreapi.New(gitstoreapi.BadRequest, "since must be a time, such as 2006-01-02T15:04:05Z")
	}
	repository, err := h.store.repositoryOf(namespace, uid)
	if refusal := (*gitstoreapi.Refusal)(nil); errors.As(err, &refusal) {
		return none, refusal
	}
	if err != nil {
		return none, h.unavailable(c, err)
	}
	c.repository = *repository
	// A repository is verified by one request at a time: the next one need not read again what
	// this one reads.
	known, release, err := h.verified.take(c.request.Context(), *repository, since)
	if err != nil {
		return none, h.unavailable(c, err)
	}
	defer release()
	freeSlot, refused := h.slot(c.request.Context(), h.fetches, namespace)
	if refused != nil {
		return none, refused
	}
	defer freeSlot()
	v := verifier{ctx: c.request.Context(), store: h.store, git: h.store.gitFor(*repository), repository: *repository, known: known}
	found, err := h.healed(c, &v, uid, number)
	if err != nil {
		return none, h.unavailable(c, err)
	}
	for _, d := range found.Damage[:min(len(found.Damage), 5)] {
		c.log.Info("an object of a checkpoint is damaged", "checkpoint", number, "repository", repository.Name, "object", d.Object, "damage", d.String())
	}
	return found, nil
}

// verifier verifies checkpoints of a repository.
type verifier struct {
	ctx        context.Context
	store      *Store
	git        git
	repository Repository
	known      *verifiedParts
}

// checkpoint verifies a checkpoint. Git checked each object as it arrived, and packs never
// change: as long as each file of the repository has its checksum or its object's id, and no
// object is missing, every object is as it was stored. Otherwise the objects themselves are read.
func (v *verifier) checkpoint(uid string, number int64) (gitstoreapi.Verification, error) {
	found, err := v.tips(uid, number)
	if err != nil || len(found.Damage) > 0 {
		return found, err
	}
	sound, err := v.files()
	if err != nil {
		return found, err
	}
	if sound {
		if sound, err = v.complete(found.Commit, found.State); err != nil {
			return found, err
		}
	}
	if !sound {
		if found.Damage, err = v.damage(found.Commit, found.State); err != nil {
			return found, err
		}
	}
	if len(found.Damage) == 0 {
		v.known.add(found.Commit, found.State)
		return found, nil
	}
	// The task may have been deleted meanwhile, and with it the objects.
	again, err := v.tips(uid, number)
	if err == nil && (again.Commit != found.Commit || again.State != found.State) {
		return again, nil
	}
	return found, err
}

// tips returns the commits of a checkpoint. They need not exist.
func (v *verifier) tips(uid string, number int64) (gitstoreapi.Verification, error) {
	var found gitstoreapi.Verification
	for _, ref := range []struct {
		name, part string
		into       *string
	}{{refname.Code(uid, number), gitstoreapi.PartCode, &found.Commit}, {refname.State(uid, number), gitstoreapi.PartState, &found.State}} {
		id, err := v.ref(ref.name)
		if err != nil {
			return found, err
		}
		if id == "" {
			found.Damage = append(found.Damage, gitstoreapi.Damage{Part: ref.part, Kind: "commit", What: "is not in the gitstore"})
		}
		*ref.into = id
	}
	return found, nil
}

// ref returns what a ref points to; "" if it does not exist.
func (v *verifier) ref(name string) (string, error) {
	out, err := v.git.run(v.ctx, v.repository.Path, "--git-dir=.", "rev-parse", "--verify", "--quiet", name)
	if err != nil && (v.ctx.Err() != nil || !saysDamaged(err)) {
		return "", err
	}
	return strings.TrimSpace(out), nil
}
