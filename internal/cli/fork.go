package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// fork holds the flags of `fork`.
type fork struct {
	*plugin
	from, name, prompt string
	noConversation     bool
	wait               waitFlags
	dryRun             dryRunFlag
	print              *genericclioptions.PrintFlags
}

func (p *plugin) forkCommand() *cobra.Command {
	o := &fork{plugin: p}
	cmd := &cobra.Command{
		Use:   "fork TASK --name NEW",
		Short: "Create a new task from a checkpoint of another",
		Long: `Create a new task that starts from a checkpoint of another task: with its files
and, unless --no-conversation is set, its conversation. The source task is not
changed, and both share the stored code.`,
		Example: `  # Try another approach from the latest checkpoint
  kubectl clew fork fix-login --name fix-login-with-oauth

  # Start from an earlier checkpoint, with another prompt and without the conversation
  kubectl clew fork fix-login --from 3 --name second-try --no-conversation \
    --prompt "Fix the login without touching the database."`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVar(&o.from, "from", "", "Name or number of the checkpoint to fork from. Defaults to the latest.")
	cmd.Flags().StringVar(&o.name, "name", "", "Name of the new task and of the Fork object. Required.")
	cmd.Flags().StringVar(&o.prompt, "prompt", "", "Prompt of the new task. Defaults to the source task's prompt.")
	cmd.Flags().BoolVar(&o.noConversation, "no-conversation", false, "Start the new task with an empty conversation.")
	_ = cmd.RegisterFlagCompletionFunc("from", p.completeCheckpointOf)
	_ = cmd.RegisterFlagCompletionFunc("name", cobra.NoFileCompletions)
	o.wait.add(cmd, "the new task is created")
	o.dryRun.add(cmd)
	o.print = p.printFlags(cmd)
	return cmd
}

func (o *fork) run(ctx context.Context, source string) error {
	if o.name == "" {
		return errors.New("the new task needs a name; set it with --name")
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	object, err := o.object(ctx, s, source)
	if err != nil {
		return err
	}
	if err := s.client.Create(ctx, object, o.dryRun.createOptions()...); err != nil {
		return s.explain(err, "fork", o.name)
	}
	outcome := "created"
	if o.wait.wait && !o.dryRun.server {
		object, err = await(ctx, s, o.wait, "fork", &v1alpha1.ForkList{}, object, judgeFork)
		if err != nil {
			return err
		}
		if at := object.Status.Source; at != nil {
			outcome = fmt.Sprintf("created: task.clew.dev/%s starts from checkpoint %d of %s", o.name, at.Checkpoint, source)
		}
	}
	if done, err := o.printed(o.print, object); done {
		return err
	}
	fmt.Fprintf(o.Out, "fork.clew.dev/%s %s%s\n", o.name, outcome, o.dryRun.suffix())
	return nil
}

// object builds the Fork to create. It looks up the source and the checkpoint first,
// since a Fork of something that never exists would wait forever.
func (o *fork) object(ctx context.Context, s *session, source string) (*v1alpha1.Fork, error) {
	task, err := s.task(ctx, source)
	if err != nil {
		return nil, err
	}
	list, err := s.checkpoints(ctx, source)
	if err != nil {
		return nil, err
	}
	object := &v1alpha1.Fork{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: o.name},
		Spec: v1alpha1.ForkSpec{
			SourceRef:    v1alpha1.NameReference{Name: source},
			Conversation: v1alpha1.ConversationInclude,
			Variants:     []v1alpha1.ForkVariant{{Name: o.name}},
		},
	}
	if o.from != "" {
		checkpoint, err := findCheckpoint(list, task, o.from)
		if err != nil {
			return nil, err
		}
		object.Spec.CheckpointRef = &v1alpha1.NameReference{Name: checkpoint.Name}
	}
	if o.noConversation {
		object.Spec.Conversation = v1alpha1.ConversationExclude
	}
	if o.prompt != "" {
		object.Spec.Variants[0].Prompt = &o.prompt
	}
	return object, nil
}

// judgeFork is done once the new task exists.
func judgeFork(f *v1alpha1.Fork) verdict {
	complete := apimeta.FindStatusCondition(f.Status.Conditions, v1alpha1.ForkComplete)
	switch {
	case complete == nil:
		return verdict{state: "fork requested"}
	case complete.Status == metav1.ConditionTrue:
		return verdict{done: true, state: "forked"}
	}
	switch complete.Reason {
	case v1alpha1.ReasonTaskExists, v1alpha1.ReasonCheckpointOfOther:
		return verdict{err: fmt.Errorf("the fork failed: %s (%s)", plain(complete.Message), complete.Reason)}
	}
	return verdict{state: cmp.Or(complete.Message, complete.Reason)}
}
