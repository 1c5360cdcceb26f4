package gitstore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/gitstore/refusal"
)

// room refuses what would bring content when there is no room for any. How much
// may come in is decided while it does (see intake).
func (h *Handler) room(c *call) *refusal.Refusal {
	free, err := h.free()
	if err != nil {
		return h.unavailable(c, err)
	}
	if free <= h.limits.FreeBytes {
		return refusal.New(refusal.VolumeFull, "the gitstore's volume has %d bytes left, of which %d are kept free; make it larger or delete what is not needed",
			free, h.limits.FreeBytes)
	}
	if h.limits.NamespaceBytes <= 0 {
		return nil
	}
	repositories, err := h.store.namespaceRepositories(c.repository.Namespace)
	if err != nil {
		return h.unavailable(c, err)
	}
	used, err := h.usage.namespace(repositories, h.limits.NamespaceBytes)
	if err != nil {
		return h.unavailable(c, err)
	}
	if used >= h.limits.NamespaceBytes {
		return refusal.New(refusal.QuotaExceeded, "the repositories of the namespace %s take %d bytes, and its quota is %d; %s",
			c.repository.Namespace, used, h.limits.NamespaceBytes, makeRoom)
	}
	return nil
}

// makeRoom says what helps a namespace whose quota is used up. A Task that is
// deleted leaves its code there, with its history.
const makeRoom = "delete Tasks that are not needed and then their histories (kubectl clew task delete-history NAME), or ask for a larger quota (gitstore.namespaceQuotaBytes)"

// namespaceRepositories lists the repositories of one namespace.
func (s *Store) namespaceRepositories(namespace string) ([]Repository, error) {
	entries, err := os.ReadDir(s.namespace(namespace))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []Repository
	for _, entry := range entries {
		name, isRepository := strings.CutSuffix(entry.Name(), ".git")
		if isRepository && repositoryName.MatchString(name) {
			found = append(found, s.repository(namespace, name))
		}
	}
	return found, nil
}

// push answers both requests of a push.
func (h *Handler) push(w http.ResponseWriter, c *call) *refusal.Refusal {
	request := h.backendRequest(c)
	task := *c.caller.Task
	files, refused := h.pushFiles(c)
	if refused != nil {
		return refused
	}
	defer closeAll(files)
	request.files = files
	shown, first := viewOf(c.caller), false
	if c.advertise {
		shown, first = h.advertised(c)
	}
	fences, err := h.store.fences(c.repository.Namespace)
	if err != nil {
		return h.unavailable(c, err)
	}
	request.env = append(withConfig(shown.hide()...), hookEnvironment(task, fences, h.store.git)...)
	if c.advertise {
		return h.advertise(w, c, request, first)
	}
	return h.receive(w, c, request)
}

// pushFiles opens the files that git inherits, in the order of their
// descriptors: the lock of the task's fence, which the hook will take, and the
// lock of the repository, taken.
func (h *Handler) pushFiles(c *call) ([]*os.File, *refusal.Refusal) {
	fences, err := h.store.fences(c.repository.Namespace)
	if err != nil {
		return nil, h.unavailable(c, err)
	}
	fence, err := openLock(fences.lock(c.caller.Task.UID))
	if err != nil {
		return nil, h.unavailable(c, err)
	}
	used, err := c.repository.use(c.request.Context())
	if err != nil {
		closeAll([]*os.File{fence})
		return nil, h.unavailable(c, err)
	}
	return []*os.File{fenceDescriptor - 3: fence, useDescriptor - 3: used}, nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		_ = file.Close() // nothing was written
	}
}

// advertised is what the list of refs that a pusher gets first shows. A task that
// has pushed before needs only its own refs to find out what to send. Before that
// it sees those of its source too, whose objects a fork must not send again.
func (h *Handler) advertised(c *call) (v view, first bool) {
	v = viewOf(c.caller)
	own := checkpointRefs + c.caller.Task.UID
	if c.repository.hasLoose(own+"/code") && c.repository.hasLoose(own+"/state") {
		return view{folders: v.folders[:2]}, false // as mostly, and git need not run
	}
	refs, err := h.store.gitFor(c.repository).run(c.request.Context(), c.repository.Path, "--git-dir=.", "for-each-ref", "--format=%(refname)", own+"/")
	if err != nil {
		c.log.Error(err, "the task's refs cannot be listed")
		return v, true
	}
	if !strings.Contains(refs, own+"/code/") || !strings.Contains(refs, own+"/state/") {
		return v, true
	}
	return view{folders: v.folders[:2]}, false
}

