package cli

import (
	"fmt"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

// effectText says on one line what a call of a supervisor's tool did, and what has become of the task.
func effectText(e historyv1.Effect) string {
	name, phase, outcome := oneLine(e.Name), "", ""
	if e.Phase != "" {
		phase = " (phase " + oneLine(e.Phase) + ")"
	}
	if e.Outcome != "" {
		outcome = ", now " + oneLine(e.Outcome)
	}
	var text string
	switch e.Operation {
	case historyv1.EffectCreated:
		text = "made task " + name + phase + outcome
	case historyv1.EffectForked:
		text = fmt.Sprintf("made task %s by a fork from checkpoint %d%s", name, e.Checkpoint, outcome)
	case historyv1.EffectRepeated:
		text = "is task " + name + " already" + outcome
	case historyv1.EffectResumed:
		text = "resumed task " + name + outcome
	case historyv1.EffectRewound:
		text = "took task " + name + " back"
		if e.Checkpoint > 0 {
			text += fmt.Sprintf(" to checkpoint %d", e.Checkpoint)
		}
		text += outcome
	case historyv1.EffectStopped:
		text = "stopped task " + name + outcome
	case historyv1.EffectPhaseSet:
		text = "moved the contract to phase " + oneLine(e.Phase)
	case historyv1.EffectPublished:
		text = fmt.Sprintf("published checkpoint %d of task %s", e.Checkpoint, name)
	default:
		text = oneLine(e.Operation) + " " + name + outcome
	}
	if e.TakenBack {
		text += " (a rewind took this message back, and not what it did)"
	}
	return "→ " + text
}

// maker says which message of which supervisor made the task, as far as that is known; "" if none did.
func (d taskDetails) maker() string {
	if d.history == nil || d.history.MadeBy == nil {
		if d.parent == "" {
			return ""
		}
		return fmt.Sprintf("A child of task %s; none of its messages is known to have made it.", oneLine(d.parent))
	}
	by := d.history.MadeBy
	how, branch := "made", ""
	if by.Operation == historyv1.EffectForked {
		how = "made by a fork"
	}
	if by.Phase != "" {
		how += " in phase " + oneLine(by.Phase)
	}
	if by.TakenBack {
		branch = " --branch " + oneLine(by.Branch)
		how += ", in a message that a rewind took back"
	}
	return fmt.Sprintf("A child of task %s, %s: `kubectl clew task history %s --from %d --limit 1%s` prints the message.",
		oneLine(by.Name), how, oneLine(by.Name), by.Position, branch)
}

// parentOf returns the name of the supervisor that a task is a child of; "" for none.
func parentOf(task *v1alpha1.Task) string {
	if ref := task.Spec.ParentRef; ref != nil {
		return ref.Name
	}
	return ""
}
