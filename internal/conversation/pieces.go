package conversation

import (
	"crypto/sha256"

	"github.com/clew-dev/clew/internal/clip"
)

// Limits on the texts that are stored with a message, and on the pieces of longer ones.
const (
	// MaxInline is the length of the longest text that is stored whole with its message.
	MaxInline = 16 << 10
	// MaxPiece is the length of the longest piece.
	MaxPiece = 256 << 10
	// PreviewBytes is the length of the beginning of a cut text that stays with its
	// message.
	PreviewBytes = 4 << 10
)

// Pieces identifies the pieces of a text that was cut; the field beside it holds
// only the beginning. Pieces are content-addressed within one namespace.
type Pieces struct {
	// Hashes are the SHA-256 hashes of the pieces of the whole text, in order.
	Hashes [][]byte
	// Bytes is the length of the whole text.
	Bytes int64
}

// Plausible reports whether a text of p.Bytes can have that number of pieces. Each
// piece except the last has about the maximum length; many short pieces would let a
// short message reference far more than its stated size.
func (p Pieces) Plausible() bool {
	return p.Bytes >= 0 && int64(len(p.Hashes)-1)*(MaxPiece/2) <= p.Bytes
}

// Cut cuts a text into pieces of at most MaxPiece bytes, at rune boundaries, and
// returns its beginning, the names of the pieces, and the pieces. A text of at most
// MaxInline bytes is not cut: then names and pieces are nil.
func Cut(text string) (beginning string, names *Pieces, pieces []string) {
	if len(text) <= MaxInline {
		return text, nil, nil
	}
	names = &Pieces{Bytes: int64(len(text))}
	for rest := text; rest != ""; {
		n := len(clip.Bytes(rest, MaxPiece))
		pieces = append(pieces, rest[:n])
		names.Hashes = append(names.Hashes, PieceHash(rest[:n]))
		rest = rest[n:]
	}
	return Beginning(text), names, pieces
}

// Beginning returns the part of a cut text that stays with its message.
func Beginning(text string) string { return clip.Bytes(text, PreviewBytes) }

// PieceHash returns the address of a piece within its namespace.
func PieceHash(piece string) []byte {
	sum := sha256.Sum256([]byte(piece))
	return sum[:]
}
