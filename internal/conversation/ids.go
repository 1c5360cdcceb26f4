package conversation

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// MaxID is the longest id of a tool call, and the longest name of a tool. An agent
// says what they are, and they stay with each message and, while a call is not
// answered, with the head of the conversation.
const MaxID = 256

// ShortID is the id, or the name, if it is at most MaxID bytes; else its beginning
// with a hash of the whole, so that a result still finds its call. What it made it
// leaves as it is.
func ShortID(id string) string {
	if len(id) <= MaxID {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	hash := "-" + hex.EncodeToString(sum[:])
	return strings.ToValidUTF8(id[:MaxID-len(hash)], "") + hash
}