// hasLoose reports whether there is a ref right in a folder that has not been packed.
func (r Repository) hasLoose(folder string) bool {
	entries, err := os.ReadDir(filepath.Join(r.Path, folder))
	return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return e.Type().IsRegular() && filepath.Ext(e.Name()) != ".lock"
	})
}

// advertise answers the first request of a push.
func (h *Handler) advertise(w http.ResponseWriter, c *call, request backendRequest, first bool) *refusal.Refusal {
	var based []string
	if first {
		var err error
		if based, err = bases(c.request.Context(), h.store.gitFor(c.repository), c.repository.Path); err != nil {
			c.log.Error(err, "what tasks are based on cannot be listed; the push takes longer")
		}
	}
	err := h.store.serveBackend(c.request.Context(), request, func(answer *bufio.Reader) error {
		writeHeader(w, request)
		if _, err := w.Write(announcement(request.service)); err != nil {
			return err
		}
		return advertiseBases(w, answer, based)
	})
	return h.finish(w, c, err)
}

// branches refuses a push after which the task would have too many branches.
func (h *Handler) branches(c *call) *refusal.Refusal {
	more := newBranches(c.head.Commands)
	if more == 0 {
		return nil
	}
	refs, err := h.store.gitFor(c.repository).run(c.request.Context(), c.repository.Path, "--git-dir=.", "for-each-ref", "--format=x",
		"--count="+strconv.Itoa(maxBranchesOfTask), branchRefs+c.caller.Task.Name+"/")
	if err != nil {
		return h.unavailable(c, err)
	}
	if has := strings.Count(refs, "x"); has+more > maxBranchesOfTask {
		return refusal.New(refusal.RefNotAllowed, "the task %s has %d branches, and may have %d", c.caller.Task.Name, has, maxBranchesOfTask)
	}
	return nil
}

// receive takes in what a push brings.
func (h *Handler) receive(w http.ResponseWriter, c *call, request backendRequest) *refusal.Refusal {
	started := time.Now()
	if refused := h.begin(w, c); refused != nil {
		return refused
	}
	if refused := checkCommands(*c.caller.Task, c.head.Commands); refused != nil {
		return refused
	}
	if refused := h.branches(c); refused != nil {
		return refused
	}
	in := h.newIntake(c)
	request.env = append(request.env, hookObjects+"="+strconv.FormatUint(uint64(c.head.Objects), 10))
	request.body = io.MultiReader(bytes.NewReader(c.head.Raw), in)

	h.beforeGit()
	var report []byte
	err := h.store.serveBackend(c.request.Context(), request, func(answer *bufio.Reader) (err error) {
		writeHeader(w, request)
		report, err = copyUntilReport(w, answer, c.head.SideBand, in.cut)
		return err
	})
	h.metrics.received.Add(float64(in.total.Load()))
	in.finish(err == nil && stored(report))
	if refused := in.refused.Load(); refused != nil {
		return h.cutOff(w, c, refused)
	}
	if err == nil {
		err = c.repository.makeDurable(*c.caller.Task)
	}
	if err != nil {
		h.metrics.pushes.WithLabelValues("failed").Inc()
		return h.finish(w, c, err)
	}
	h.acknowledge(w, c, h.overtaken(c, report), started)
	return nil
}

// cutOff ends a push whose content did not come in as a whole. What git says of
// that is not worth telling.
func (h *Handler) cutOff(w http.ResponseWriter, c *call, refused *refusal.Refusal) *refusal.Refusal {
	if recorder, ok := w.(*statusRecorder); ok && recorder.status == 0 || !c.head.SideBand {
		return refused
	}
	h.metrics.pushes.WithLabelValues("refused").Inc()
	h.metrics.refusals.WithLabelValues(string(refused.Reason)).Inc()
	c.log.Info("refused", "reason", refused.Reason, "message", refused.Message)
	h.answer(w, c, func() { _, _ = w.Write(errorPacket(refused)) }) // the client may be gone
	return nil
}

