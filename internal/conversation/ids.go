package conversation

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// MaxID bounds the id of a tool call and the name of a tool, in bytes. Agents choose
// them, and they are stored with each message and, while the call is open, with the
// head of the conversation.
const MaxID = 256

// ShortID returns an id or name of at most MaxID bytes unchanged. It shortens a
// longer one to its beginning and a hash of the whole, so that a result still
// matches its call. It is idempotent.
func ShortID(id string) string {
	if len(id) <= MaxID {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	hash := "-" + hex.EncodeToString(sum[:])
	return strings.ToValidUTF8(id[:MaxID-len(hash)], "") + hash
}
