package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
	"github.com/clew-dev/clew/internal/history/searchtext"
)

// indexBatch is the number of messages indexed per transaction.
const indexBatch = 200

// namespaceWord is the word that restricts a search to the messages of a namespace. It
// begins with a character that no indexed text contains.
func namespaceWord(namespace string) string { return "\x01" + namespace }

// Index indexes waiting messages for Search until none is left, and returns how many
// there were. It may run concurrently. A message that cannot be indexed is marked and
// skipped; it stays in its conversation.
func (s *Store) Index(ctx context.Context) (int, error) {
	total := 0
	for {
		n, err := s.indexNext(ctx, indexBatch)
		total += n
		if err != nil || n == 0 {
			return total, err
		}
	}
}

// indexNext indexes one batch, or its messages one by one if that fails.
func (s *Store) indexNext(ctx context.Context, limit int32) (int, error) {
	n, err := s.indexBatch(ctx, limit)
	if err == nil || limit == 1 || !s.isMessageFault(err) {
		return n, err
	}
	for done := 0; done < int(limit); done++ {
		one, err := s.indexOne(ctx)
		n += one
		if err != nil || one == 0 {
			return n, err
		}
	}
	return n, nil
}

// isMessageFault reports whether the error is due to a message itself, not to the state
// of the database.
func (s *Store) isMessageFault(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && !errors.Is(err, history.ErrUnavailable)
}

// indexOne indexes the first waiting message, or marks it as unindexable.
func (s *Store) indexOne(ctx context.Context) (int, error) {
	var id int64
	err := s.write(ctx, "index a message", func(q *sqlc.Queries) error {
		ids, err := q.WaitingMessages(ctx, 1)
		if err != nil || len(ids) == 0 {
			return err
		}
		id = ids[0]
		return s.indexMessages(ctx, q, ids)
	})
	if err == nil || id == 0 || !s.isMessageFault(err) {
		return min(int(id), 1), err
	}
	s.log.Error(err, "a message could not be indexed for search", "message", id)
	reason := clip.Marked(clean(err.Error()), maxRefusal)
	err = s.write(ctx, "mark a message that cannot be indexed", func(q *sqlc.Queries) error {
		return q.MarkUnindexed(ctx, sqlc.MarkUnindexedParams{ID: id, Error: reason})
	})
	return 1, err
}

func (s *Store) indexBatch(ctx context.Context, limit int32) (int, error) {
	n := 0
	err := s.write(ctx, "index messages", func(q *sqlc.Queries) error {
		ids, err := q.WaitingMessages(ctx, limit)
		n = len(ids)
		if err != nil || n == 0 {
			return err
		}
		return s.indexMessages(ctx, q, ids)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// indexMessages indexes messages taken from the queue.
func (s *Store) indexMessages(ctx context.Context, q *sqlc.Queries, ids []int64) error {
	rows, err := q.MessagesToIndex(ctx, ids)
	if err != nil {
		return err
	}
	documents := sqlc.IndexMessagesParams{}
	for _, row := range rows {
		texts, err := s.textsToIndex(ctx, row)
		if err != nil {
			return err
		}
		documents.Ids = append(documents.Ids, row.ID)
		documents.Namespaces = append(documents.Namespaces, namespaceWord(row.Namespace))
		documents.Words = append(documents.Words, searchtext.Index(texts...))
	}
	if err := q.IndexMessages(ctx, documents); err != nil {
		return err
	}
	return q.LeaveQueue(ctx, ids)
}

// maxIndexed is how many bytes of a text are read for indexing.
const maxIndexed = 1 << 20

// textsToIndex returns the searchable texts of a message, as far as they are indexed.
func (s *Store) textsToIndex(ctx context.Context, row sqlc.MessagesToIndexRow) ([]string, error) {
	m, err := messageFields{
		Role: row.Role, Body: row.Body, Raw: row.Raw, ToolName: row.ToolName, ToolInput: row.ToolInput, ToolOutput: row.ToolOutput,
		Cuts: row.Cuts, HasCall: row.HasCall, HasResult: row.HasResult,
	}.message()
	if err != nil {
		return nil, err
	}
	if err := s.loadTexts(ctx, row.Namespace, &m, maxIndexed); err != nil {
		return nil, err
	}
	return searchable(m), nil
}

// loadTexts extends cut texts from their pieces, up to about limit bytes each. What
// follows a damaged piece is left out.
func (s *Store) loadTexts(ctx context.Context, namespace string, m *conversation.Message, limit int) error {
	for _, t := range m.Texts() {
		if *t.Pieces == nil {
			continue
		}
		var text []byte
		err := s.eachPiece(ctx, namespace, *t.Pieces, func(piece []byte) error {
			text = append(text, piece...)
			if len(text) >= limit {
				return errTextLimit
			}
			return nil
		})
		if err != nil && !errors.Is(err, errTextLimit) && !errors.Is(err, history.ErrCorrupted) {
			return fmt.Errorf("read a long text: %w", err)
		}
		if len(text) > 0 {
			*t.Text = conversation.CleanText(string(text))
		}
	}
	return nil
}

// errTextLimit stops the reading of pieces.
var errTextLimit = errors.New("the limit of the text was reached")

// searchable returns the texts of a message that search covers.
func searchable(m conversation.Message) []string {
	texts := []string{m.Text}
	if m.ToolCall != nil {
		texts = append(texts, m.ToolCall.Name, m.ToolCall.Input)
	}
	if m.ToolResult != nil {
		texts = append(texts, m.ToolResult.Output)
	}
	return append(texts, m.Raw)
}
