package gitstore

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// healPath matches the URL paths by which a task's pod heals its repository.
var healPath = regexp.MustCompile(`^/([^/]*)/([^/]*)\.git/` + gitstoreapi.LackingPath + `$`)

// serveHealing serves /{namespace}/{repository}.git/clew/lacking to the pods of tasks. GET
// returns the ids of objects that a checkpoint which the caller may see needs, and that are
// missing or damaged. POST brings a pack of such objects, and of no others, and returns those that
// are lacking then: what a commit or a folder contains shows once it is there. An object is what its
// id says, so it does not matter whom it comes from.
func (h *Handler) serveHealing(w *statusRecorder, r *http.Request, pressed *pressure, namespace, name string) {
	c := &call{repository: h.store.repository(namespace, name), service: "heal", request: r, pressure: pressed}
	c.log = h.log.WithValues("namespace", namespace, "repository", name, "operation", "heal")
	defer func() {
		h.metrics.requests.WithLabelValues("heal", "exchange", strconv.Itoa(w.status)).Inc()
	}()
	answer, refused := h.healing(c)
	h.answerJSON(w, c, answer, refused)
}

func (h *Handler) healing(c *call) (gitstoreapi.Lacking, *gitstoreapi.Refusal) {
	var none gitstoreapi.Lacking
	if refused := h.authenticate(c); refused != nil {
		return none, refused
	}
	slots := h.fetches
	if c.request.Method == http.MethodPost {
		slots = h.pushes
	}
	release, refused := h.admit(c, slots)
	if refused != nil {
		return none, refused
	}
	defer release()
	if refused := h.leaveOutSources(c); refused != nil {
		return none, refused
	}
	newest, refused := h.raise(c)
	if refused == nil {
		refused = h.mayPush(c, newest)
	}
	if refused != nil {
		return none, refused
	}
	ids, err := h.lackingOf(c)
	if err != nil {
		return none, h.unavailable(c, err)
	}
	if c.request.Method == http.MethodPost {
		if refused := h.heal(c, ids); refused != nil {
			return none, refused
		}
		if ids, err = h.lackingOf(c); err != nil {
			return none, h.unavailable(c, err)
		}
	}
	return gitstoreapi.Lacking{Objects: ids}, nil
}

// lackingOf returns the objects that the calling task may bring.
func (h *Handler) lackingOf(c *call) ([]string, error) {
	return h.lacking.of(c.repository, append([]string{c.caller.Task.UID}, c.caller.Task.Sources...))
}

// heal stores the objects of a pack, all of which must be lacking.
func (h *Handler) heal(c *call, ids []string) *gitstoreapi.Refusal {
	healed, refused := h.receiveHealing(c, ids)
	if refused != nil {
		return refused
	}
	if err := h.noteHealed(c, healed); err != nil {
		return h.unavailable(c, err)
	}
	c.log.Info("objects that were missing or damaged are there again", "count", len(healed))
	return nil
}

// receiveHealing makes a pack that is received part of the repository, and returns its objects.
func (h *Handler) receiveHealing(c *call, ids []string) (map[string]bool, *gitstoreapi.Refusal) {
	header, refused := readHealingHeader(c.request.Body, len(ids))
	if refused != nil {
		return nil, refused
	}
	// Nobody takes what is received for a leftover meanwhile.
	used, err := c.repository.use(c.request.Context())
	if err != nil {
		return nil, h.unavailable(c, err)
	}
	defer used.Close()
	folder, err := os.MkdirTemp(filepath.Join(c.repository.Path, "objects"), quarantinePrefix+"heal-")
	if err != nil {
		return nil, h.unavailable(c, err)
	}
	defer os.RemoveAll(folder)
	in := h.newIntake(c, header)
	stored := false
	defer func() { _, _ = in.finish(stored) }()
	pack, index := filepath.Join(folder, "new.pack"), filepath.Join(folder, "new.idx")
	if refused := h.receivePack(c, header, in, pack); refused != nil {
		return nil, refused
	}
	healed, refused := h.indexHealing(c, ids, pack, index)
	if refused != nil {
		return nil, refused
	}
	if err := h.install(c, pack, index, healed); err != nil {
		return nil, h.unavailable(c, err)
	}
	stored = true
	return healed, nil
}

