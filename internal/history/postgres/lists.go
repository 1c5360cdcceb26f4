package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// refreshBatch is the number of tasks whose sums are refreshed at a time.
const refreshBatch = 500

// order describes how a list of tasks is sorted.
type order struct {
	column, direction, before string
	key                       func(history.TaskKey) any
	next                      func(*history.TaskKey, history.TaskSummary)
}

func byTime(column string, of func(history.TaskSummary) time.Time) order {
	return order{column, "DESC", "<", func(k history.TaskKey) any { return k.Time },
		func(k *history.TaskKey, t history.TaskSummary) { k.Time = of(t) }}
}

func byNumber(column string, of func(history.TaskSummary) int64) order {
	return order{column, "DESC", "<", func(k history.TaskKey) any { return k.Number },
		func(k *history.TaskKey, t history.TaskSummary) { k.Number = of(t) }}
}

func orderOf(sort history.TaskSort) (order, error) {
	switch sort {
	case "", history.SortCreated:
		return byTime("created_at", func(t history.TaskSummary) time.Time { return t.Created }), nil
	case history.SortUpdated:
		return byTime("updated_at", func(t history.TaskSummary) time.Time { return t.Updated }), nil
	case history.SortCost:
		return byNumber("cost_micro_usd", func(t history.TaskSummary) int64 { return t.Totals.CostMicroUSD }), nil
	case history.SortTokens:
		return byNumber("tokens", func(t history.TaskSummary) int64 { return t.Totals.InputTokens + t.Totals.OutputTokens }), nil
	case history.SortMessages:
		return byNumber("messages", func(t history.TaskSummary) int64 { return t.Totals.Messages }), nil
	case history.SortName:
		return order{"name", "ASC", ">", func(k history.TaskKey) any { return k.Name },
			func(k *history.TaskKey, t history.TaskSummary) { k.Name = t.Name }}, nil
	}
	return order{}, fmt.Errorf("%w: tasks cannot be sorted by %q; use one of %s, %s, %s, %s, %s, %s", history.ErrInvalid, sort,
		history.SortCreated, history.SortUpdated, history.SortCost, history.SortTokens, history.SortMessages, history.SortName)
}

// Tasks returns a page of a namespace's tasks: all that have begun or have an event.
// history.ErrInvalid for an unknown order.
func (s *Store) Tasks(ctx context.Context, query history.TaskQuery) (history.TaskPage, error) {
	doing := "list the tasks of " + query.Namespace
	o, err := orderOf(query.Sort)
	if err != nil {
		return history.TaskPage{}, wrap(err, doing)
	}
	if err := s.refreshSummaries(ctx, query.Namespace); err != nil {
		return history.TaskPage{}, err
	}
	statement, args := tasksStatement(query, o)
	rows, err := s.pool.Query(ctx, statement, pgx.QueryExecModeCacheDescribe, args)
	if err != nil {
		return history.TaskPage{}, wrap(err, doing)
	}
	page, err := taskPage(rows, query.Limit)
	if err != nil {
		return history.TaskPage{}, wrap(err, doing)
	}
	if n := len(page.Tasks); n > 0 {
		page.Next.UID = page.Tasks[n-1].UID
		o.next(&page.Next, page.Tasks[n-1])
	}
	return page, nil
}

// taskPage reads up to limit tasks, or as many as fill a page: agents choose the names of
// tools and models, so rows may be large.
func taskPage(rows pgx.Rows, limit int) (page history.TaskPage, err error) {
	defer rows.Close()
	bytes := 0
	for rows.Next() {
		if len(page.Tasks) == limit || bytes >= maxPageBytes {
			page.More = true
			break
		}
		row, err := pgx.RowToStructByPos[taskRow](rows)
		if err != nil {
			return page, err
		}
		summary, err := row.summary()
		if err != nil {
			return page, err
		}
		page.Tasks = append(page.Tasks, summary)
		bytes += row.bytes()
	}
	return page, rows.Err()
}

