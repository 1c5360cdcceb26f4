package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// taskHistory holds the flags of `task history`.
type taskHistory struct {
	*plugin
	output *enumFlag
	branch string
	limit  int
	tail   int
	from   int
	full   bool
	uid    string
}

func (p *plugin) taskHistoryCommand() *cobra.Command {
	o := &taskHistory{plugin: p}
	cmd := &cobra.Command{
		Use:        "history TASK",
		SuggestFor: []string{"show", "describe", "log", "logs"},
		Short:      "Print a task's conversation",
		Long: `Print a task's conversation: the messages of the user, the agent and its tools in
order, and what the agent remembered at the start of each attempt. After a rewind
this is the branch that the task continues on; earlier branches are kept, and
--branch prints them. Long texts are shortened; --full prints more. A gap marks
lost records. What is missing from the history is reported at the end, with the
command that acknowledges a loss.

Below a message of a supervisor whose tool call made or steered a task, a line with an
arrow says so, and what has become of that task. Below the conversation of a child, it is
said which message of its supervisor made it. Calls that a rewind took back are on
the branch that it left, and say so: what they did stays.`,
		Example: `  # The whole conversation
  kubectl clew task history fix-login

  # The last ten messages
  kubectl clew task history fix-login --tail 10

  # Five messages, starting at one that a search found
  kubectl clew task history fix-login --from 12 --limit 5

  # A supervisor's conversation before its last rewind, with the calls that were taken back
  kubectl clew task history lead --branch main

  # The tasks that a supervisor's calls made
  kubectl clew task history lead -o json | jq -r '.items[].effects[]? | select(.operation == "Created") | .name'

  # With long messages and tool output in full
  kubectl clew task history fix-login --full | less -R

  # The names of the called tools
  kubectl clew task history fix-login -o json | jq -r '.items[].toolCall.name // empty'`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeHistory,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.output = formatFlag(cmd, "chat", "json", "yaml")
	cmd.Flags().BoolVar(&o.full, "full", false, "Print long messages and tool output in full.")
	cmd.Flags().StringVar(&o.branch, "branch", "", "Id of another branch of the conversation, such as the one before a rewind.")
	cmd.Flags().IntVar(&o.tail, "tail", 0, fmt.Sprintf("Print only this many of the last messages, at most %d.", pageSize))
	cmd.Flags().IntVar(&o.from, "from", 0, "Start at the message at this position.")
	cmd.Flags().StringVar(&o.uid, "uid", "", "UID of the task, if several had this name. Defaults to the newest.")
	cmd.Flags().IntVar(&o.limit, "limit", 0, "Maximum number of messages to print; 0 prints all.")
	return cmd
}

func (o *taskHistory) run(ctx context.Context, task string) error {
	if o.limit < 0 {
		return fmt.Errorf("--limit is %d; it must be 0 or more", o.limit)
	}
	if o.tail < 0 || o.tail > pageSize {
		return fmt.Errorf("--tail is %d; it must be from 0 to %d", o.tail, pageSize)
	}
	if o.from < 0 || o.from > 0 && o.tail > 0 {
		return errors.New("--from must be the position of a message, at least 1, and cannot be combined with --tail")
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	if o.output.value != "chat" {
		all := &historyv1.ConversationList{Items: []historyv1.ConversationEntry{}} // never null in JSON
		err := o.pages(ctx, s, task, func(page *historyv1.ConversationList) error {
			all.TypeMeta = page.TypeMeta
			all.RemainingItemCount = page.RemainingItemCount
			all.Items = append(all.Items, page.Items...)
			return nil
		})
		if err != nil {
			return err
		}
		withType(&all.TypeMeta, "ConversationList")
		return o.printRaw(o.output.value, all)
	}
	chat := newChat(o.Out, o.location, o.full)
	details := s.taskDetails(ctx, task, o.uid)
	chat.memory = details.memory
	var left *int64
	count := 0
	err = o.pages(ctx, s, task, func(page *historyv1.ConversationList) error {
		if count == 0 {
			o.nameEarlierCalls(ctx, s, task, chat, page.Items)
		}
		count += len(page.Items)
		left = page.RemainingItemCount
		for _, entry := range page.Items {
			if err := chat.print(entry); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	o.footer(task, count, left)
	if totals := details.totals(); totals != "" && count > 0 {
		fmt.Fprintln(o.ErrOut, totals)
	}
	if maker := details.maker(); maker != "" {
		fmt.Fprintln(o.ErrOut, maker)
	}
	if details.completeness != "" {
		fmt.Fprintln(o.ErrOut, details.completeness)
	}
	return nil
}

// earlierMessages is how many messages before the first one are looked through for calls.
const earlierMessages = 50

// nameEarlierCalls tells the chat which tools were called shortly before the first message, if a
// result that follows names such a call. A result whose call is not found is one of "tool".
func (o *taskHistory) nameEarlierCalls(ctx context.Context, s *session, task string, chat *chat, entries []historyv1.ConversationEntry) {
	if len(entries) == 0 || entries[0].Position <= 1 || !lacksCall(entries) {
		return
	}
	before := entries[0].Position - 1
	size := min(before, earlierMessages)
	params := url.Values{"after": {strconv.FormatInt(before-size, 10)}, "limit": {strconv.FormatInt(size, 10)}}
	for name, value := range map[string]string{"branch": o.branch, "uid": o.uid} {
		if value != "" {
			params.Set(name, value)
		}
	}
	page := &historyv1.ConversationList{}
	if s.historyGet(ctx, []string{"tasks", task, "conversation"}, params, page) != nil {
		return
	}
	for _, e := range page.Items {
		chat.note(e)
	}
}

// lacksCall reports whether there is a result of a tool call that is not among the messages.
func lacksCall(entries []historyv1.ConversationEntry) bool {
	called := map[string]bool{}
	for _, e := range entries {
		if e.ToolCall != nil {
			called[e.ToolCall.ID] = true
		}
		if e.ToolResult != nil && !called[e.ToolResult.CallID] {
			return true
		}
	}
	return false
}

// taskDetails is what is printed beside the messages, as far as the user may read it.
type taskDetails struct {
	history *historyv1.TaskHistory
	// memory describes what the agent remembered, by attempt.
	memory map[int64]string
	// completeness describes what is missing from the history; empty if nothing is.
	completeness string
	// parent is the name of the supervisor that the task is a child of; empty for none.
	parent string
}

// taskDetails reads the details of a task, and leaves out those that it cannot read.
func (s *session) taskDetails(ctx context.Context, name, uid string) taskDetails {
	details := taskDetails{memory: map[int64]string{}}
	params := url.Values{}
	if uid != "" {
		params.Set("uid", uid)
	}
	found := &historyv1.TaskHistory{}
	if s.historyGet(ctx, []string{"taskhistories", name}, params, found) == nil {
		details.history = found
	}
	task := &v1alpha1.Task{}
	if s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, task) != nil || uid != "" && string(task.UID) != uid {
		return details
	}
	for _, attempt := range task.Status.Attempts {
		details.memory[attempt.Number] = memoryText(attempt)
	}
	details.completeness, details.parent = completeness(task), parentOf(task)
	return details
}

// memoryText describes how the agent of an attempt knew the earlier conversation, as the
// end of a sentence. It returns "" for a new agent.
func memoryText(attempt v1alpha1.Attempt) string {
	text := map[v1alpha1.AgentMemory]string{
		v1alpha1.AgentMemorySession:  "resumed its own session",
		v1alpha1.AgentMemoryRendered: "got the conversation in its prompt",
	}[attempt.Memory]
	if text != "" && attempt.Memory == v1alpha1.AgentMemoryRendered && attempt.MemoryMessage != "" {
		text += ": " + clip.Runes(oneLine(attempt.MemoryMessage), 120)
	}
	return text
}

// totals formats the totals of the conversation on one line, or returns "" if they are
// unknown.
func (d taskDetails) totals() string {
	t := d.history
	if t == nil {
		return ""
	}
	text := fmt.Sprintf("%s, %s, %s tokens in and %s out", plural(t.Messages, "message"), plural(t.ToolCalls, "tool call"), count(t.InputTokens), count(t.OutputTokens))
	if t.CostMicroUSD > 0 {
		text += ", " + dollars(t.CostMicroUSD)
	}
	var models []string
	for _, m := range t.Models {
		if m.Model != "" {
			models = append(models, m.Model)
		}
	}
	if len(models) > 0 {
		text += ", by " + clip.Runes(oneLine(strings.Join(models, ", ")), 80)
	}
	if len(t.Tools) > 0 {
		text += "; tools: " + clip.Runes(oneLine(strings.Join(t.Tools, ", ")), 120)
	}
	return text
}

// footer prints on standard error how many messages were not printed.
func (o *taskHistory) footer(task string, count int, left *int64) {
	switch {
	case count == 0:
		fmt.Fprintf(o.ErrOut, "Task %s has no messages yet.\n", task)
	case left != nil && *left > 0:
		fmt.Fprintf(o.ErrOut, "%s not printed; --limit 0 prints all.\n", plural(*left, "more message"))
	}
}

// pages reads the conversation page by page until the limit.
func (o *taskHistory) pages(ctx context.Context, s *session, task string, take func(*historyv1.ConversationList) error) error {
	params := url.Values{}
	if o.branch != "" {
		params.Set("branch", o.branch)
	}
	if o.tail > 0 {
		params.Set("tail", strconv.Itoa(o.tail))
	}
	if o.from > 1 {
		params.Set("after", strconv.Itoa(o.from-1))
	}
	if o.uid != "" {
		params.Set("uid", o.uid)
	}
	if o.full || o.output.value != "chat" {
		params.Set("full", "true")
	}
	for got := 0; ; {
		size := pageSize
		if o.limit > 0 {
			size = min(size, o.limit-got)
		}
		params.Set("limit", strconv.Itoa(size))
		page := &historyv1.ConversationList{}
		if err := s.historyGet(ctx, []string{"tasks", task, "conversation"}, params, page); err != nil {
			return err
		}
		if err := take(page); err != nil {
			return err
		}
		got += len(page.Items)
		if page.Continue == "" || (o.limit > 0 && got >= o.limit) {
			return nil
		}
		params.Set("continue", page.Continue)
	}
}

// withType sets the kind and version of a list of the history API if they are missing.
func withType(t *metav1.TypeMeta, kind string) {
	if t.Kind == "" {
		t.Kind, t.APIVersion = kind, historyv1.Group+"/"+historyv1.Version
	}
}
