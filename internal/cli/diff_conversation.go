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

// printConversation prints the messages between the two moments; of moments on two branches, what
// each has beyond those that they have in common.
func (o *diff) printConversation(ctx context.Context, s *session, task string, params url.Values) error {
	params.Set("limit", "1")
	params.Set("format", "none")
	var found *historyv1.Diff
	err := s.historyGet(ctx, []string{"tasks", task, "diff"}, params, &found)
	switch {
	case err != nil:
		return err
	case found.Conversation == nil:
		return errors.New("the two moments are not of one conversation; print each with `kubectl clew task history`")
	}
	c, from, to := *found.Conversation, found.From, found.To
	differs := c.FromPosition != c.ToPosition
	if from.Branch == to.Branch || from.Branch == "" || to.Branch == "" {
		branch := cmp.Or(to.Branch, from.Branch)
		err = o.printMessages(ctx, s, to, branch, min(c.FromPosition, c.ToPosition), max(c.FromPosition, c.ToPosition))
	} else {
		differs = c.SharedPosition < max(c.FromPosition, c.ToPosition)
		for _, side := range []struct {
			of      historyv1.DiffMoment
			through int64
		}{{from, c.FromPosition}, {to, c.ToPosition}} {
			own := side.through - c.SharedPosition
			fmt.Fprintf(o.Out, "--- only %s, on %s: %s after message %d ---\n", momentText(side.of), oneLine(side.of.Branch), plural(own, "message"), c.SharedPosition)
			if err = o.printMessages(ctx, s, side.of, side.of.Branch, c.SharedPosition, side.through); err != nil {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(o.ErrOut, conversationTotals(c))
	return o.verdict(differs)
}

// momentText names a moment in a heading.
func momentText(m historyv1.DiffMoment) string {
	if m.Checkpoint > 0 {
		return fmt.Sprintf("up to checkpoint %d", m.Checkpoint)
	}
	return "up to now"
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
