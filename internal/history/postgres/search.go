package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
	"github.com/clew-dev/clew/internal/history/searchtext"
)

const (
	// snippetBytes is the approximate length of a snippet.
	snippetBytes = 240
	// maxSnippetText is how much of a text is searched for a snippet.
	maxSnippetText = 256 << 10
	// maxQueryBytes is how much of a query's text is used.
	maxQueryBytes = 4096
)

// searchSQL finds messages by their words, and then their positions on branches of
// existing tasks. A position on a branch of a deleted task belongs to the fork that
// inherited it. The parts in braces depend on the query.
const searchSQL = `
WITH RECURSIVE {scope} matched AS (
	SELECT d.message_id, ts_rank(d.words, websearch_to_tsquery('simple', @words), 1) AS rank
	FROM search_documents d
	WHERE d.words @@ (@namespace_words::tsquery && websearch_to_tsquery('simple', @words)) {own}
)
SELECT h.rank, h.message_id, e.branch_id, e.position, e.time, e.call_id, e.result_call_id,
	t.uid, t.namespace, t.name, coalesce(b.task_uid, ''), b.number,
	m.role, m.body, m.raw, m.has_call, m.tool_name, m.tool_input, m.has_result, m.tool_output, m.is_error, m.interrupted, m.cuts
FROM matched h
JOIN entries e ON e.message_id = h.message_id
JOIN branches b ON b.id = e.branch_id
{owner}
JOIN messages m ON m.id = h.message_id
WHERE t.namespace = @namespace {filters}
ORDER BY h.rank DESC, h.message_id DESC, e.branch_id DESC, e.position DESC
LIMIT @up_to_rows`

// ownerSQL finds the task of a branch, or, for what remains of a deleted task, the oldest
// task that inherited the position.
const ownerSQL = `
LEFT JOIN LATERAL (
	WITH RECURSIVE heirs AS (
		SELECT c.id, c.task_uid FROM branches c WHERE c.parent_id = b.id AND c.base_position >= e.position
		UNION ALL
		SELECT c.id, c.task_uid FROM heirs p JOIN branches c ON c.parent_id = p.id AND c.base_position >= e.position
		WHERE p.task_uid IS NULL
	)
	SELECT heirs.task_uid FROM heirs WHERE heirs.task_uid IS NOT NULL ORDER BY heirs.id LIMIT 1
) heir ON b.task_uid IS NULL
JOIN tasks t ON t.uid = coalesce(b.task_uid, heir.task_uid)`

// scopeSQL selects the branches of one task, and those it inherits from, each up to the
// inherited position. The part in braces depends on the query.
const scopeSQL = `
lineage AS (
	SELECT s.id, s.parent_id, s.base_position AS low, s.head_position AS high FROM branches s WHERE s.task_uid = @uid {active}
	UNION ALL
	SELECT p.id, p.parent_id, p.base_position, least(l.high, l.low) FROM lineage l JOIN branches p ON p.id = l.parent_id
), scope AS (
	SELECT id, max(high) AS high FROM lineage GROUP BY id
),`

// activeSQL selects only the active branch of the task.
const activeSQL = "AND s.id = (SELECT active.active_branch FROM tasks active WHERE active.uid = @uid)"

// ownSQL selects the documents of the scope's messages before they are ranked: a namespace may have far
// more.
const ownSQL = `AND d.message_id IN (SELECT o.message_id FROM scope JOIN entries o ON o.branch_id = scope.id AND o.position <= scope.high)`

const scopeOwnerSQL = `
JOIN scope ON scope.id = e.branch_id AND e.position <= scope.high
JOIN tasks t ON t.uid = @uid`

// Search returns the messages of a namespace that contain the words, best first. Very
// recent messages may not be found yet. history.ErrNotFound if the named task is unknown.
func (s *Store) Search(ctx context.Context, query history.SearchQuery) (history.SearchPage, error) {
	doing := "search in " + query.Namespace
	parsed := searchtext.Parse(conversation.CleanText(query.Text[:min(len(query.Text), maxQueryBytes)]))
	if query.Task != "" && query.UID == "" {
		uid, err := s.read().NewestTaskNamed(ctx, sqlc.NewestTaskNamedParams{Namespace: query.Namespace, Name: query.Task})
		if err != nil {
			return history.SearchPage{}, wrap(err, doing+" the messages of the task "+query.Task)
		}
		query.UID = uid
	}
	if len(parsed.Terms) == 0 || query.Limit < 1 {
		return history.SearchPage{}, nil
	}
	words, err := s.namespaceWords(ctx, query.Namespace)
	if err != nil {
		return history.SearchPage{}, wrap(err, doing)
	}
	statement, args := searchStatement(query, parsed.Text, words)
	rows, err := s.pool.Query(ctx, statement, pgx.QueryExecModeCacheDescribe, args)
	if err != nil {
		return history.SearchPage{}, wrap(err, doing)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[searchRow])
	if err != nil {
		return history.SearchPage{}, wrap(err, doing)
	}
	return s.searchPage(ctx, query, parsed.Terms, found)
}

