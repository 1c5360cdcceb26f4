package gitstore

import (
	"bufio"
	"bytes"
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

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

// checkSpace refuses a push when there is no space for any content. How much a push may add is
// checked while it is received (see intake).
func (h *Handler) checkSpace(c *call) *gitstoreapi.Refusal {
	free, err := h.free()
	if err != nil {
		return h.unavailable(c, err)
	}
	if free <= h.limits.FreeBytes {
		return gitstoreapi.New(gitstoreapi.VolumeFull, "the gitstore's volume has %d bytes free, of which %d are reserved; enlarge the volume or delete histories that are not needed",
			free, h.limits.FreeBytes)
	}
	quota, refused := h.quota(c)
	if refused != nil || quota <= 0 {
		return refused
	}
	c.quota = quota
	repositories, err := h.store.namespaceRepositories(c.repository.Namespace)
	if err != nil {
		return h.unavailable(c, err)
	}
	used, err := h.usage.namespace(repositories, quota)
	if err != nil {
		return h.unavailable(c, err)
	}
	if used >= quota {
		return gitstoreapi.New(gitstoreapi.QuotaExceeded, "the repositories of the namespace %s take %d bytes, and its quota is %d%s; %s",
			c.repository.Namespace, used, h.limits.NamespaceBytes, h.beside(quota), quotaAdvice)
	}
	return nil
}

// beside says, behind the quota of a namespace, that what others have left does not count against it;
// how much that is is not told.
func (h *Handler) beside(quota int64) string {
	if quota == h.limits.NamespaceBytes {
		return ""
	}
	return " beside what earlier namespaces of this name have left"
}

// quotaAdvice tells users of a namespace what to do when its quota is used up. Deleting a Task
// keeps its code, with its history.
const quotaAdvice = "delete Tasks that are not needed and then their histories (kubectl clew task delete-history NAME), or ask for a larger quota (gitstore.namespaceQuotaBytes)"

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

// push serves both requests of a push.
func (h *Handler) push(w http.ResponseWriter, c *call) *gitstoreapi.Refusal {
	request := h.backendRequest(c)
	task := *c.caller.Task
	files, refused := h.pushFiles(c)
	if refused != nil {
		return refused
	}
	defer closeAll(files)
	request.files = files
	shown, first := viewOf(task), false
	if c.advertise {
		shown, first = h.advertised(c)
	}
	fences, err := h.store.fences(c.repository.Namespace)
	if err != nil {
		return h.unavailable(c, err)
	}
	request.env = append(withConfig(shown.hide()...), hookEnvironment(task, fences, h.store.git)...)
	if c.advertise {
		return h.advertise(w, c, fences, request, first)
	}
	return h.receive(w, c, request)
}

// pushFiles opens the files that git inherits, in the order of their
// descriptors: the lock of the task's fence, which the hook will take, and the
// lock of the repository, taken.
func (h *Handler) pushFiles(c *call) ([]*os.File, *gitstoreapi.Refusal) {
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

// closeAll closes lock files, which releases their locks.
func closeAll(files []*os.File) {
	for _, file := range files {
		_ = file.Close() // nothing was written to it
	}
}

// advertised returns the view that the list of refs shows to a pusher, and whether this is
// the task's first push. A task that has pushed before needs only its own refs to work out
// what to send. Before that it also sees those of its source, so that a fork does not send
// their objects again.
func (h *Handler) advertised(c *call) (v view, first bool) {
	v = viewOf(*c.caller.Task)
	own := checkpointRefs + c.caller.Task.UID
	if c.repository.hasLooseRef(own+"/code") && c.repository.hasLooseRef(own+"/state") {
		return view{folders: v.folders[:2]}, false // the usual case, without running git
	}
	refs, err := h.store.gitFor(c.repository).run(c.request.Context(), c.repository.Path, "--git-dir=.", "for-each-ref", "--format=%(refname)", own+"/")
	if err != nil {
		c.log.Error(err, "cannot list the task's refs")
		return v, true
	}
	if !strings.Contains(refs, own+"/code/") || !strings.Contains(refs, own+"/state/") {
		return v, true
	}
	return view{folders: v.folders[:2]}, false
}

// hasLooseRef reports whether a folder directly contains a ref that has not been packed.
func (r Repository) hasLooseRef(folder string) bool {
	entries, err := os.ReadDir(filepath.Join(r.Path, folder))
	return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return e.Type().IsRegular() && filepath.Ext(e.Name()) != ".lock"
	})
}

