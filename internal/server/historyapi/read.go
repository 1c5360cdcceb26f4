package historyapi

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// maxLimit is the maximum and the default number of items in a page.
const maxLimit = 500

// timeline returns a page of the timeline of a task, or of the namespace. The names of changed
// files are in it only if the caller may read checkpoints, which have them as well. Parameters:
// limit, continue, type (several, repeated or separated by commas), since (RFC 3339),
// uid, and, of a namespace, contract.
func (a *api) timeline(c *call) (any, error) {
	values, access := c.URL.Query(), c.access
	if _, err := flagOf(values, "watch"); err != nil {
		return nil, err
	}
	limit, err := numberOf(values, "limit", maxLimit)
	if err != nil {
		return nil, err
	}
	query := history.TimelineQuery{
		Namespace: access.Namespace, Name: access.Name, UID: values.Get("uid"), Limit: min(limit, maxLimit),
	}
	if access.Name == "" {
		query.Contract = values.Get("contract")
	}
	if query.Types, err = typesOf(values["type"]); err != nil {
		return nil, err
	}
	if query.Since, err = timeOf(values, "since"); err != nil {
		return nil, err
	}
	if token := values.Get("continue"); token != "" {
		from, err := decodeCursor(token, kindTimeline)
		if err != nil {
			return nil, err
		}
		query.UID, query.Before = from.UID, history.EventKey{Time: from.Time, ID: from.ID}
	}
	if query.WithoutFileNames, err = a.hidesFileNames(c); err != nil {
		return nil, err
	}
	page, err := a.Store.Timeline(c.Context(), query)
	if err != nil {
		return nil, err
	}
	// If a name is reused between pages, they must not mix two tasks.
	uid := query.UID
	if access.Name != "" && len(page.Events) > 0 {
		uid = page.Events[0].Task.UID
	}
	return timelineList(page, uid)
}

// hidesFileNames reports whether the caller may not read the checkpoints of what is asked for, which name
// changed files.
func (a *api) hidesFileNames(c *call) (bool, error) {
	ofFiles := Access{Verb: "get", Resource: "tasks", Subresource: subresourceCheckpoints, Namespace: c.access.Namespace, Name: c.access.Name}
	names, _, err := a.Authorizer.Authorize(c.Context(), c.caller, ofFiles)
	if err != nil {
		return true, fmt.Errorf("%w: check the permissions of %s: %w", errAuthorizer, c.caller.GetName(), err)
	}
	return !names, nil
}

func timelineList(page history.EventPage, uid string) (*items, error) {
	events := make([]historyv1alpha1.TimelineEvent, 0, len(page.Events))
	for _, e := range page.Events {
		events = append(events, timelineEvent(e))
	}
	list := itemsOf("TimelineEventList", events)
	if page.More && len(page.Events) > 0 {
		last := page.Events[len(page.Events)-1]
		token, err := cursor{Kind: kindTimeline, UID: uid, Time: last.Time, ID: last.ID}.encode()
		if err != nil {
			return nil, err
		}
		list.meta.Continue = token
	}
	return list, nil
}

func timelineEvent(e history.Event) historyv1alpha1.TimelineEvent {
	return historyv1alpha1.TimelineEvent{
		ID: e.ID, Time: metav1.NewMicroTime(e.Time), Task: e.Task.Name, TaskUID: e.Task.UID, Type: e.Type,
		Reason: e.Reason, Actor: e.Actor, Message: e.Message, Attempt: e.Attempt, Checkpoint: e.Checkpoint, ImportedBy: e.ImportedBy,
	}
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: historyv1alpha1.Group + "/" + historyv1alpha1.Version, Kind: kind}
}

func numberOf(values url.Values, name string, fallback int) (int, error) {
	text := values.Get(name)
	if text == "" || text == "0" {
		return fallback, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, badRequest("%s must be a positive number, not %q", name, text)
	}
	return n, nil
}

func flagOf(values url.Values, name string) (bool, error) {
	text := values.Get(name)
	if text == "" {
		return false, nil
	}
	set, err := strconv.ParseBool(text)
	if err != nil {
		return false, badRequest("%s must be true or false, not %q", name, text)
	}
	return set, nil
}

func timeOf(values url.Values, name string) (time.Time, error) {
	text := values.Get(name)
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, badRequest("%s must be a time such as 2026-01-31T12:00:00Z, not %q", name, text)
	}
	return t, nil
}

func typesOf(given []string) ([]string, error) {
	known := []string{
		history.EventTypeTask, history.EventTypeChat, history.EventTypeCheckpoint,
		history.EventTypeRewind, history.EventTypeFork, history.EventTypeFile, history.EventTypeAccess,
		history.EventTypeImported,
	}
	var types []string
	for _, text := range given {
		for _, t := range strings.Split(text, ",") {
			if t == "" {
				continue
			}
			if !slices.Contains(known, t) {
				return nil, badRequest("there is no event type %q; the types are %s", t, strings.Join(known, ", "))
			}
			types = append(types, t)
		}
	}
	return types, nil
}

func badRequest(format string, args ...any) error {
	return apierrors.NewBadRequest(fmt.Sprintf(format, args...))
}