// searchStatement builds the statement. It contains only the requested parts, so that it
// is planned for them.
func searchStatement(query history.SearchQuery, text, namespaceWords string) (string, pgx.NamedArgs) {
	args := pgx.NamedArgs{
		"words": text, "namespace": query.Namespace, "namespace_words": namespaceWords, "up_to_rows": query.Limit + 1,
	}
	scope, own, owner, filters := "", "", ownerSQL, ""
	if query.UID != "" {
		scope, own, owner, args["uid"] = strings.Replace(scopeSQL, "{active}", active(query), 1), ownSQL, scopeOwnerSQL, query.UID
	}
	if query.Role != "" {
		filters, args["role"] = filters+" AND m.role = @role", query.Role
	}
	if !query.Since.IsZero() {
		filters, args["since"] = filters+" AND e.time >= @since", query.Since
	}
	if after := query.After; after != (history.SearchKey{}) {
		filters += " AND (h.rank, h.message_id, e.branch_id, e.position) < (@rank::real, @message::bigint, @branch::bigint, @position::bigint)"
		args["rank"], args["message"], args["branch"], args["position"] = after.Rank, after.Message, after.Branch, after.Position
	}
	return strings.NewReplacer("{scope}", scope, "{own}", own, "{owner}", owner, "{filters}", filters).Replace(searchSQL), args
}

func active(query history.SearchQuery) string {
	if query.Standing {
		return activeSQL
	}
	return ""
}

// quoteWord quotes a word for a tsquery.
func quoteWord(word string) string {
	return "'" + strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(word) + "'"
}

// searchRow is a row of searchSQL.
type searchRow struct {
	Rank                 float32
	Message              int64
	Branch, Position     int64
	Time                 time.Time
	CallID, ResultCallID string

	UID, Namespace, Name string
	// BranchUID is empty if the branch's task was deleted.
	BranchUID    string
	BranchNumber int64

	Role, Body, Raw      string
	HasCall              bool
	ToolName, ToolInput  string
	HasResult            bool
	ToolOutput           string
	IsError, Interrupted bool
	Cuts                 string
}

func (r searchRow) message() (conversation.Message, error) {
	return messageFields{
		Role: r.Role, Body: r.Body, Raw: r.Raw, ToolName: r.ToolName, ToolInput: r.ToolInput, ToolOutput: r.ToolOutput, Cuts: r.Cuts,
		HasCall: r.HasCall, HasResult: r.HasResult, IsError: r.IsError, Interrupted: r.Interrupted,
		CallID: r.CallID, ResultCallID: r.ResultCallID,
	}.message()
}

func (s *Store) searchPage(ctx context.Context, query history.SearchQuery, terms []string, found []searchRow) (history.SearchPage, error) {
	page := history.SearchPage{More: len(found) > query.Limit}
	for _, row := range found[:min(len(found), query.Limit)] {
		snippet, err := s.snippet(ctx, row, terms)
		if err != nil {
			return history.SearchPage{}, wrap(err, fmt.Sprintf("read message %d of the task %s/%s", row.Position, row.Namespace, row.Name))
		}
		branch := branchName(row.BranchNumber)
		switch row.BranchUID {
		case row.UID:
		case "":
			branch = deletedTask + "/" + branch
		default:
			branch = row.BranchUID + "/" + branch
		}
		page.Hits = append(page.Hits, history.SearchHit{
			Task:     history.Task{Namespace: row.Namespace, Name: row.Name, UID: row.UID},
			Position: row.Position, Branch: branch, Time: row.Time, Role: row.Role, Tool: row.ToolName, Rank: row.Rank, Snippet: snippet,
		})
		page.Next = history.SearchKey{Rank: row.Rank, Message: row.Message, Branch: row.Branch, Position: row.Position}
	}
	return page, nil
}

// snippet returns the text around the words, from the text with the most of them.
func (s *Store) snippet(ctx context.Context, row searchRow, terms []string) (string, error) {
	m, err := row.message()
	if err != nil {
		return "", err
	}
	if err := s.loadTexts(ctx, row.Namespace, &m, maxSnippetText); err != nil && !errors.Is(err, history.ErrCorrupted) {
		return "", err
	}
	best, most := "", -1
	for _, text := range searchable(m) {
		snippet := searchtext.Snippet(text, terms, snippetBytes, history.SnippetStart, history.SnippetStop)
		if n := strings.Count(snippet, history.SnippetStart); n > most && snippet != "" {
			best, most = snippet, n
		}
	}
	return best, nil
}
