package postgres

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// piecesPerRead bounds how much of a long text is read at a time.
const piecesPerRead = 16

// writePieces stores missing pieces, and keeps them, and those that the messages refer
// to, from being removed until the transaction ends. It returns the ids of those that
// exist.
func (b *batch) writePieces(ctx context.Context, q *sqlc.Queries) (map[conversation.Hash]int64, error) {
	ids, err := holdPieces(ctx, q, b.task.Namespace, b.pieces)
	if err != nil {
		return nil, err
	}
	if err := b.awaitMessages(ctx, q, ids); err != nil {
		return nil, err
	}
	named := map[conversation.Hash]bool{}
	for _, m := range b.messages {
		for _, hash := range pieceHashes(m) {
			if ids[hash] == 0 {
				named[hash] = true
			}
		}
	}
	if len(named) == 0 {
		return ids, nil
	}
	held, err := q.HoldPieces(ctx, sqlc.HoldPiecesParams{Namespace: b.task.Namespace, Hashes: byteSlices(sortedHashes(named))})
	if err != nil {
		return nil, err
	}
	for _, row := range held {
		ids[conversation.Hash(row.Hash)] = row.ID
	}
	for _, hash := range sortedHashes(named) {
		if ids[hash] == 0 {
			b.addMissing(hash)
		}
	}
	return ids, nil
}

// awaitMessages marks the pieces whose message may be in a later batch.
func (b *batch) awaitMessages(ctx context.Context, q *sqlc.Queries, ids map[conversation.Hash]int64) error {
	if len(b.awaited) == 0 {
		return nil
	}
	rows := sqlc.AwaitPiecesParams{TaskID: b.id}
	for _, hash := range sortedHashes(b.awaited) {
		rows.PieceID = append(rows.PieceID, ids[hash])
	}
	return q.AwaitPieces(ctx, rows)
}

// linkPieces records which pieces the messages contain.
func (b *batch) linkPieces(ctx context.Context, q *sqlc.Queries, ids, pieces map[conversation.Hash]int64) error {
	links := sqlc.LinkPiecesParams{TaskID: b.id}
	for _, hash := range sortedHashes(b.messages) {
		for _, piece := range pieceHashes(b.messages[hash]) {
			if id := pieces[piece]; id != 0 {
				links.MessageID = append(links.MessageID, ids[hash])
				links.PieceID = append(links.PieceID, id)
			}
		}
	}
	if len(links.PieceID) == 0 {
		return nil
	}
	return q.LinkPieces(ctx, links)
}

// holdPieces stores missing pieces, and keeps all of them from being removed until the
// transaction ends.
func holdPieces(ctx context.Context, q *sqlc.Queries, namespace string, pieces map[conversation.Hash][]byte) (map[conversation.Hash]int64, error) {
	ids := map[conversation.Hash]int64{}
	for range holdAttempts {
		if len(ids) == len(pieces) {
			return ids, nil
		}
		rows := sqlc.InsertPiecesParams{Namespace: namespace}
		for _, hash := range sortedHashes(pieces) {
			if ids[hash] == 0 {
				rows.Hash = append(rows.Hash, hash[:])
				rows.Data = append(rows.Data, pieces[hash])
			}
		}
		inserted, err := q.InsertPieces(ctx, rows)
		if err != nil {
			return nil, err
		}
		for _, row := range inserted {
			ids[conversation.Hash(row.Hash)] = row.ID
		}
		held, err := q.HoldPieces(ctx, sqlc.HoldPiecesParams{Namespace: namespace, Hashes: without(rows.Hash, ids)})
		if err != nil {
			return nil, err
		}
		for _, row := range held {
			ids[conversation.Hash(row.Hash)] = row.ID
		}
	}
	if len(ids) == len(pieces) {
		return ids, nil
	}
	return nil, errors.New("pieces kept being removed while they were being stored; try again")
}

// pieceHashes returns the hashes of the pieces that a message refers to.
func pieceHashes(m conversation.Message) []conversation.Hash {
	var hashes []conversation.Hash
	for _, t := range m.Texts() {
		if *t.Pieces == nil {
			continue
		}
		for _, hash := range (*t.Pieces).Hashes {
			if len(hash) == len(conversation.Hash{}) {
				hashes = append(hashes, conversation.Hash(hash))
			}
		}
	}
	return hashes
}

func byteSlices(hashes []conversation.Hash) [][]byte {
	slices := make([][]byte, 0, len(hashes))
	for _, hash := range hashes {
		slices = append(slices, hash[:])
	}
	return slices
}

// Text returns a cut text in full; history.ErrCorrupted if a piece is missing or damaged.
func (s *Store) Text(ctx context.Context, namespace string, p *conversation.Pieces) (string, error) {
	if p == nil {
		return "", nil
	}
	var text strings.Builder
	text.Grow(int(min(max(p.Bytes, 0), int64(len(p.Hashes))*conversation.MaxPiece)))
	err := s.eachPiece(ctx, namespace, p, func(piece []byte) error {
		text.Write(piece)
		return nil
	})
	if err == nil && int64(text.Len()) != p.Bytes {
		err = fmt.Errorf("%w: the pieces of a text of %d bytes have %d bytes", history.ErrCorrupted, p.Bytes, text.Len())
	}
	return conversation.CleanText(text.String()), err
}

// eachPiece reads and verifies the pieces of a text, in order. It stops where the text
// must end: the number of pieces in a message is chosen by its sender.
func (s *Store) eachPiece(ctx context.Context, namespace string, p *conversation.Pieces, f func([]byte) error) error {
	hashes, left := p.Hashes, p.Bytes
	for len(hashes) > 0 {
		part := hashes[:min(piecesPerRead, len(hashes))]
		hashes = hashes[len(part):]
		rows, err := s.read().Pieces(ctx, sqlc.PiecesParams{Namespace: namespace, Hashes: part})
		if err != nil {
			return wrap(err, "read the pieces of a text in "+namespace)
		}
		data := make(map[string][]byte, len(rows))
		for _, row := range rows {
			data[string(row.Hash)] = row.Data
		}
		for _, hash := range part {
			piece, ok := data[string(hash)]
			if !ok {
				return fmt.Errorf("%w: piece %s of a text is missing", history.ErrCorrupted, hex.EncodeToString(hash))
			}
			if !bytes.Equal(conversation.PieceHash(string(piece)), hash) {
				return fmt.Errorf("%w: piece %s of a text does not match its hash", history.ErrCorrupted, hex.EncodeToString(hash))
			}
			if left -= int64(len(piece)); left < 0 {
				return fmt.Errorf("%w: the pieces of a text of %d bytes are longer", history.ErrCorrupted, p.Bytes)
			}
			if err := f(piece); err != nil {
				return err
			}
		}
	}
	return nil
}
