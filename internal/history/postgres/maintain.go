package postgres

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/clew-dev/clew/internal/history"
)

// MaintenanceOptions say what RunMaintenance keeps.
type MaintenanceOptions struct {
	// EventRetention is how long events are kept, to the month; for ever if 0.
	EventRetention time.Duration
	// SnapshotRetention is how long automatic snapshots are kept; for ever if 0.
	// Those of checkpoints stay.
	SnapshotRetention time.Duration
	// MessageRetention is how long the history of a task is kept that is
	// written to no more and whose Task is gone; for ever if 0.
	MessageRetention time.Duration
	// TaskExists tells whether the Task object of a history is still there. It
	// is asked right before a history is deleted, and is needed for
	// MessageRetention alone.
	TaskExists func(ctx context.Context, task history.Task) (bool, error)
	// Registerer gets the metrics; nil for none.
	Registerer prometheus.Registerer
}