// readHealingHeader reads the header of a pack, and refuses one with more objects than are
// lacking before any of them is read.
func readHealingHeader(body io.Reader, lacking int) (pushHead, *gitstoreapi.Refusal) {
	var header pushHead
	if lacking == 0 {
		return header, gitstoreapi.New(gitstoreapi.ObjectsRefused, "no objects are lacking that this task has to bring")
	}
	if err := header.readPackHeader(body); err != nil {
		return header, gitstoreapi.New(gitstoreapi.ObjectsRefused, "the request contains no pack")
	}
	if uint64(header.Objects) > uint64(lacking) {
		return header, gitstoreapi.New(gitstoreapi.ObjectsRefused, "the pack contains %d objects, and only %d are lacking", header.Objects, lacking)
	}
	return header, nil
}

// receivePack writes a pack, the header of which has been read, to a file.
func (h *Handler) receivePack(c *call, header pushHead, in *intake, path string) *gitstoreapi.Refusal {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return h.unavailable(c, err)
	}
	_, err = io.Copy(file, io.MultiReader(bytes.NewReader(header.Raw), in))
	err = errors.Join(err, file.Sync(), file.Close())
	if refused := in.refusal(); refused != nil {
		return refused
	}
	if err != nil {
		return h.unavailable(c, err)
	}
	return nil
}

// indexHealing indexes a pack, and returns its objects, all of which must be among the sorted
// ids.
func (h *Handler) indexHealing(c *call, ids []string, pack, index string) (map[string]bool, *gitstoreapi.Refusal) {
	// Outside the repository, git does not compare the objects with the damaged ones.
	if _, err := h.store.gitFor(c.repository).run(c.request.Context(), h.store.hooks(), "index-pack", "--no-rev-index", "-o", index, pack); err != nil {
		if c.request.Context().Err() == nil && saysDamaged(err) {
			return nil, gitstoreapi.New(gitstoreapi.ObjectsRefused, "the pack cannot be read: %v", err)
		}
		return nil, h.unavailable(c, err)
	}
	brought, err := readIndex(index)
	if err != nil {
		return nil, h.unavailable(c, err)
	}
	healed := map[string]bool{}
	for _, id := range brought {
		if _, wanted := slices.BinarySearch(ids, id); !wanted {
			return nil, gitstoreapi.New(gitstoreapi.ObjectsRefused, "the pack contains the object %s, which is not lacking", id)
		}
		healed[id] = true
	}
	return healed, nil
}

// packName returns a name that only a pack of the same objects has.
func packName(ids map[string]bool) string {
	hash := sha1.New()
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		_, _ = io.WriteString(hash, id) // never fails
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// install makes a pack part of the repository. The packs and files with the damaged objects are
// removed when the objects that they share with other packs are stored anew (see purge).
func (h *Handler) install(c *call, pack, index string, healed map[string]bool) error {
	folder := filepath.Join(c.repository.Path, "objects", "pack")
	if err := makeFolder(c.repository.Path, folder); err != nil {
		return err
	}
	name := filepath.Join(folder, "pack-"+packName(healed))
	// The index last: a pack without one is not yet part of the repository.
	for _, move := range [][2]string{{pack, name + ".pack"}, {index, name + ".idx"}} {
		if err := errors.Join(os.Chmod(move[0], 0o444), os.Rename(move[0], move[1])); err != nil {
			return err
		}
	}
	if err := durable.SyncFolder(folder); err != nil {
		return err
	}
	if err := durable.WriteShared(c.repository.mark(), temporaryFiles, nil, 0o644); err != nil {
		return err
	}
	h.usage.changed(c.repository)
	h.onPush(c.repository)
	return nil
}
