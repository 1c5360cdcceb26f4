package historyapi

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

const (
	// maxLimit is how many items a page has at most, and if nothing is asked for.
	maxLimit = 500
	// maxTextBytes is how long a text may be to be given whole, and maxPageText
	// is how much of such texts a page has.
	maxTextBytes = 8 << 20
	maxPageText  = 32 << 20
)

// conversation answers with a page of a task's conversation. Parameters:
// limit, continue, after (a position), branch (its name; else the active one), tail (the last so
// many messages), uid (of a former task of the name), full (long texts whole,
// up to maxTextBytes each and maxPageText together, instead of their beginnings).
func (a *api) conversation(c *call) (any, error) {
	values, access := c.URL.Query(), c.access
	limit, err := numberOf(values, "limit", maxLimit)
	if err != nil {
		return nil, err
	}
	tail, err := numberOf(values, "tail", 0)
	if err != nil {
		return nil, err
	}
	after, err := numberOf(values, "after", 0)
	if err != nil {
		return nil, err
	}
	query := history.ConversationQuery{
		After:     int64(after),
		Namespace: access.Namespace, Name: access.Name, UID: values.Get("uid"), Branch: values.Get("branch"),
		Limit: min(limit, maxLimit), Last: min(tail, maxLimit),
	}
	if token := values.Get("continue"); token != "" {
		from, err := decodeCursor(token, kindConversation)
		if err != nil {
			return nil, err
		}
		query.UID, query.Branch, query.After, query.Last = from.UID, from.Branch, from.After, 0
	}
	full, err := flagOf(values, "full")
	if err != nil {
		return nil, err
	}
	page, err := a.Store.TaskConversation(c.Context(), query)
	if err != nil {
		return nil, err
	}
	if full {
		if err := a.hydrate(c.Context(), page); err != nil {
			return nil, err
		}
	}
	return conversationList(page)
}

func conversationList(page history.EntryPage) (*historyv1alpha1.ConversationList, error) {
	list := &historyv1alpha1.ConversationList{
		TypeMeta: typeMeta("ConversationList"),
		Items:    make([]historyv1alpha1.ConversationEntry, 0, len(page.Entries)),
	}
	for _, e := range page.Entries {
		list.Items = append(list.Items, entryOf(e))
	}
	if page.Remaining > 0 && len(page.Entries) > 0 {
		last := page.Entries[len(page.Entries)-1].Position
		token, err := cursor{Kind: kindConversation, UID: page.Task.UID, Branch: page.Branch, After: last}.encode()
		if err != nil {
			return nil, err
		}
		list.Continue, list.RemainingItemCount = token, &page.Remaining
	}
	return list, nil
}

// hydrate puts the whole of long texts into a page, as far as the bounds
// allow: those that stay cut say so by their pieces.
func (a *api) hydrate(ctx context.Context, page history.EntryPage) error {
	room := int64(maxPageText)
	for i := range page.Entries {
		for _, text := range page.Entries[i].Message.Texts() {
			pieces := *text.Pieces
			if pieces == nil || pieces.Bytes > min(room, maxTextBytes) {
				continue
			}
			whole, err := a.Store.Text(ctx, page.Task.Namespace, pieces)
			if err != nil {
				return err
			}
			room -= pieces.Bytes
			*text.Text, *text.Pieces = whole, nil
		}
	}
	return nil
}

// whole is the length of a text that is cut, 0 for one that is not.
func whole(p *conversation.Pieces) int64 {
	if p == nil {
		return 0
	}
	return p.Bytes
}

func entryOf(e history.Entry) historyv1alpha1.ConversationEntry {
	entry := historyv1alpha1.ConversationEntry{
		Position: e.Position, Time: metav1.NewMicroTime(e.Time), Branch: e.Branch, Attempt: e.Attempt,
		Role: string(e.Message.Role), Text: e.Message.Text, TextBytes: whole(e.Message.TextPieces),
		Raw: e.Message.Raw, RawBytes: whole(e.Message.RawPieces),
	}
	if c := e.Message.ToolCall; c != nil {
		entry.ToolCall = &historyv1alpha1.ToolCall{ID: c.ID, Name: c.Name, Input: c.Input, InputBytes: whole(c.InputPieces)}
	}
	if r := e.Message.ToolResult; r != nil {
		entry.ToolResult = &historyv1alpha1.ToolResult{
			CallID: r.CallID, Output: r.Output, OutputBytes: whole(r.OutputPieces), IsError: r.IsError, Interrupted: r.Interrupted,
		}
	}
	return entry
}

// timeline answers with a page of the timeline of a task, or of the namespace.
// Parameters: limit, continue, type (several, repeated or with commas), since
// (RFC 3339), uid.
func (a *api) timeline(c *call) (any, error) {
	values, access := c.URL.Query(), c.access
	limit, err := numberOf(values, "limit", maxLimit)
	if err != nil {
		return nil, err
	}
	query := history.TimelineQuery{
		Namespace: access.Namespace, Name: access.Name, UID: values.Get("uid"), Limit: min(limit, maxLimit),
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
	page, err := a.Store.Timeline(c.Context(), query)
	if err != nil {
		return nil, err
	}
	// A name that is used again in the middle must not mix two tasks.
	uid := query.UID
	if access.Name != "" && len(page.Events) > 0 {
		uid = page.Events[0].Task.UID
	}
	return timelineList(page, uid)
}

func timelineList(page history.EventPage, uid string) (*historyv1alpha1.TimelineEventList, error) {
	list := &historyv1alpha1.TimelineEventList{
		TypeMeta: typeMeta("TimelineEventList"),
		Items:    make([]historyv1alpha1.TimelineEvent, 0, len(page.Events)),
	}
	for _, e := range page.Events {
		list.Items = append(list.Items, historyv1alpha1.TimelineEvent{
			ID: e.ID, Time: metav1.NewMicroTime(e.Time), Task: e.Task.Name, TaskUID: e.Task.UID, Type: e.Type,
			Reason: e.Reason, Actor: e.Actor, Message: e.Message, Attempt: e.Attempt, Checkpoint: e.Checkpoint, ImportedBy: e.ImportedBy,
		})
	}
	if page.More && len(page.Events) > 0 {
		last := page.Events[len(page.Events)-1]
		token, err := cursor{Kind: kindTimeline, UID: uid, Time: last.Time, ID: last.ID}.encode()
		if err != nil {
			return nil, err
		}
		list.Continue = token
	}
	return list, nil
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
				return nil, badRequest("there are no events of the type %q; the types are %s", t, strings.Join(known, ", "))
			}
			types = append(types, t)
		}
	}
	return types, nil
}

func badRequest(format string, args ...any) error {
	return apierrors.NewBadRequest(fmt.Sprintf(format, args...))
}
