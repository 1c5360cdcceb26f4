package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

// moment resolves --at to the moment of the Fork, which is nil for the latest checkpoint, and to
// what it means now. newest is the newest checkpoint of a task that is gone.
func (o *fork) moment(ctx context.Context, s *session, task *v1alpha1.Task, list *v1alpha1.CheckpointList, newest *historyv1.Checkpoint) (*v1alpha1.StartPoint, *rewindTarget, error) {
	if o.at == "" || o.at == historyv1.WordLatest {
		return nil, s.latestOf(ctx, task, list, newest), nil
	}
	if text, ok := strings.CutPrefix(o.at, "message:"); ok {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 {
			return nil, nil, fmt.Errorf("--at is %q; a message is named by its position, such as message:12", o.at)
		}
		from := messageTarget(n)
		return &v1alpha1.StartPoint{Message: &n}, from, from.resolveStart(ctx, s, task, list)
	}
	return o.checkpointOrTime(ctx, s, task, list, newest != nil)
}

// checkpointOrTime resolves --at to a checkpoint or a time. As everywhere, a checkpoint's name counts
// last. An object of a task that is gone may be deleted at any time: its checkpoint is named by the
// number, which the history knows.
func (o *fork) checkpointOrTime(ctx context.Context, s *session, task *v1alpha1.Task, list *v1alpha1.CheckpointList, gone bool) (*v1alpha1.StartPoint, *rewindTarget, error) {
	_, isNumber := numberOf(list, task, o.at)
	if _, err := o.parseMoment("--at", o.at); err == nil && !isNumber {
		return o.atTime(ctx, s, task, list)
	}
	checkpoint, err := s.anyCheckpoint(ctx, list, task, o.at)
	switch {
	case err != nil:
		return nil, nil, alsoTakes(err, "--at", `latest, a message such as message:12, a time such as 2026-11-21T12:00:00Z or "2026-11-21 12:00:00", a date, and a duration such as 30m or 2d`)
	case checkpoint.Name != "" && !gone:
		return &v1alpha1.StartPoint{CheckpointRef: &v1alpha1.NameReference{Name: checkpoint.Name}}, &rewindTarget{named: true, checkpoint: checkpoint}, nil
	}
	return &v1alpha1.StartPoint{CheckpointNumber: &checkpoint.Status.Number}, &rewindTarget{named: true, checkpoint: checkpoint}, nil
}

// atTime resolves --at as a time.
func (o *fork) atTime(ctx context.Context, s *session, task *v1alpha1.Task, list *v1alpha1.CheckpointList) (*v1alpha1.StartPoint, *rewindTarget, error) {
	from, err := o.timeTarget("--at", o.at)
	if err != nil {
		return nil, nil, err
	}
	// A Fork keeps no fraction of a second.
	at, err := time.Parse(time.RFC3339, fmt.Sprint(from.value))
	if err != nil {
		return nil, nil, err
	}
	from.value = at.UTC().Format(time.RFC3339)
	return &v1alpha1.StartPoint{Time: &metav1.Time{Time: at.UTC().Truncate(time.Second)}}, from, from.resolveStart(ctx, s, task, list)
}

// latestOf returns a task's latest checkpoint as a target, as far as it can be found out.
func (s *session) latestOf(ctx context.Context, task *v1alpha1.Task, list *v1alpha1.CheckpointList, newest *historyv1.Checkpoint) *rewindTarget {
	if newest != nil && newest.Durable {
		return &rewindTarget{named: true, checkpoint: objectOf(task, newest)}
	}
	if newest == nil {
		if c, err := s.latest(ctx, task, list); err == nil {
			return &rewindTarget{named: true, checkpoint: c}
		}
	}
	return &rewindTarget{text: "the latest checkpoint"}
}

// resolveStart resolves a position from which new tasks start. Without a checkpoint before it,
// they would wait for one that never comes.
func (t *rewindTarget) resolveStart(ctx context.Context, s *session, task *v1alpha1.Task, list *v1alpha1.CheckpointList) error {
	if err := t.resolve(ctx, s, task, list); err != nil || t.point == nil || t.point.Checkpoint > 0 || behind(task) {
		return err
	}
	return fmt.Errorf("task %s has no checkpoint at or before %s: name a later moment; `kubectl clew checkpoint list %s -n %s` shows its checkpoints", task.Name, t.text, task.Name, task.Namespace)
}

// behind reports whether the manager has noticed that the history store lacks a part of the
// task's conversation.
func behind(task *v1alpha1.Task) bool {
	c := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskHistoryComplete)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonHistoryBehind
}

// preview prints from where the new tasks start, as it is now.
func (o *fork) preview(w io.Writer, source string, from *rewindTarget) error {
	rows := from.rows(o.plugin, v1alpha1.RewindBoth)
	rows[0][0] = "  from"
	if o.noConversation {
		rows = append(rows, []string{"  conversation", "empty"})
	} else if position, known := from.keptMessages(v1alpha1.RewindBoth); known {
		rows = append(rows, []string{"  conversation", fmt.Sprintf("up to message %d, as at the checkpoint", position)})
	}
	fmt.Fprintln(w, styleFor(w).bold("Fork of task "+source))
	return table(w, nil, rows)
}
