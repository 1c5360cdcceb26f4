package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

// fork holds the flags of `fork`.
type fork struct {
	*plugin
	at, name, prompt string
	uid              string
	variants         []string
	noConversation   bool
	wait             waitFlags
	dryRun           dryRunFlag
	print            *genericclioptions.PrintFlags
}

func (p *plugin) forkCommand() *cobra.Command {
	o := &fork{plugin: p}
	cmd := &cobra.Command{
		Use:   "fork TASK --name NEW",
		Short: "Create new tasks from a moment of another",
		Long: `Create new tasks that start from a moment of another task: with its files and,
unless --no-conversation is set, its conversation. The source task is not changed,
and all share the stored code. The source may be gone, if its history is kept: the new
tasks get its last spec, but environment variables that may be secret must be set again
with the key env of --variant, or in a manifest with valueFrom.

Before it creates anything, it shows from which checkpoint, and so from which message,
the new tasks start; with --dry-run, it only shows that.

Each new task starts on a branch of its own, clew/NAME unless another is named.

Without --variant, one task is created, named as --name says. With it, one is
created for each --variant, which is a list of KEY=VALUE separated by commas:
  name           of the task; required
  agent, model   ClaudeCode, Codex and so on; the source's when left out
  branch         that the task starts on
  image          of the agent's container
  env            NAME=VALUE, may be repeated
  cpu, memory    request and limit of the agent's container
  size           of the volume, and its storage-class
  prompt         comes last, since it may contain commas`,
		Example: `  # Try another approach from the latest checkpoint
  kubectl clew fork fix-login --name fix-login-with-oauth

  # Start from an earlier checkpoint, with another prompt and without the conversation
  kubectl clew fork fix-login --at 3 --name second-try --no-conversation \
    --prompt "Fix the login without touching the database."

  # Two ways on from message 12, as "task history" shows it
  kubectl clew fork fix-login --at message:12 --name approaches \
    --variant "name=with-oauth,prompt=Use OAuth, not passwords." \
    --variant "name=with-passkeys,prompt=Use passkeys."

  # The same task with two agents
  kubectl clew fork fix-login --name agents \
    --variant name=with-claude,agent=ClaudeCode,image=registry.example.com/claude:2 \
    --variant name=with-codex,agent=Codex,model=gpt-5,image=registry.example.com/codex:1,memory=4Gi

  # An earlier task of this name, deleted since
  kubectl clew fork fix-login --uid 0d9a64a5-9bd3-4b0b-9d3c-3f6e3a0e6b11 --name again

  # From the newest checkpoint of half an hour ago
  kubectl clew fork fix-login --at 30m --name before-lunch`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		PreRunE:           func(cmd *cobra.Command, _ []string) error { return checkForkFlags(cmd) },
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	const at = "Moment to fork from: a checkpoint's number, latest, message:N for a message as shown by \"task history\", a time such as 2026-11-21T12:00:00Z, a date, which is its midnight, a duration before now such as 30m, or, if it is none of these, the name of a Checkpoint object. A message leads to the newest checkpoint at or before it; a time to the newest taken by then, whose messages the conversation still has, or to the next one, if the last message had none yet and nothing else happened before that was taken. Defaults to the latest checkpoint."
	cmd.Flags().StringVar(&o.at, "at", "", at)
	cmd.Flags().StringVar(&o.at, "from", "", "The same as --at.")
	cmd.Flags().StringVar(&o.uid, "uid", "", "UID of the source, if several tasks had this name. Defaults to the Task that exists, or else to the newest.")
	cmd.Flags().StringVar(&o.name, "name", "", "Name of the Fork object and, without --variant, of the new task. Required.")
	cmd.Flags().StringVar(&o.prompt, "prompt", "", "Prompt of the new task. Defaults to the source task's prompt.")
	cmd.Flags().StringArrayVar(&o.variants, "variant", nil, "One new task, as name=NAME,KEY=VALUE,…,prompt=PROMPT. Repeat it for up to 16 tasks.")
	cmd.Flags().BoolVar(&o.noConversation, "no-conversation", false, "Start the new tasks with an empty conversation.")
	_ = cmd.RegisterFlagCompletionFunc("at", p.completeStartOf)
	_ = cmd.RegisterFlagCompletionFunc("from", p.completeStartOf)
	_ = cmd.RegisterFlagCompletionFunc("name", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("uid", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("variant", cobra.NoFileCompletions)
	o.wait.add(cmd, "the new tasks are created")
	o.dryRun.add(cmd)
	o.print = p.printFlags(cmd)
	return cmd
}

func (o *fork) run(ctx context.Context, source string) error {
	if o.name == "" {
		return errors.New("the new task needs a name; set it with --name")
	}
	if err := o.checkName(source); err != nil {
		return err
	}
	variants, err := o.parseVariants(source)
	if err != nil {
		return err
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	object, from, err := o.object(ctx, s, source)
	if err == nil {
		err = s.free(ctx, variants)
	}
	if err != nil {
		return err
	}
	if err := o.preview(o.previewOf(&o.dryRun, o.print), source, from); err != nil {
		return err
	}
	object.Spec.Variants = variants
	if err := o.dryRun.create(ctx, s.client, object); err != nil {
		return s.explain(err, "fork", o.name)
	}
	outcome := "created"
	if o.wait.wait && o.dryRun.changes() {
		object, err = await(ctx, s, o.wait, "fork", &v1alpha1.ForkList{}, object, judgeFork)
		if err != nil {
			return err
		}
		if at := object.Status.Source; at != nil {
			outcome = "created: " + startsFrom(object, source)
		}
	}
	if done, err := o.printed(o.print, object); done {
		return err
	}
	fmt.Fprintf(o.Out, "fork.clew.dev/%s %s%s\n", o.name, outcome, o.dryRun.suffix())
	return nil
}

// startsFrom says where the tasks of a Fork start.
func startsFrom(f *v1alpha1.Fork, source string) string {
	var names []string
	for _, v := range f.Spec.Variants {
		names = append(names, "task.clew.dev/"+v.Name)
	}
	verb := "starts"
	if len(names) > 1 {
		verb = "start"
	}
	text := fmt.Sprintf("%s %s from checkpoint %d of %s", strings.Join(names, ", "), verb, f.Status.Source.Checkpoint, source)
	if at := f.Status.Source.Position; at > 0 && f.Spec.Conversation != v1alpha1.ConversationExclude {
		text += fmt.Sprintf(", at message %d", at)
	}
	return text
}

// object builds the Fork to create, without its variants, and says from where its tasks start.
// It looks up the source and the moment first, since a Fork of something that never exists would
// wait forever.
func (o *fork) object(ctx context.Context, s *session, source string) (*v1alpha1.Fork, *rewindTarget, error) {
	task, newest, err := o.source(ctx, s, source)
	if err != nil {
		return nil, nil, err
	}
	list, err := s.checkpoints(ctx, source)
	if err != nil {
		return nil, nil, err
	}
	object := &v1alpha1.Fork{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: o.name},
		Spec: v1alpha1.ForkSpec{
			SourceRef:    v1alpha1.NameReference{Name: source},
			Conversation: v1alpha1.ConversationInclude,
		},
	}
	if newest != nil {
		object.Spec.TaskUID = string(task.UID)
		list.Items = slices.DeleteFunc(list.Items, func(c v1alpha1.Checkpoint) bool { return c.Status.TaskUID != string(task.UID) })
	}
	var from *rewindTarget
	if object.Spec.At, from, err = o.moment(ctx, s, task, list, newest); err != nil {
		return nil, nil, err
	}
	if o.noConversation {
		object.Spec.Conversation = v1alpha1.ConversationExclude
	}
	return object, from, nil
}

// free fails if a task has the name of a new one: the Fork would be created, and fail.
func (s *session) free(ctx context.Context, variants []v1alpha1.ForkVariant) error {
	for _, v := range variants {
		task := &v1alpha1.Task{}
		err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: v.Name}, task)
		if err == nil && task.DeletionTimestamp == nil {
			return fmt.Errorf("a task %s exists already in namespace %s: give the new task another name, or delete that one first", v.Name, s.namespace)
		}
	}
	return nil
}

// source finds the task to fork. Of one that is gone, it has only name and UID, and newest is its
// newest checkpoint.
func (o *fork) source(ctx context.Context, s *session, name string) (task *v1alpha1.Task, newest *historyv1.Checkpoint, err error) {
	task = &v1alpha1.Task{}
	err = s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, task)
	if err == nil && (o.uid == "" || o.uid == string(task.UID)) {
		return task, nil, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, nil, s.explain(err, "task", name)
	}
	task, newest, failure := s.former(ctx, name, o.uid)
	var unknown *notInHistory
	switch {
	case errors.As(failure, &unknown) && o.uid != "":
		return nil, nil, fmt.Errorf("there is no task %q with the UID %s in namespace %s, and no history of one is kept; `kubectl clew task list --name %s -o yaml` lists those that are", name, o.uid, s.namespace, name)
	case errors.As(failure, &unknown):
		return nil, nil, s.explain(err, "task", name)
	case failure != nil:
		return nil, nil, fmt.Errorf("there is no such Task in namespace %s, and whether its history is kept could not be found out: %w", s.namespace, failure)
	case newest == nil:
		return nil, nil, fmt.Errorf("task %s is gone, and its history has no checkpoint to fork from", name)
	}
	return task, newest, nil
}

