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

// indexBatch is how many messages are indexed in a transaction.
const indexBatch = 200

// namespaceWord is the word by which messages of a namespace are found. It
// begins with a character that no indexed text has.
func namespaceWord(namespace string) string { return "\x01" + namespace }

// Index indexes the messages that wait to be found by Search, until none does,
// and returns how many it was. Several callers may do so at once. A message
// that cannot be indexed is marked and left out; it stays where it was said.
func (s *Store) Index(ctx context.Context) (int, error) {
	total := 0
	for {
		n, err := s.indexSome(ctx, indexBatch)
		total += n
		if err != nil || n == 0 {
			return total, err
		}
	}
}

// indexSome indexes one batch, and one by one if that fails.
func (s *Store) indexSome(ctx context.Context, limit int32) (int, error) {
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

// isMessageFault tells whether a message itself, not the database's state, is
// the reason of the error.
func (s *Store) isMessageFault(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && !errors.Is(err, history.ErrUnavailable)
}

// indexOne indexes the first message that waits, or marks it.
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
	s.log.Error(err, "a message cannot be found by search", "message", id)
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

// maxIndexed is how many bytes of a text are looked at for words.
const maxIndexed = 1 << 20

// textsToIndex are the texts that a message is found by, whole as far as they
// are indexed.
func (s *Store) textsToIndex(ctx context.Context, row sqlc.MessagesToIndexRow) ([]string, error) {
	m, err := messageFields{
		Role: row.Role, Body: row.Body, Raw: row.Raw, ToolName: row.ToolName, ToolInput: row.ToolInput, ToolOutput: row.ToolOutput,
		Cuts: row.Cuts, HasCall: row.HasCall, HasResult: row.HasResult,
	}.message()
	if err != nil {
		return nil, err
	}
	if err := s.lengthen(ctx, row.Namespace, &m, maxIndexed); err != nil {
		return nil, err
	}
	return searchable(m), nil
}

// lengthen replaces the beginnings of the texts that were cut by more of them,
// up to about limit bytes. What is damaged is left out.
func (s *Store) lengthen(ctx context.Context, namespace string, m *conversation.Message, limit int) error {
	for _, t := range m.Texts() {
		if *t.Pieces == nil {
			continue
		}
		var text []byte
		err := s.eachPiece(ctx, namespace, *t.Pieces, func(piece []byte) error {
			text = append(text, piece...)
			if len(text) >= limit {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) && !errors.Is(err, history.ErrCorrupted) {
			return fmt.Errorf("read a long text: %w", err)
		}
		if len(text) > 0 {
			*t.Text = conversation.CleanText(string(text))
		}
	}
	return nil
}

// errEnough ends the reading of pieces.
var errEnough = errors.New("enough was read")

// searchable are the texts of a message that it is found by.
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