// begin reads the beginning of a push, once.
func (h *Handler) begin(w http.ResponseWriter, c *call) *refusal.Refusal {
	if c.head != nil {
		return nil
	}
	c.head = &pushHead{}
	if encoding := c.request.Header.Get("Content-Encoding"); encoding != "" {
		return refusal.New(refusal.BadRequest, "a push must not be encoded as %q; git push sends it as it is", encoding)
	}
	// Git may answer before it has read everything.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		return h.unavailable(c, err)
	}
	c.duplex = true
	head, err := readPushHead(c.request.Body)
	if err != nil {
		return refusal.New(refusal.BadRequest, "%v", err)
	}
	c.head = &head
	return nil
}

// acknowledge sends git's report of a push that is durable now, if it was not
// refused.
func (h *Handler) acknowledge(w http.ResponseWriter, c *call, report []byte, started time.Time) {
	h.answer(w, c, func() {
		if _, err := w.Write(report); err != nil {
			c.log.Info("the client did not wait for the report", "error", err.Error())
		}
	})
	if len(c.head.Commands) == 0 {
		return
	}
	seconds := time.Since(started).Seconds()
	if !stored(report) {
		h.metrics.pushes.WithLabelValues("refused").Inc()
		c.log.Info("push refused by git", "refs", len(c.head.Commands), "seconds", seconds)
		return
	}
	h.metrics.pushes.WithLabelValues("stored").Inc()
	h.metrics.pushSeconds.Observe(seconds)
	c.log.Info("push stored", "refs", len(c.head.Commands), "first", c.head.Commands[0].Ref, "seconds", seconds)
	h.pushed(c.repository)
}

// refuseInside refuses a push whose content is on its way, and reports whether
// it did. Git shows nothing of a failed request's body, so that this is a good
// answer with an error in it: on the error band, which ends the client with
// the sentence.
func (h *Handler) refuseInside(w http.ResponseWriter, c *call, refused *refusal.Refusal) bool {
	if !c.push() || c.advertise || c.caller.Task == nil {
		return false
	}
	if h.begin(w, c) != nil || !c.head.SideBand {
		return false
	}
	h.answer(w, c, func() {
		w.Header().Set("Content-Type", "application/x-git-receive-pack-result")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(errorPacket(refused)) // the client may be gone
	})
	return true
}

// errorPacket is a refusal on the error band, which ends a client.
func errorPacket(refused *refusal.Refusal) []byte {
	const errorBand = 3
	return packet(append([]byte{errorBand}, refused.Error()+"\n"...))
}

// drainPatience is how long a push that is read for nothing waits for its namespace's turn,
// all in all: less than the minute after which git gives up a connection that stands still.
const drainPatience = 30 * time.Second

// answer lets a call be answered once the client has sent all of its push, since many a
// client reads no answer while it sends. Where that takes too long it is answered all the
// same and, if it keeps no place meanwhile, given time to see it: on a connection that
// breaks off, what was not read of an answer is lost.
func (h *Handler) answer(w http.ResponseWriter, c *call, write func()) {
	whole := h.drain(c.request.Context(), c, h.drainPatience)
	write()
	if whole || c.atWork || http.NewResponseController(w).Flush() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(c.request.Context(), drainPatience)
	defer cancel()
	h.drain(ctx, c, drainPatience)
}

// drain reads what a client still sends of a push, and reports whether it came to the end
// of it. A namespace that uses more than its part is read from slowly, unless it keeps a
// place and locks meanwhile, and not any more when it has waited for as long as patience.
func (h *Handler) drain(ctx context.Context, c *call, patience time.Duration) (whole bool) {
	const limit = 1 << 30
	if !c.duplex {
		return true
	}
	effort, namespace := h.store.git.effort, c.repository.Namespace
	buffer := make([]byte, 32<<10)
	var n int64
	var waited time.Duration
	var err error
	for err == nil && n < limit {
		reads := 0
		for ; err == nil && reads < drainStep; reads++ {
			var read int
			read, err = c.request.Body.Read(buffer)
			n += int64(read)
		}
		effort.charge(namespace, time.Duration(reads)*readTime)
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && !c.atWork {
			began := time.Now()
			waiting, cancel := context.WithTimeout(ctx, patience-waited)
			err = effort.turn(waiting, namespace)
			cancel()
			waited += time.Since(began)
		}
	}
	if !errors.Is(err, io.EOF) {
		c.log.Info("a push that is refused was not read to its end", "bytes", n, "error", err)
	}
	return errors.Is(err, io.EOF)
}

// isFull reports whether an error, perhaps of a git process, is a full volume.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) ||
		err != nil && strings.Contains(err.Error(), "No space left on device")
}
