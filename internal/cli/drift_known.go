package cli

import (
	"fmt"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// What is known of drift before an operation looks for it. The volume is compared when a pod
// starts, so the task's status has what an earlier pod found.

const (
	// namedFiles is how many drifted files a sentence names.
	namedFiles = 5
	// lostForGood follows what an operation discards.
	lostForGood = " (they are not kept, and undo does not bring them back)"
	// andOthers follows what is known: files may have been changed since.
	andOthers = ", and whatever else its next pod finds"
	// decideDrift follows what stops an operation.
	decideDrift = "keep the changes with --on-drift preserve, or discard them with --on-drift override"
)

// changedMeanwhile names files that have drifted.
func changedMeanwhile(found *v1alpha1.DriftStatus) string {
	text := plural(found.FileCount, "file") + " changed while the task was not running"
	var names []string
	for _, f := range found.Files[:min(len(found.Files), namedFiles)] {
		names = append(names, clip.Runes(oneLine(f.Path), 100))
	}
	if len(names) == 0 {
		return text
	}
	text += ": " + strings.Join(names, ", ")
	if more := found.FileCount - int64(len(names)); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// driftRow returns the row about what an operation (rewind or resume) does with drift; none if it
// is not known to do anything.
func driftRow(operation string, task *v1alpha1.Task, onDrift v1alpha1.OnDrift) [][]string {
	found := task.Status.UndecidedDrift()
	switch {
	case found == nil && onDrift == v1alpha1.OnDriftOverride && !active(task):
		return [][]string{{"  discards", "files changed while the task was not running, if its next pod finds any" + lostForGood}}
	case found == nil:
		return nil
	case onDrift == v1alpha1.OnDriftOverride:
		return [][]string{{"  discards", changedMeanwhile(found) + andOthers + lostForGood}}
	case onDrift == v1alpha1.OnDriftPreserve:
		return [][]string{{"  keeps first", changedMeanwhile(found) + andOthers + " (as a checkpoint of their own)"}}
	}
	return [][]string{{"  has drifted", changedMeanwhile(found) + ": the " + operation + " fails because of them, unless --on-drift says what to do"}}
}

// driftFails returns the error with which a rewind is known to end because of drift; nil if it may
// succeed.
func (o *rewind) driftFails(task *v1alpha1.Task) error {
	found := task.Status.UndecidedDrift()
	if found == nil || o.onDrift.value != string(v1alpha1.OnDriftFail) {
		return nil
	}
	return fmt.Errorf("the rewind would fail, and is not requested: %s; %s", changedMeanwhile(found), decideDrift)
}

// announceDiscarded prints what is discarded by a resume that has no preview.
func (o *resume) announceDiscarded(task *v1alpha1.Task) {
	if o.from != "" || o.onDrift.value != string(v1alpha1.OnDriftOverride) {
		return
	}
	for _, row := range driftRow("resume", task, v1alpha1.OnDriftOverride) {
		fmt.Fprintln(o.previewOf(&o.dryRun, o.print), strings.TrimSpace(strings.Join(row, " ")))
	}
}

// discarded returns the drifted files that a complete operation has discarded: as the attempt that
// carried it out reports, or else what was known before, for an attempt may have been lost after it
// had discarded them.
func discarded(task *v1alpha1.Task, operation *v1alpha1.OperationStatus, onDrift v1alpha1.OnDrift, known *v1alpha1.DriftStatus) *v1alpha1.DriftStatus {
	if found := task.Status.DiscardedDrift(); found != nil && operation != nil && found.Attempt == operation.Attempt {
		return found
	}
	if onDrift != v1alpha1.OnDriftOverride {
		return nil
	}
	return known
}

// active reports whether a task runs, or is about to.
func active(task *v1alpha1.Task) bool {
	succeeded := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	return succeeded != nil && succeeded.Status == metav1.ConditionUnknown && !stopped(succeeded.Reason)
}
