package conversation

import (
	"crypto/sha256"
	"encoding/hex"
)

// Digest identifies all messages of a conversation up to a position, in order. It
// is a hash chain: the digest after a message is the SHA-256 of the previous digest
// and the message's hash. The zero value is the digest of the empty conversation.
type Digest [sha256.Size]byte

// Add returns the digest after one more message.
func (d Digest) Add(hash Hash) Digest {
	var both [2 * sha256.Size]byte
	copy(both[:], d[:])
	copy(both[sha256.Size:], hash[:])
	return sha256.Sum256(both[:])
}

// String returns the digest in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }
