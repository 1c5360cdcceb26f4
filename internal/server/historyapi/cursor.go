package historyapi

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
)

// Kinds of cursor.
const (
	kindConversation = "conversation"
	kindTimeline     = "timeline"
	kindSearch       = "search"
	kindTasks        = "tasks"
	kindSnapshots    = "snapshots"
	kindDiff         = "diff"
	kindCheckpoints  = "checkpoints"
)

// cursor is the place where a list continues. Callers see it as an opaque text. It grants
// no rights: what it refers to is looked up within the namespace and task that the caller
// may read.
type cursor struct {
	Kind string `json:"k"`
	UID  string `json:"u,omitempty"`
	// Branch and After are a place in a conversation. Alone, After is the number of a
	// checkpoint, or of files.
	Branch string `json:"b,omitempty"`
	After  int64  `json:"a,omitempty"`
	// Time and ID are a place in a timeline.
	Time time.Time `json:"t,omitzero"`
	ID   string    `json:"i,omitempty"`
	// Hit is a place in the results of a search.
	Hit history.SearchKey `json:"h,omitzero"`
	// Task is a place in a list of tasks that has the order Sort.
	Task history.TaskKey `json:"n,omitzero"`
	Sort string          `json:"s,omitempty"`
	// Snapshot is a place in a list of snapshots.
	Snapshot snapshotPlace `json:"p,omitzero"`
	// Diff is a place in a difference.
	Diff *diffCursor `json:"d,omitempty"`
}

// diffCursor is a request for a difference, as the first page resolved it: the pages must be of
// one list.
type diffCursor struct {
	From    string              `json:"f"`
	To      string              `json:"t"`
	Commits [2]string           `json:"c"`
	Paths   []string            `json:"p,omitempty"`
	Ignored bool                `json:"i,omitempty"`
	Listing gitstoreapi.Listing `json:"l"`
}

func (c cursor) encode() (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode a continue token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(b), nil
}

func decodeCursor(token, kind string) (cursor, error) {
	var c cursor
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil || c.Kind != kind || c.After < 0 || (kind == kindDiff) != (c.Diff != nil) {
		return cursor{}, badRequest("the continue token is not from this list; start again without it")
	}
	return c, nil
}
