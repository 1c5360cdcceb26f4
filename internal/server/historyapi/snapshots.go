package historyapi

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// snapshotPlace is a place in the list of a task's snapshots, which is merged from two: the
// ordinal of the last automatic snapshot that was listed, and the number of the last checkpoint.
type snapshotPlace struct {
	Ordinal    int64 `json:"o,omitempty"`
	Checkpoint int64 `json:"c,omitempty"`
}

// snapshots returns a page of the snapshots of a task's conversation, oldest first: those that
// were taken because enough messages had been recorded, and that of each checkpoint. Parameters:
// kind (Automatic or Checkpoint; both if it is left out), limit, continue, uid.
func (a *api) snapshots(c *call) (any, error) {
	values := c.URL.Query()
	limit, err := numberOf(values, "limit", maxLimit)
	if err != nil {
		return nil, err
	}
	limit = min(limit, maxLimit)
	kinds := []string{history.SnapshotAutomatic, history.SnapshotCheckpoint}
	if kind := values.Get("kind"); kind != "" {
		if !slices.Contains(kinds, kind) {
			return nil, badRequest("there are no stored snapshots of the kind %q; the kinds are %s and %s", kind, kinds[0], kinds[1])
		}
		kinds = []string{kind}
	}
	from := cursor{UID: values.Get("uid")}
	if token := values.Get("continue"); token != "" {
		if from, err = decodeCursor(token, kindSnapshots); err != nil {
			return nil, err
		}
	}
	task, err := a.find(c.Context(), c.access.Namespace, c.access.Name, from.UID)
	if err != nil {
		return nil, err
	}
	found, err := a.snapshotsAfter(c.Context(), task.Key(), kinds, from.Snapshot, limit+1)
	if err != nil {
		return nil, err
	}
	snapshots := make([]historyv1alpha1.Snapshot, 0, len(found))
	place := from.Snapshot
	for _, s := range found[:min(limit, len(found))] {
		snapshots = append(snapshots, snapshotOf(s))
		if s.Kind == history.SnapshotCheckpoint {
			place.Checkpoint = s.Checkpoint
		} else {
			place.Ordinal = s.Ordinal
		}
	}
	list := itemsOf("SnapshotList", snapshots)
	if len(found) > limit {
		list.meta.Continue, err = cursor{Kind: kindSnapshots, UID: task.UID, Snapshot: place}.encode()
	}
	return list, err
}

// snapshotsAfter returns up to limit snapshots of some kinds after a place, by time.
func (a *api) snapshotsAfter(ctx context.Context, task history.Key, kinds []string, after snapshotPlace, limit int) ([]history.Snapshot, error) {
	var automatic, ofCheckpoints []history.Snapshot
	var err error
	if slices.Contains(kinds, history.SnapshotAutomatic) {
		if automatic, err = a.Archive.SnapshotsAfter(ctx, task.UID, after.Ordinal, limit); err != nil {
			return nil, err
		}
	}
	if slices.Contains(kinds, history.SnapshotCheckpoint) {
		checkpoints, err := a.Archive.CheckpointsAfter(ctx, task.UID, after.Checkpoint, limit)
		if err != nil {
			return nil, err
		}
		for _, c := range checkpoints {
			ofCheckpoints = append(ofCheckpoints, history.SnapshotOf(c))
		}
	}
	merged := mergeSnapshots(automatic, ofCheckpoints)
	return merged[:min(limit, len(merged))], nil
}

// mergeSnapshots merges two lists by time. Each keeps its own order, so that a place in the
// merged list is a place in either.
func mergeSnapshots(a, b []history.Snapshot) []history.Snapshot {
	merged := make([]history.Snapshot, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if b[0].Time.Before(a[0].Time) {
			merged, b = append(merged, b[0]), b[1:]
		} else {
			merged, a = append(merged, a[0]), a[1:]
		}
	}
	return append(append(merged, a...), b...)
}

func snapshotOf(s history.Snapshot) historyv1alpha1.Snapshot {
	return historyv1alpha1.Snapshot{
		Ordinal: s.Ordinal, Kind: s.Kind, Time: metav1.NewMicroTime(s.Time), Branch: s.Position.Branch, Position: s.Position.Position,
		ToolCalls: s.Totals.ToolCalls, InputTokens: s.Totals.InputTokens, OutputTokens: s.Totals.OutputTokens,
		CostMicroUSD: s.Totals.CostMicroUSD, Digest: s.Digest, Checkpoint: s.Checkpoint,
	}
}