// refreshSummaries refreshes the sums that lists are sorted by; those of all namespaces
// if none is given.
func (s *Store) refreshSummaries(ctx context.Context, namespace string) error {
	for {
		var n int64
		err := s.write(ctx, "refresh lists of tasks", func(q *sqlc.Queries) error {
			var err error
			n, err = q.RefreshSummaries(ctx, sqlc.RefreshSummariesParams{Namespace: namespace, UpToRows: refreshBatch})
			return err
		})
		if err != nil || n < refreshBatch {
			return err
		}
	}
}

// tasksStatement builds the statement. It contains only the requested filters, so that it
// is planned for them.
func tasksStatement(query history.TaskQuery, o order) (string, pgx.NamedArgs) {
	args := pgx.NamedArgs{"namespace": query.Namespace, "up_to_rows": query.Limit + 1}
	where := []string{"s.namespace = @namespace"}
	filter := func(condition, name string, value any) {
		where = append(where, condition)
		args[name] = value
	}
	if query.NamePrefix != "" {
		// Names sort by bytes, so those with the prefix sort before the prefix and the
		// last code point.
		filter(`s.name >= @prefix AND s.name < @prefix || chr(1114111)`, "prefix", clean(query.NamePrefix))
	}
	if query.State != "" {
		filter("s.state = @state", "state", clean(query.State))
	}
	if query.Tool != "" {
		filter("s.tools @> ARRAY[@tool::text]", "tool", query.Namespace+"/"+clean(query.Tool))
	}
	if query.MinTokens > 0 {
		filter("s.tokens >= @tokens", "tokens", query.MinTokens)
	}
	if query.MinCostMicroUSD > 0 {
		filter("s.cost_micro_usd >= @cost", "cost", query.MinCostMicroUSD)
	}
	if !query.Since.IsZero() {
		filter("s.created_at >= @since", "since", query.Since)
	}
	if !query.Until.IsZero() {
		filter("s.created_at < @until", "until", query.Until)
	}
	if query.After.UID != "" {
		filter(fmt.Sprintf("(s.%s, s.uid) %s (@key, @uid)", o.column, o.before), "key", o.key(query.After))
		args["uid"] = query.After.UID
	}
	return fmt.Sprintf(`SELECT s.uid, s.namespace, s.name, s.state, s.preview, s.created_at, s.updated_at, s.messages, s.tool_calls,
	s.input_tokens, s.output_tokens, s.cost_micro_usd, s.checkpoints, coalesce(t.tools, '{}'), coalesce(t.models, '{}')
FROM task_summaries s LEFT JOIN tasks t ON t.uid = s.uid
WHERE %s
ORDER BY s.%s %s, s.uid %s
LIMIT @up_to_rows`, strings.Join(where, " AND "), o.column, o.direction, o.direction), args
}

// taskRow is a row of tasksStatement.
type taskRow struct {
	UID, Namespace, Name, State, Preview                  string
	Created, Updated                                      time.Time
	Messages, ToolCalls, Input, Output, Cost, Checkpoints int64
	Tools                                                 []string
	Models                                                []byte
}

// bytes returns the length of the variable parts of a row.
func (r taskRow) bytes() int {
	sum := len(r.Preview) + len(r.Models)
	for _, tool := range r.Tools {
		sum += len(tool)
	}
	return sum
}

func (r taskRow) summary() (history.TaskSummary, error) {
	sums, err := modelsOf(r.Models)
	t := history.TaskSummary{
		Task: history.Task{Namespace: r.Namespace, Name: r.Name, UID: r.UID}, State: r.State, Preview: r.Preview,
		Created: r.Created, Updated: r.Updated, Checkpoints: r.Checkpoints, Tools: r.Tools,
		Totals: history.Totals{
			Messages: r.Messages, ToolCalls: r.ToolCalls, InputTokens: r.Input, OutputTokens: r.Output, CostMicroUSD: r.Cost,
		},
	}
	for _, model := range slices.Sorted(maps.Keys(sums)) {
		used := sums[model]
		t.Models = append(t.Models, history.Usage{
			Model: model, InputTokens: used.Input, CachedInputTokens: used.Cached, OutputTokens: used.Output, CostMicroUSD: used.Cost,
		})
	}
	return t, err
}
