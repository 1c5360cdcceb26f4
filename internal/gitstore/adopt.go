package gitstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/refname"
)

// serveAdoption serves POST /{namespace}/tasks/{uid}/adopt?former=<uid>&namespaceUID=<uid>: it shuts
// the fence of the former task, and gives the task a ref for each of the former one's checkpoints,
// in all repositories of the namespace, as far as there is room for them. So it does with those of the
// tasks that had adopted the former one already, of which a restored older copy of the history does not
// know, unless the task has begun. The former refs stay, for
// tasks that started from them, and go with the deletion of the adopting task. namespaceUID, which is
// optional, says whose both tasks are if that is not recorded. The request may be repeated.
func (h *Handler) serveAdoption(w *statusRecorder, r *http.Request, namespace, uid string) {
	former, owner := r.URL.Query().Get("former"), r.URL.Query().Get("namespaceUID")
	log := h.log.WithValues("namespace", namespace, "uid", uid, "operation", "adopt", "former", former)
	defer func() {
		h.metrics.requests.WithLabelValues("adopt-task", "exchange", strconv.Itoa(w.status)).Inc()
	}()
	c := &call{request: r, log: log}
	adoption, refused := h.adoption(c, namespace, gitstoreapi.TaskAdoption{UID: uid, Former: former, NamespaceUID: owner})
	h.answerJSON(w, c, adoption, refused)
}

// adoption checks a request to adopt checkpoints and carries it out.
func (h *Handler) adoption(c *call, namespace string, a gitstoreapi.TaskAdoption) (gitstoreapi.Adoption, *gitstoreapi.Refusal) {
	r := c.request
	if r.Method != http.MethodPost {
		return gitstoreapi.Adoption{}, gitstoreapi.New(gitstoreapi.BadRequest, "the method must be POST")
	}
	if refused := h.authenticateAdopter(c); refused != nil {
		return gitstoreapi.Adoption{}, refused
	}
	if !taskUID.MatchString(a.Former) || a.Former == a.UID {
		return gitstoreapi.Adoption{}, gitstoreapi.New(gitstoreapi.BadRequest, "former must be the UID of another task")
	}
	if a.NamespaceUID != "" && !taskUID.MatchString(a.NamespaceUID) {
		return gitstoreapi.Adoption{}, gitstoreapi.New(gitstoreapi.BadRequest, "namespaceUID must be the UID of a namespace")
	}
	release, refused := h.slot(r.Context(), h.fetches, "")
	if refused != nil {
		return gitstoreapi.Adoption{}, refused
	}
	defer release()
	adoption, err := h.adoptTask(c, namespace, a)
	if refused := (*gitstoreapi.Refusal)(nil); errors.As(err, &refused) {
		c.log.Info("the adoption was refused", "reason", refused.Reason)
		return gitstoreapi.Adoption{}, refused
	}
	if err != nil {
		c.log.Error(err, "the adoption failed")
		return gitstoreapi.Adoption{}, h.storageRefusal(err, "the checkpoints of the former task could not be given to the new one; try again, and see the gitstore's log")
	}
	c.log.Info("a task adopted the checkpoints of a former one", "refs", adoption.Refs, "unknown", adoption.Unknown)
	return adoption, nil
}

// authenticateAdopter refuses every caller but Clew's server and manager.
func (h *Handler) authenticateAdopter(c *call) *gitstoreapi.Refusal {
	return h.authenticateAs(c, "server", func(ctx context.Context, token string) (Caller, error) {
		caller, err := h.authenticator.AuthenticateServer(ctx, token)
		if errors.Is(err, podidentity.ErrForbidden) {
			return h.authenticator.AuthenticateManager(ctx, token)
		}
		return caller, err
	})
}

// adoptTask gives the former task's checkpoints to another one, and those of the tasks that had adopted
// them since, if the history was restored from a copy that does not know these.
func (h *Handler) adoptTask(c *call, namespace string, a gitstoreapi.TaskAdoption) (adoption gitstoreapi.Adoption, err error) {
	fences, err := h.store.fences(namespace)
	if err != nil {
		return adoption, err
	}
	// These first: once the former one's are marked as adopted, nobody asks for them again.
	forgotten, err := fences.adopters(a)
	if err != nil {
		return adoption, err
	}
	for _, former := range forgotten {
		c.log.Info("a task adopts the checkpoints of one that the history does not know", "former", former)
		of := gitstoreapi.TaskAdoption{UID: a.UID, Former: former, NamespaceUID: a.NamespaceUID}
		if _, err := h.adoptFrom(c, namespace, fences, of, &adoption); err != nil {
			return adoption, err
		}
	}
	known, err := h.adoptFrom(c, namespace, fences, a, &adoption)
	adoption.Unknown = adoption.Refs == 0 && !known
	return adoption, err
}

