package gitstore

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// serveNamespaces serves PUT /namespaces, by which Clew's server tells which namespaces share what
// they have stored: the history decides that, and the gitstore writes it down, for the names of
// which it has a folder. It is told again and again, so that a gitstore that was restored from an
// older copy learns it as well.
func (h *Handler) serveNamespaces(w *statusRecorder, r *http.Request) {
	defer func() {
		h.metrics.requests.WithLabelValues("namespaces", "exchange", strconv.Itoa(w.status)).Inc()
	}()
	c := &call{request: r, log: h.log.WithValues("operation", "namespaces")}
	unclaimed, refused := h.namespaces(c)
	h.answerJSON(w, c, unclaimed, refused)
}

// namespaces checks what is told, and writes it down.
func (h *Handler) namespaces(c *call) (unclaimed gitstoreapi.Unclaimed, refused *gitstoreapi.Refusal) {
	if c.request.Method != http.MethodPut {
		return unclaimed, gitstoreapi.New(gitstoreapi.BadRequest, "the method must be PUT")
	}
	if refused := h.authenticateServer(c); refused != nil {
		return unclaimed, refused
	}
	var told gitstoreapi.Namespaces
	if err := json.NewDecoder(io.LimitReader(c.request.Body, gitstoreapi.MaxNamespacesBytes)).Decode(&told); err != nil {
		return unclaimed, gitstoreapi.New(gitstoreapi.BadRequest, "the namespaces cannot be read: %v", err)
	}
	byName := map[string][]gitstoreapi.Namespace{}
	for _, namespace := range told.Namespaces {
		if !namespaceName.MatchString(namespace.Name) || !taskUID.MatchString(namespace.UID) || namespace.Key == "" {
			return unclaimed, gitstoreapi.New(gitstoreapi.BadRequest, "a namespace needs a name, a UID and a key")
		}
		byName[namespace.Name] = append(byName[namespace.Name], namespace)
	}
	h.telling.Lock()
	defer h.telling.Unlock()
	h.told = byName
	unclaimed, err := h.tellAll(c, byName)
	if err != nil {
		c.log.Error(err, "what was told about namespaces could not be written down")
		return unclaimed, h.storageRefusal(err, "what was told about namespaces could not be written down; try again, and see the gitstore's log")
	}
	return unclaimed, nil
}

// tellAll writes down what is told about all names.
func (h *Handler) tellAll(c *call, told map[string][]gitstoreapi.Namespace) (unclaimed gitstoreapi.Unclaimed, err error) {
	names, err := h.store.namespaceNames()
	if err != nil {
		return unclaimed, err
	}
	for _, name := range names {
		claimed, err := h.tell(c, name, told[name])
		if err != nil {
			return unclaimed, err
		}
		if !claimed {
			unclaimed.Names = append(unclaimed.Names, name)
		}
	}
	return unclaimed, nil
}

// tell writes down what is told about the namespaces of a name, and reports whether the first of
// them is known.
func (h *Handler) tell(c *call, name string, told []gitstoreapi.Namespace) (claimed bool, err error) {
	f := fences{folder: filepath.Join(h.store.namespace(name), "fences")}
	o, err := f.owners()
	if errors.Is(err, errDamagedOwners) {
		c.log.Error(err, "what was told about a namespace is lost; writing down what is told now", "namespace", name)
	} else if err != nil {
		return false, err
	}
	if !o.tell(name, told) {
		return o.First != "", nil
	}
	c.log.Info("the namespaces of a name, and the keys of their histories", "namespace", name, "first", o.First, "keys", o.Keys)
	return o.First != "", f.writeOwners(o)
}

// namespaceNames returns the names of namespaces of which there is a folder.
func (s *Store) namespaceNames() (names []string, err error) {
	entries, err := os.ReadDir(filepath.Join(s.root, "namespaces"))
	for _, entry := range entries {
		if entry.IsDir() && namespaceName.MatchString(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return names, err
}
