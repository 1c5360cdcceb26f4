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
		Long: `Print a task's conversation: what the user, the agent and its tools said, in
order, and what the agent remembered at the start of each attempt. After a
rewind it is the conversation that goes on; the others are kept, and read with
--branch. Long texts are cut short; --full prints them. A gap stands for lost
records. What is missing is said at the end, with the command that acknowledges a
loss.`,
		Example: `  # Read it
  kubectl clew task history fix-login

  # The last ten messages
  kubectl clew task history fix-login --tail 10

  # From a message on, such as one that a search has found
  kubectl clew task history fix-login --from 12 --limit 5

  # With all that the tools printed
  kubectl clew task history fix-login --full | less -R

  # The names of the tools that were called
  kubectl clew task history fix-login -o json | jq -r '.items[].toolCall.name // empty'`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeHistory,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.output = formatFlag(cmd, "chat", "json", "yaml")
	cmd.Flags().BoolVar(&o.full, "full", false, "Print long messages and tool output in full.")
	cmd.Flags().StringVar(&o.branch, "branch", "", "Id of another branch of the conversation, such as one left by a rewind.")
	cmd.Flags().IntVar(&o.tail, "tail", 0, fmt.Sprintf("Print the last so many messages only, at most %d.", pageSize))
	cmd.Flags().IntVar(&o.from, "from", 0, "Print from the message at this position on.")
	cmd.Flags().StringVar(&o.uid, "uid", "", "UID of an earlier task of the name; the newest when left out.")
	cmd.Flags().IntVar(&o.limit, "limit", 0, "Print so many messages at most, from the first; 0 prints all.")
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
		return errors.New("--from must be the position of a message, from 1, and goes without --tail")
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
	about := s.aboutTask(ctx, task, o.uid)
	chat.memory = about.memory
	var left *int64
	count := 0
	err = o.pages(ctx, s, task, func(page *historyv1.ConversationList) error {
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
	o.close(task, count, left)
	if sums := about.sums(); sums != "" && count > 0 {
		fmt.Fprintln(o.ErrOut, sums)
	}
	if about.completeness != "" {
		fmt.Fprintln(o.ErrOut, about.completeness)
	}
	return nil
}

// aboutTask is what is worth knowing beside the messages, as far as the caller
// may see it.
type aboutTask struct {
	history *historyv1.TaskHistory
	// memory tells what the agent remembered at the start of attempts.
	memory map[int64]string
	// completeness says what is missing of the history; empty if nothing is.
	completeness string
}

func (s *session) aboutTask(ctx context.Context, name, uid string) aboutTask {
	about := aboutTask{memory: map[int64]string{}}
	params := url.Values{}
	if uid != "" {
		params.Set("uid", uid)
	}
	found := &historyv1.TaskHistory{}
	if s.historyGet(ctx, []string{"taskhistories", name}, params, found) == nil {
		about.history = found
	}
	task := &v1alpha1.Task{}
	if s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, task) != nil || uid != "" && string(task.UID) != uid {
		return about
	}
	for _, attempt := range task.Status.Attempts {
		about.memory[attempt.Number] = memoryWords(attempt)
	}
	about.completeness = completeness(task)
	return about
}

// memoryWords says what an agent knew of the conversation when it was started.
func memoryWords(attempt v1alpha1.Attempt) string {
	words := map[v1alpha1.AgentMemory]string{
		v1alpha1.AgentMemorySession:  "goes on in its own session",
		v1alpha1.AgentMemoryRendered: "was told the conversation in its prompt",
	}[attempt.Memory]
	if words != "" && attempt.Memory == v1alpha1.AgentMemoryRendered && attempt.MemoryMessage != "" {
		words += ": " + clip.Runes(oneLine(attempt.MemoryMessage), 120)
	}
	return words
}

// sums of the conversation on a line, empty if they are not known.
func (a aboutTask) sums() string {
	t := a.history
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

// close says on standard error what the conversation itself does not.
func (o *taskHistory) close(task string, count int, left *int64) {
	switch {
	case count == 0:
		fmt.Fprintf(o.ErrOut, "Nothing was said in task %s yet.\n", task)
	case left != nil && *left > 0:
		fmt.Fprintf(o.ErrOut, "%s more; --limit 0 prints all.\n", plural(*left, "message"))
	}
}

// pages reads the conversation page by page, up to the limit.
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

// withType fills in what a list of the history API is.
func withType(t *metav1.TypeMeta, kind string) {
	if t.Kind == "" {
		t.Kind, t.APIVersion = kind, historyv1.Group+"/"+historyv1.Version
	}
}