// adoptFrom gives the checkpoints of one former task to another one, and adds up how many refs that
// has for them. It returns whether the former one is known.
func (h *Handler) adoptFrom(c *call, namespace string, fences fences, a gitstoreapi.TaskAdoption, adoption *gitstoreapi.Adoption) (known bool, err error) {
	ctx := c.request.Context()
	// No checkpoint may be added to what is adopted.
	if _, err := fences.shut(ctx, a.Former); err != nil {
		return false, err
	}
	if err := fences.adopt(ctx, a.UID, a.Former, a.NamespaceUID); err != nil {
		return false, err
	}
	// What was deleted meanwhile must not come back.
	if record, err := fences.read(a.UID); err != nil || record.Deleted {
		return true, err
	}
	// Read before its refs are listed: what it says that the former task has adopted is among these.
	former, err := fences.read(a.Former)
	if err != nil {
		return false, err
	}
	recorded, err := h.store.namespaceOf(namespace, a.UID)
	if err != nil {
		return false, err
	}
	// Whose quota it is: the newest namespace whose histories these are.
	c.caller.NamespaceUID = cmp.Or(a.NamespaceUID, recorded)
	repositories, err := h.store.namespaceRepositories(namespace)
	if err != nil {
		return false, err
	}
	for _, c.repository = range repositories {
		refs, err := h.adoptRefs(c, a.UID, a.Former)
		if err != nil {
			return false, fmt.Errorf("refs of the repository %s: %w", c.repository.Name, err)
		}
		adoption.Refs += refs
	}
	return former.Attempt > 0 || len(former.Formers) > 0, fences.markAdopted(ctx, a.UID, append(former.Adopted, a.Former))
}

const (
	// adoptPortion is how many refs are created at once: each is written through to the disk, and a
	// request that ends too early is repeated, and goes on.
	adoptPortion = 500
	// looseRefBytes is what a ref takes until it is packed, in a file of its own.
	looseRefBytes = 4 << 10
)

// adoptRefs creates, in the call's repository, all refs of a task that stand for those of a former
// one, and returns how many there are. Its live ref is no checkpoint's.
func (h *Handler) adoptRefs(c *call, uid, former string) (int, error) {
	ctx, repository := c.request.Context(), c.repository
	used, err := repository.use(ctx)
	if err != nil {
		return 0, err
	}
	defer used.Close()
	listed, err := h.store.gitFor(repository).run(ctx, repository.Path, "--git-dir=.", "for-each-ref", "--format=%(objectname) %(refname)", refname.OfTask(former), refname.OfTask(uid))
	if err != nil {
		return 0, err
	}
	count, lacking := lackingRefs(listed, uid, former)
	if count == 0 {
		return 0, nil
	}
	for portion := range slices.Chunk(lacking, adoptPortion) {
		if err := h.adoptPortion(c, used, portion); err != nil {
			return 0, err
		}
	}
	return count, syncFolders(filepath.Join(repository.Path, "refs"))
}

// adoptPortion carries out git's commands that create refs, if there is room for these: whoever makes
// and deletes a task again and again would otherwise fill the volume with them.
func (h *Handler) adoptPortion(c *call, used *os.File, commands []string) error {
	if refused := h.checkSpace(c); refused != nil {
		return refused
	}
	bytes := int64(len(commands)) * looseRefBytes
	if !h.usage.begin(c.repository, bytes, c.quota) {
		return gitstoreapi.New(gitstoreapi.QuotaExceeded, "the checkpoints of the former task do not fit into the rest of namespace %s's quota of %d bytes%s; %s",
			c.repository.Namespace, h.limits.NamespaceBytes, h.beside(c.quota), quotaAdvice)
	}
	_, err := h.store.gitFor(c.repository).runWith(c.request.Context(), []*os.File{used}, strings.NewReader(strings.Join(commands, "")), c.repository.Path, "--git-dir=.", "update-ref", "--stdin", "-z")
	// Some of them may be there although git failed.
	h.usage.end(c.repository, bytes, true)
	h.onPush(c.repository)
	return err
}

// lackingRefs returns, from a list of the refs of a task and of a former one, how many of the latter
// are adopted, and git's commands that create those which the task lacks.
func lackingRefs(listed, uid, former string) (count int, commands []string) {
	has := make(map[string]string)
	for line := range strings.Lines(listed) {
		id, ref, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		has[ref] = id
	}
	for _, ref := range slices.Sorted(maps.Keys(has)) {
		rest, ok := strings.CutPrefix(ref, refname.OfTask(former))
		if !ok || ref == refname.Live(former) {
			continue
		}
		count++
		if own := refname.OfTask(uid) + rest; has[own] != has[ref] {
			commands = append(commands, fmt.Sprintf("update %s\x00%s\x00\x00", own, has[ref]))
		}
	}
	return count, commands
}