// judgeFork is done once the new tasks exist.
func judgeFork(f *v1alpha1.Fork) verdict {
	complete := apimeta.FindStatusCondition(f.Status.Conditions, v1alpha1.ForkComplete)
	switch {
	case complete == nil:
		return verdict{state: "fork requested"}
	case complete.Status == metav1.ConditionTrue:
		return verdict{done: true, state: "forked"}
	}
	switch complete.Reason {
	case v1alpha1.ReasonValuesNotKept:
		return verdict{err: fmt.Errorf("the fork failed: %s (%s); with this command: another --name, and --variant name=TASK,env=VARIABLE=VALUE", plain(complete.Message), complete.Reason)}
	case v1alpha1.ReasonTaskExists, v1alpha1.ReasonInvalidTemplate, v1alpha1.ReasonCheckpointOfOther, v1alpha1.ReasonSpecNotKept:
		return verdict{err: fmt.Errorf("the fork failed: %s (%s)", plain(complete.Message), complete.Reason)}
	}
	return verdict{state: cmp.Or(complete.Message, complete.Reason), doubtful: mayNeverCome(complete.Reason)}
}

// mayNeverCome reports whether a Fork with that reason waits for something that nothing makes.
func mayNeverCome(reason string) bool {
	switch reason {
	case v1alpha1.ReasonPositionNotFound, v1alpha1.ReasonCheckpointNotFound, v1alpha1.ReasonSourceNotFound, v1alpha1.ReasonSourceAmbiguous,
		v1alpha1.ReasonCheckpointLost, v1alpha1.ReasonCheckpointCorrupted, v1alpha1.ReasonCorrupted:
		return true
	}
	return false
}
