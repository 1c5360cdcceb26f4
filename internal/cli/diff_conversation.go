package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

// printConversation prints the messages between the two moments; of moments on two branches, or of
// two tasks, what each has beyond those that they have in common.
func (o *diff) printConversation(ctx context.Context, s *session, task string, params url.Values) error {
	params.Set("limit", "1")
	params.Set("format", "none")
	var found *historyv1.Diff
	err := s.historyGet(ctx, []string{"tasks", task, "diff"}, params, &found)
	switch {
	case err != nil:
		return err
	case found.Conversation == nil:
		return errors.New("it is not known where in a conversation one of the two moments is; name checkpoints, or print each conversation with `kubectl clew task history`")
	}
	c, from, to := *found.Conversation, found.From, found.To
	differs := c.FromPosition != c.ToPosition
	if oneBranch(from, to) {
		whole := to // what the other moment is a beginning of
		if to.Type == historyv1.MomentBase {
			whole = from
		}
		err = o.printMessages(ctx, s, whole, cmp.Or(to.Branch, from.Branch), min(c.FromPosition, c.ToPosition), max(c.FromPosition, c.ToPosition))
	} else {
		differs = c.SharedPosition < max(c.FromPosition, c.ToPosition)
		err = o.printSides(ctx, s, found)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(o.ErrOut, conversationText(found))
	return o.verdict(differs)
}

// oneBranch reports whether one of two moments follows the other on a branch of one conversation.
// Every branch follows the base.
func oneBranch(from, to historyv1.DiffMoment) bool {
	return from.Type == historyv1.MomentBase || to.Type == historyv1.MomentBase ||
		from.TaskUID == to.TaskUID && (from.Branch == to.Branch || from.Branch == "" || to.Branch == "")
}

// printSides names the messages that both moments have, and prints those that only one of them
// has.
func (o *diff) printSides(ctx context.Context, s *session, found *historyv1.Diff) error {
	c := *found.Conversation
	common := "no message"
	if c.SharedPosition > 0 {
		common = "the first " + plural(c.SharedPosition, "message")
	}
	fmt.Fprintf(o.Out, "--- in common: %s ---\n", common)
	tasks := found.From.TaskUID != found.To.TaskUID
	for _, side := range []struct {
		of      historyv1.DiffMoment
		through int64
	}{{found.From, c.FromPosition}, {found.To, c.ToPosition}} {
		own := side.through - c.SharedPosition
		fmt.Fprintf(o.Out, "--- only %s: %s after message %d ---\n", momentText(side.of, tasks), plural(own, "message"), c.SharedPosition)
		if err := o.printMessages(ctx, s, side.of, side.of.Branch, c.SharedPosition, side.through); err != nil {
			return err
		}
	}
	return nil
}

// momentText names a moment in a heading, with its task if it is told to.
func momentText(m historyv1.DiffMoment, withTask bool) string {
	text := "up to now"
	if m.Checkpoint > 0 {
		text = fmt.Sprintf("up to checkpoint %d", m.Checkpoint)
	}
	if withTask {
		text += " of task " + oneLine(m.Task)
	}
	if m.Branch != "" {
		text += ", on " + oneLine(m.Branch)
	}
	return text
}

// printMessages prints the messages of a branch after one position and through another.
func (o *diff) printMessages(ctx context.Context, s *session, of historyv1.DiffMoment, branch string, after, through int64) error {
	chat := newChat(o.Out, o.location, false)
	at := url.Values{"uid": {of.TaskUID}}
	if branch != "" {
		at.Set("branch", branch)
	}
	for after < through {
		at.Set("after", strconv.FormatInt(after, 10))
		at.Set("limit", strconv.FormatInt(min(pageSize, through-after), 10))
		page := &historyv1.ConversationList{}
		if err := s.historyGet(ctx, []string{"tasks", of.Task, "conversation"}, at, page); err != nil {
			return err
		}
		if len(page.Items) == 0 {
			break // the conversation was rewound since
		}
		for _, entry := range page.Items {
			if err := chat.print(entry); err != nil {
				return err
			}
			after = entry.Position
		}
	}
	return nil
}
