package historyapi

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// maxQueryBytes bounds the words of a search.
const maxQueryBytes = 1024

// search returns a page of messages that contain the words, best first. Parameters: q,
// task and uid (of one task), role, since (RFC 3339), limit, continue.
func (a *api) search(c *call) (any, error) {
	values := c.URL.Query()
	limit, err := numberOf(values, "limit", 50)
	if err != nil {
		return nil, err
	}
	query := history.SearchQuery{
		Namespace: c.access.Namespace, Text: values.Get("q"), Task: values.Get("task"), UID: values.Get("uid"),
		Role: values.Get("role"), Limit: min(limit, maxLimit),
	}
	if strings.TrimSpace(query.Text) == "" || len(query.Text) > maxQueryBytes {
		return nil, badRequest("q must contain the words to search for, at most %d bytes", maxQueryBytes)
	}
	if !slices.Contains([]string{"", "user", "assistant", "system", "tool", "output"}, query.Role) {
		return nil, badRequest("there is no role %q; the roles are user, assistant, system, tool, output", query.Role)
	}
	if query.Since, err = timeOf(values, "since"); err != nil {
		return nil, err
	}
	if token := values.Get("continue"); token != "" {
		from, err := decodeCursor(token, kindSearch)
		if err != nil {
			return nil, err
		}
		query.After = from.Hit
	}
	page, err := a.Archive.Search(c.Context(), query)
	if err != nil {
		return nil, err
	}
	return searchResults(page)
}

func searchResults(page history.SearchPage) (*items, error) {
	results := make([]historyv1alpha1.SearchResult, 0, len(page.Hits))
	for _, hit := range page.Hits {
		results = append(results, historyv1alpha1.SearchResult{
			Task: hit.Task.Name, TaskUID: hit.Task.UID, Position: hit.Position, Branch: hit.Branch,
			Time: metav1.NewMicroTime(hit.Time), Role: hit.Role, Tool: hit.Tool,
			RankMillionths: int64(math.Round(float64(hit.Rank) * 1e6)), Snippet: snippetOf(hit.Snippet),
		})
	}
	list := itemsOf("SearchResultList", results)
	if !page.More {
		return list, nil
	}
	var err error
	list.meta.Continue, err = cursor{Kind: kindSearch, Hit: page.Next}.encode()
	return list, err
}

// snippetOf splits a snippet at its marks.
func snippetOf(marked string) []historyv1alpha1.SnippetPart {
	var parts []historyv1alpha1.SnippetPart
	add := func(text string, match bool) {
		if text != "" {
			parts = append(parts, historyv1alpha1.SnippetPart{Text: text, Match: match})
		}
	}
	for marked != "" {
		before, rest, found := strings.Cut(marked, history.SnippetStart)
		add(before, false)
		if !found {
			break
		}
		word, after, _ := strings.Cut(rest, history.SnippetStop)
		add(word, true)
		marked = after
	}
	return parts
}

// taskHistories returns a page of the namespace's tasks. Parameters: name (a prefix),
// state, tool, minTokens, minCost (US dollars, such as 0.50), since and until (RFC 3339,
// of the creation), sort, limit, continue.
func (a *api) taskHistories(c *call) (any, error) {
	values := c.URL.Query()
	query, err := taskQuery(values)
	if err != nil {
		return nil, err
	}
	query.Namespace = c.access.Namespace
	page, err := a.Archive.Tasks(c.Context(), query)
	if err != nil {
		return nil, err
	}
	tasks := make([]historyv1alpha1.TaskHistory, 0, len(page.Tasks))
	for _, task := range page.Tasks {
		tasks = append(tasks, taskHistoryOf(task))
	}
	list := itemsOf("TaskHistoryList", tasks)
	if page.More {
		list.meta.Continue, err = cursor{Kind: kindTasks, Task: page.Next, Sort: string(query.Sort)}.encode()
	}
	return list, err
}

func taskQuery(values url.Values) (history.TaskQuery, error) {
	query := history.TaskQuery{NamePrefix: values.Get("name"), State: values.Get("state"), Tool: values.Get("tool")}
	limit, err := numberOf(values, "limit", maxLimit)
	if err != nil {
		return query, err
	}
	query.Limit = min(limit, maxLimit)
	tokens, err := numberOf(values, "minTokens", 0)
	if err != nil {
		return query, err
	}
	query.MinTokens = int64(tokens)
	if query.MinCostMicroUSD, err = dollarsOf(values, "minCost"); err != nil {
		return query, err
	}
	if query.Since, err = timeOf(values, "since"); err != nil {
		return query, err
	}
	if query.Until, err = timeOf(values, "until"); err != nil {
		return query, err
	}
	if query.Sort, err = sortOf(values.Get("sort")); err != nil {
		return query, err
	}
	if token := values.Get("continue"); token != "" {
		from, err := decodeCursor(token, kindTasks)
		if err != nil {
			return query, err
		}
		query.After, query.Sort = from.Task, history.TaskSort(from.Sort)
	}
	return query, nil
}

func sortOf(text string) (history.TaskSort, error) {
	orders := []history.TaskSort{
		history.SortCreated, history.SortUpdated, history.SortCost, history.SortTokens, history.SortMessages, history.SortName,
	}
	if text == "" {
		return history.SortCreated, nil
	}
	for _, order := range orders {
		if strings.EqualFold(text, string(order)) {
			return order, nil
		}
	}
	return "", badRequest("tasks cannot be sorted by %q; use one of created, updated, cost, tokens, messages, name", text)
}

