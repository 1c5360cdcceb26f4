package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

// previewedChildren is of how many children a preview says what would change: each is a request.
const previewedChildren = 8

// takesChildren reports whether the rewind takes the children of a supervisor along.
func (o *rewind) takesChildren() bool {
	return o.children.value == string(v1alpha1.ChildrenRewind)
}

// childrenPatch is the patch of spec.rewind.children.
func (o *rewind) childrenPatch() any {
	if !o.takesChildren() {
		return nil
	}
	return v1alpha1.ChildrenRewind
}

// checkSet rejects a target to which no children can be taken along.
func (o *rewind) checkSet(task *v1alpha1.Task, target *rewindTarget) error {
	if !o.takesChildren() {
		return nil
	}
	again := fmt.Sprintf("`kubectl clew checkpoint create %s --contract -n %s` takes one", task.Name, task.Namespace)
	c := target.checkpoint
	switch {
	case task.Spec.Role != v1alpha1.RoleSupervisor:
		return fmt.Errorf("task %s is a worker, and has no children: leave --children out", task.Name)
	case len(o.paths) > 0:
		return fmt.Errorf("--children rewind takes children back as a whole: leave the paths out")
	case !target.named || c == nil || c.Name == "" || c.Status.Set == nil:
		return fmt.Errorf("--children rewind needs the name of a set of checkpoints in --to; %s", again)
	case c.Status.Set.State == v1alpha1.SetApart:
		ready := v1alpha1.CheckpointReady
		return fmt.Errorf("the checkpoints of the set %s were not taken together, so no children are taken to it: %s; %s", c.Name, describeCondition(c.Status, ready), again)
	}
	if b := plan.SetBlocker(c); b != nil {
		return errors.New(b.Message)
	}
	return nil
}

// previewChildren prints which children a rewind takes along, and which stay.
func (o *rewind) previewChildren(ctx context.Context, s *session, w io.Writer, task *v1alpha1.Task, target *rewindTarget, id string) error {
	if !o.takesChildren() {
		return nil
	}
	list := &v1alpha1.TaskList{}
	if err := s.client.List(ctx, list, client.InNamespace(s.namespace), client.MatchingLabels{v1alpha1.LabelParent: task.Name}); err != nil {
		return err
	}
	style := styleFor(w)
	children := slices.DeleteFunc(list.Items, func(t v1alpha1.Task) bool { return t.Status.Parent == nil || t.Status.Parent.UID != string(task.UID) })
	there, undone := "stays as it is: it has been at rest since", ""
	var led plan.LedChildren
	if target.field == undoField {
		undone, there = fmt.Sprint(target.value), "stays as it is: it was not rewound"
		led = plan.LedBackBy(undone, task.Status.SetRewind.Children, children)
	} else {
		led = plan.LedBy(plan.SetChildren(target.checkpoint.Status.Set), children)
	}
	var rows [][]string
	for i, c := range led.Follow {
		text := fmt.Sprintf("to its checkpoint %d", c.Child.Checkpoint)
		switch {
		case c.Child.Checkpoint == 0:
			text = "back to before that rewind, once it has followed it"
		case i < previewedChildren:
			text += o.childEffect(ctx, s, c, undone, id, style)
		}
		rows = append(rows, []string{"  " + c.Task.Name, text})
	}
	for _, part := range []struct {
		names []string
		text  string
	}{
		{led.There, there},
		{led.MovedOn, "stays as it is: it was rewound or resumed by another request since"},
		{led.Gone, "is gone"},
		{led.Stay, "stays as it is: it is not in the set"},
	} {
		for _, name := range part.names {
			rows = append(rows, []string{"  " + name, part.text})
		}
	}
	fmt.Fprintln(w, style.bold("Then, of its children"))
	return table(w, nil, rows)
}

// childEffect says what the rewind of a child would do, or why it would be refused. undone is the rewind of the
// supervisor that is undone; empty if none is.
func (o *rewind) childEffect(ctx context.Context, s *session, led plan.LedChild, undone, id string, style style) string {
	child := led.Task
	params := url.Values{"id": {v1alpha1.ParentRewindID(id)}, "preserve": {o.preserve.value}, "limit": {"1"}}
	if undone != "" {
		params.Set(undoField, v1alpha1.ParentRewindID(undone))
	} else {
		params.Set("scope", o.scope.value)
		params.Set("checkpointNumber", strconv.FormatInt(led.Child.Checkpoint, 10))
	}
	setOnDrift(params, o.onDrift)
	effect, err := s.effectOf(ctx, child, params)
	if err = cmp.Or(err, effect.fails(false)); err != nil {
		return ", which is refused: " + oneLine(err.Error())
	}
	var parts []string
	if active(child) {
		parts = append(parts, "its agent is stopped first")
	}
	for _, row := range append(effect.conversation(), effect.changes(style)...) {
		if name := strings.TrimSpace(row[0]); name == "conversation" || name == "changes" {
			parts = append(parts, name+" "+row[1])
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "; " + strings.Join(parts, "; ")
}
