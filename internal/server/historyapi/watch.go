package historyapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/clew-dev/clew/internal/history"
)

const (
	// watchTimeout is how long a watch lasts: whoever has lost the right to it loses it by then.
	watchTimeout = 30 * time.Minute
	// readAtOnce is how many new entries are read at once.
	readAtOnce = 500
)

// Feed tells of new entries in timelines.
type Feed interface {
	// Follow begins to follow the timelines of a namespace, until leave is called. next waits for new entries
	// and returns them, up to most; none if some may have been missed, or ctx has ended.
	Follow(namespace string) (next func(ctx context.Context, most int) []history.NewEntry, leave func())
}

// addedEvent is one line of the answer to a watch, as Kubernetes has them.
type addedEvent struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

// listOrWatch returns the handler of a list that can be watched.
func (a *api) listOrWatch(list, watch http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		watches, err := flagOf(r.URL.Query(), "watch")
		if err != nil || !watches || a.Feed == nil { // a server of an earlier version answers with the list, too
			list(w, r)
			return
		}
		watch(w, r)
	}
}

// watchTimeline answers with the entries that the timelines of a namespace get from now on, each on a line.
// It ends when some may have been missed, or the namespace was made anew: the caller then lists them, if it
// still may, and watches again. Whoever watches first, and then lists, misses none. Parameters: type, contract,
// as of the list, and task, the name of the only task.
func (a *api) watchTimeline(w http.ResponseWriter, c *call) error {
	values := c.URL.Query()
	query := history.EntriesQuery{Name: values.Get("task"), Contract: values.Get("contract")}
	var err error
	if query.Types, err = typesOf(values["type"]); err != nil {
		return err
	}
	release, err := a.enter(c, a.watches)
	if err != nil {
		return err
	}
	defer release()
	if query.Namespace, err = a.watchedNamespace(c); err != nil {
		return err
	}
	if query.WithoutFileNames, err = a.hidesFileNames(c); err != nil {
		return err
	}
	next, leave := a.Feed.Follow(query.Namespace.Name)
	defer leave()
	controller := http.NewResponseController(w)
	defer func() { _ = controller.SetWriteDeadline(time.Time{}) }()
	jsonHeader(w)
	w.WriteHeader(http.StatusOK)
	for err = controller.Flush(); err == nil; err = controller.Flush() {
		if query.Entries = next(c.Context(), readAtOnce); len(query.Entries) == 0 {
			return nil
		}
		// If deadlines are not supported, a slow caller takes only its own share.
		_ = controller.SetWriteDeadline(time.Now().Add(answerTimeout))
		err := a.writeEntries(w, c, query)
		if errors.Is(err, history.ErrNotFound) {
			return nil // the namespace is another one
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("write to who watches: %w", err)
}

// watchedNamespace returns the namespace that a watch is about, and about no later one of its name. That the
// caller may watch is checked again: the namespace may have been made anew while the call waited for a slot.
func (a *api) watchedNamespace(c *call) (namespace history.Namespace, err error) {
	err = a.inReadSlot(c, func() (err error) {
		ctx, cancel := context.WithTimeout(c.Context(), requestTimeout)
		defer cancel()
		namespace, err = a.Store.Namespace(ctx, c.access.Namespace)
		return err
	})
	if err != nil {
		return namespace, err
	}
	return namespace, a.allow(c)
}

// writeEntries writes the new entries that a query asks for.
func (a *api) writeEntries(w http.ResponseWriter, c *call, query history.EntriesQuery) error {
	var events []history.Event
	err := a.inReadSlot(c, func() (err error) {
		ctx, cancel := context.WithTimeout(c.Context(), requestTimeout)
		defer cancel()
		events, err = a.Store.Entries(ctx, query)
		return err
	})
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	for _, e := range events {
		if err := encoder.Encode(addedEvent{Type: "ADDED", Object: timelineEvent(e)}); err != nil {
			return err
		}
	}
	return nil
}