// advertise serves the first request of a push, for the list of refs.
func (h *Handler) advertise(w http.ResponseWriter, c *call, fences fences, request backendRequest, first bool) *gitstoreapi.Refusal {
	var based []string
	if first {
		owned, err := fences.mayBuildOn(c.caller.NamespaceUID)
		if err == nil {
			based, err = bases(c.request.Context(), h.store.gitFor(c.repository), c.repository.Path, owned)
		}
		if err != nil {
			c.log.Error(err, "cannot list the commits that tasks are based on; the push will take longer")
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

// checkBranches refuses a push after which the task would have too many branches.
func (h *Handler) checkBranches(c *call, commands []Command) *gitstoreapi.Refusal {
	more := newBranches(commands)
	if more == 0 {
		return nil
	}
	refs, err := h.store.gitFor(c.repository).run(c.request.Context(), c.repository.Path, "--git-dir=.", "for-each-ref", "--format=x",
		"--count="+strconv.Itoa(maxBranchesPerTask), refname.BranchesOf(c.caller.Task.Name))
	if err != nil {
		return h.unavailable(c, err)
	}
	if has := strings.Count(refs, "x"); has+more > maxBranchesPerTask {
		return gitstoreapi.New(gitstoreapi.RefNotAllowed, "the task %s has %d branches, and may have at most %d", c.caller.Task.Name, has, maxBranchesPerTask)
	}
	return nil
}

// receive serves the second request of a push, with its content.
func (h *Handler) receive(w http.ResponseWriter, c *call, request backendRequest) *gitstoreapi.Refusal {
	started := time.Now()
	head, refused := h.readHead(w, c)
	if refused != nil {
		return refused
	}
	if refused := checkCommands(*c.caller.Task, head.Commands); refused != nil {
		return refused
	}
	if refused := h.checkBranches(c, head.Commands); refused != nil {
		return refused
	}
	in := h.newIntake(c, head)
	request.env = append(request.env, hookObjects+"="+strconv.FormatUint(uint64(head.Objects), 10))
	request.body = io.MultiReader(bytes.NewReader(head.Raw), in)

	h.beforeGit()
	var report []byte
	err := h.store.serveBackend(c.request.Context(), request, func(answer *bufio.Reader) (err error) {
		setHeader(w, request)
		report, err = copyUntilReport(w, answer, head.SideBand, in.cut)
		return err
	})
	received, refused := in.finish(err == nil && stored(report))
	h.metrics.received.Add(float64(received))
	if refused != nil && !(err == nil && unpacked(report)) {
		// Git's report on truncated content would only mislead the client.
		h.metrics.pushes.WithLabelValues("refused").Inc()
		return refused
	}
	if err == nil {
		err = c.repository.makeDurable(*c.caller.Task)
	}
	if err != nil {
		h.metrics.pushes.WithLabelValues("failed").Inc()
		return h.finish(w, c, err)
	}
	if stored(report) {
		h.countReplaced(c, head, received)
	}
	// Only what the hook says is about stored objects. The rest is about those of the push.
	if !stored(report) && unpacked(report) && bytes.Contains(report, []byte(gitstoreapi.DamagedObjects)) {
		h.verified.of(c.repository).suspected.Store(true)
	}
	h.recordPush(c, head, stored(report), time.Since(started))
	c.decided, c.answer = true, h.overtaken(c, head, report)
	return nil
}

// recordPush logs and counts a push that git has stored or refused, and queues the repository of
// a stored one for maintenance.
func (h *Handler) recordPush(c *call, head pushHead, stored bool, took time.Duration) {
	if len(head.Commands) == 0 {
		return
	}
	if !stored {
		h.metrics.pushes.WithLabelValues("refused").Inc()
		c.log.Info("push refused by git", "refs", len(head.Commands), "seconds", took.Seconds())
		return
	}
	h.metrics.pushes.WithLabelValues("stored").Inc()
	h.metrics.pushSeconds.Observe(took.Seconds())
	c.log.Info("push stored", "refs", len(head.Commands), "first", head.Commands[0].Ref, "seconds", took.Seconds())
	h.onPush(c.repository)
}

// readHead reads the head of a push.
func (h *Handler) readHead(w http.ResponseWriter, c *call) (pushHead, *gitstoreapi.Refusal) {
	c.headRead = true
	if encoding := c.request.Header.Get("Content-Encoding"); encoding != "" {
		return pushHead{}, gitstoreapi.New(gitstoreapi.BadRequest, "a push must not have the content encoding %q; git push sends none", encoding)
	}
	// Git may respond before it has read everything.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		return pushHead{}, h.unavailable(c, err)
	}
	c.duplex = true
	// In full duplex, the server does not check that the request was read to its end, and
	// would take the rest for the next request.
	w.Header().Set("Connection", "close")
	head, err := readPushHead(c.request.Body)
	if err != nil {
		return pushHead{}, gitstoreapi.New(gitstoreapi.BadRequest, "%v", err)
	}
	c.sideBand = head.SideBand
	return head, nil
}

// isFull reports whether an error, of this process or of git, means that the volume is full.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) ||
		err != nil && strings.Contains(err.Error(), "No space left on device")
}
