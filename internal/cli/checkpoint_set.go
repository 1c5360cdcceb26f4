package cli

import (
	"fmt"
	"io"
	"strconv"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// describeSet lists the members of a set of checkpoints; nothing for a checkpoint that names none.
func describeSet(w io.Writer, style style, set *v1alpha1.CheckpointSet) error {
	if set == nil {
		return nil
	}
	fmt.Fprintln(w, style.bold(fmt.Sprintf("Taken of %s (%s):", plural(int64(len(set.Members)), "task"), set.State)))
	rows := make([][]string, 0, len(set.Members))
	for _, m := range set.Members {
		number := "-"
		if m.Number != 0 {
			number = strconv.FormatInt(m.Number, 10)
		}
		rows = append(rows, []string{"  " + m.Task, number, m.Checkpoint, describeMember(m)})
	}
	return table(w, nil, rows)
}

// describeMember says how a member of a set stands.
func describeMember(m v1alpha1.CheckpointSetMember) string {
	text := map[v1alpha1.SetMemberState]string{
		v1alpha1.MemberPending: "is awaited", v1alpha1.MemberTaken: "was taken",
		v1alpha1.MemberAtRest: "is that of a task at rest", v1alpha1.MemberFailed: "was not taken in time",
	}[m.State]
	if m.Message != "" {
		text = "could not be requested: " + m.Message
	}
	if m.Moment == v1alpha1.MomentInCall {
		text += " in the middle of a call of a tool"
	}
	switch {
	case m.HoldEnd == v1alpha1.HoldReleased:
		text += "; the agent stood still until all were taken"
	case m.HoldEnd == v1alpha1.HoldExpired && m.State == v1alpha1.MemberAtRest:
		text += ", which has started meanwhile"
	case m.HoldEnd == v1alpha1.HoldExpired:
		text += "; the agent continued before all were taken"
	}
	return text
}
