package conversation

import (
	"crypto/sha256"

	"github.com/clew-dev/clew/internal/clip"
)

// Limits of what is kept beside a message and what is cut into pieces.
const (
	// MaxInline is the longest text that is kept whole with its message.
	MaxInline = 16 << 10
	// MaxPiece is the longest piece.
	MaxPiece = 256 << 10
	// PreviewBytes is how much of a cut text stays with its message.
	PreviewBytes = 4 << 10
)

// Pieces say that a text was cut: the field beside them holds its beginning.
// Pieces are content-addressed within one namespace.
type Pieces struct {
	// Hashes are the SHA-256 of each piece of the whole text, in order.
	Hashes [][]byte
	// Bytes is the length of the whole text.
	Bytes int64
}

// Plausible tells whether a text of so many bytes can have so many pieces. Each
// but the last is about as long as a piece may be; many short ones would let a
// short message name far more than it says.
func (p Pieces) Plausible() bool {
	return p.Bytes >= 0 && int64(len(p.Hashes)-1)*(MaxPiece/2) <= p.Bytes
}

// Cut cuts a text into pieces of at most MaxPiece bytes, at runes, and returns
// its beginning, what names the pieces, and the pieces. A text of at most
// MaxInline bytes stays whole: the names and the pieces are nil.
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

// Beginning is what stays with its message of a text that is cut.
func Beginning(text string) string { return clip.Bytes(text, PreviewBytes) }

// PieceHash is the address of a piece within its namespace.
func PieceHash(piece string) []byte {
	sum := sha256.Sum256([]byte(piece))
	return sum[:]
}
