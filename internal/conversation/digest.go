package conversation

import (
	"crypto/sha256"
	"encoding/hex"
)

// Digest stands for all messages of a conversation up to a position, in order.
// It is a chain: each message's is the SHA-256 of the digest before it and the
// message's hash. The zero value is that of the empty conversation.
type Digest [sha256.Size]byte

// Add is the digest after one more message.
func (d Digest) Add(hash Hash) Digest {
	var both [2 * sha256.Size]byte
	copy(both[:], d[:])
	copy(both[sha256.Size:], hash[:])
	return sha256.Sum256(both[:])
}

func (d Digest) String() string { return hex.EncodeToString(d[:]) }