// dollarsOf parses an amount of US dollars and returns it in millionths.
func dollarsOf(values url.Values, name string) (int64, error) {
	text := values.Get(name)
	if text == "" {
		return 0, nil
	}
	dollars, err := strconv.ParseFloat(text, 64)
	if err != nil || !(dollars >= 0 && dollars <= 1e9) {
		return 0, badRequest("%s must be an amount of US dollars such as 0.50, not %q", name, text)
	}
	return int64(math.Round(dollars * 1e6)), nil
}

func taskHistoryOf(task history.TaskSummary) historyv1alpha1.TaskHistory {
	var models []historyv1alpha1.ModelUsage
	for _, m := range task.Models {
		models = append(models, historyv1alpha1.ModelUsage{
			Model: m.Model, InputTokens: m.InputTokens, CachedInputTokens: m.CachedInputTokens,
			OutputTokens: m.OutputTokens, CostMicroUSD: m.CostMicroUSD,
		})
	}
	return historyv1alpha1.TaskHistory{
		TypeMeta: typeMeta("TaskHistory"),
		ObjectMeta: metav1.ObjectMeta{
			Namespace: task.Namespace, Name: task.Name, UID: types.UID(task.UID), CreationTimestamp: metav1.NewTime(task.Created),
		},
		State: task.State, Preview: task.Preview, Updated: metav1.NewMicroTime(task.Updated),
		Messages: task.Totals.Messages, ToolCalls: task.Totals.ToolCalls,
		InputTokens: task.Totals.InputTokens, OutputTokens: task.Totals.OutputTokens, CostMicroUSD: task.Totals.CostMicroUSD,
		Checkpoints: task.Checkpoints, Tools: task.Tools, Models: models,
	}
}

// taskHistory returns one task: the newest of the name, or that of the parameter uid.
func (a *api) taskHistory(c *call) (any, error) {
	task, err := a.find(c.Context(), c.access.Namespace, c.access.Name, c.URL.Query().Get("uid"))
	if err != nil {
		return nil, err
	}
	found := taskHistoryOf(task)
	by, err := a.Archive.MadeBy(c.Context(), task.Key())
	if err != nil {
		return nil, err
	}
	found.MadeBy = madeByOf(by)
	return &found, nil
}

// findInReadSlot finds the task of a request while holding a read slot.
func (a *api) findInReadSlot(c *call, uid string) (task history.TaskSummary, err error) {
	err = a.inReadSlot(c, func() error {
		task, err = a.find(c.Context(), c.access.Namespace, c.access.Name, uid)
		return err
	})
	return task, err
}

// find looks up a task by its exact name: the newest, or the one of the UID.
func (a *api) find(ctx context.Context, namespace, name, uid string) (history.TaskSummary, error) {
	var newest *history.TaskSummary
	query := history.TaskQuery{Namespace: namespace, NamePrefix: name, Sort: history.SortName, Limit: maxLimit}
	for {
		page, err := a.Archive.Tasks(ctx, query)
		if err != nil {
			return history.TaskSummary{}, err
		}
		past := false
		for _, task := range page.Tasks {
			past = past || task.Name > name
			if task.Name == name && (uid == "" || task.UID == uid) && (newest == nil || task.Created.After(newest.Created)) {
				newest = &task
			}
		}
		if !page.More || past {
			break
		}
		query.After = page.Next
	}
	if newest == nil {
		return history.TaskSummary{}, fmt.Errorf("%w: the task %s/%s", history.ErrNotFound, namespace, name)
	}
	return *newest, nil
}

// position returns the turn boundary that a rewind would lead to. Parameters: one of
// message, time (RFC 3339) and back; uid.
func (a *api) position(c *call) (any, error) {
	values := c.URL.Query()
	message, err := numberOf(values, "message", 0)
	if err != nil {
		return nil, err
	}
	back, err := numberOf(values, "back", 0)
	if err != nil {
		return nil, err
	}
	query := history.PositionQuery{Message: int64(message), Back: int64(back)}
	if query.Time, err = timeOf(values, "time"); err != nil {
		return nil, err
	}
	given := 0
	for _, set := range []bool{message > 0, back > 0, !query.Time.IsZero()} {
		if set {
			given++
		}
	}
	if given != 1 {
		return nil, badRequest("give exactly one of message, time and back")
	}
	task, err := a.find(c.Context(), c.access.Namespace, c.access.Name, values.Get("uid"))
	if err != nil {
		return nil, err
	}
	found, err := a.Archive.ResolvePosition(c.Context(), task.UID, query)
	if err != nil {
		return nil, err
	}
	answer := &historyv1alpha1.ConversationPoint{
		TypeMeta: typeMeta("ConversationPoint"), TaskUID: task.UID, Branch: found.Position.Branch,
		Position: found.Position.Position, Asked: found.Asked, Snapped: found.Snapped, Messages: task.Totals.Messages,
		ElsewhereCheckpoint: found.Elsewhere,
	}
	if found.Checkpoint != nil {
		answer.Checkpoint, answer.CheckpointPosition = found.Checkpoint.Number, found.CheckpointPosition()
	}
	return answer, nil
}
