package history

import "encoding/json"

// ExportFormat identifies the line format of an export.
const ExportFormat = "clew-history/1"

// ExportLine is one line of an exported history. Kind says what Body is; lines appear in
// the order of the kinds below.
type ExportLine struct {
	Kind string          `json:"kind"`
	Body json.RawMessage `json:"body"`
}

// Kinds of lines of an export.
const (
	ExportTask       = "task"
	ExportBranch     = "branch"
	ExportPiece      = "piece"
	ExportMessage    = "message"
	ExportCheckpoint = "checkpoint"
	ExportOperation  = "operation"
	ExportSnapshot   = "snapshot"
	ExportEvent      = "event"
	// ExportEnd is the last line; an export without it is incomplete.
	ExportEnd = "end"
)

// Deleted counts what the deletion of a task removed.
type Deleted struct {
	// Task that was deleted.
	Task Task
	// Messages and Pieces are those that no other task of the namespace shares.
	Messages    int64
	Pieces      int64
	Events      int64
	Checkpoints int64
}
