package cli

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

type taskHistory struct {
	*plugin
	output *enumFlag
	branch string
	limit  int
	tail   int
	full   bool
}

func (p *plugin) taskHistoryCommand() *cobra.Command {
	o := &taskHistory{plugin: p}
	cmd := &cobra.Command{
		Use:   "history TASK",
		Short: "Print a task's conversation",
		Long: `Print a task's conversation: what the user, the agent and its tools said, in
order. After a rewind it is the conversation that goes on; the others are kept,
and read with --branch.`,
		Example: `  # Read it
  kubectl clew task history fix-login

  # The last ten messages
  kubectl clew task history fix-login --tail 10

  # With all that the tools printed
  kubectl clew task history fix-login --full | less -R

  # The names of the tools that were called
  kubectl clew task history fix-login -o json | jq -r '.items[].toolCall.name // empty'`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.output = &enumFlag{value: "chat", allowed: []string{"chat", "json", "yaml"}}
	cmd.Flags().VarP(o.output, "output", "o", "How to print it. One of chat, json, yaml.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(o.output.allowed, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().BoolVar(&o.full, "full", false, "Print long messages and tool output in full.")
	cmd.Flags().StringVar(&o.branch, "branch", "", "Id of another branch of the conversation, such as one left by a rewind.")
	cmd.Flags().IntVar(&o.tail, "tail", 0, fmt.Sprintf("Print the last so many messages only, at most %d.", pageSize))
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
	s, err := o.connect()
	if err != nil {
		return err
	}
	if o.output.value != "chat" {
		all := &historyv1.ConversationList{}
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
	return nil
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
