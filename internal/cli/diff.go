package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/pathmatch"
)

// diff holds the flags of `diff`.
type diff struct {
	*plugin
	output                                  *enumFlag
	stat, nameOnly, conversation, exitCodes bool
	ignored                                 bool
	uid                                     string
	paths                                   []string
	leftOut                                 int64 // ignored files that differ
}

func (p *plugin) diffCommand() *cobra.Command {
	o := &diff{plugin: p}
	cmd := &cobra.Command{
		Use:     "diff TASK [FROM [TO]] [flags] [-- PATH...]",
		Short:   "Show what differs between two moments of a task",
		Aliases: []string{"changes"},
		Long: `Show which files differ between two moments of a task, and how.

FROM and TO are each one of these moments:
  NUMBER, NAME  a checkpoint
  base          the commit of the repository that the task started from; of a
                fork, that of its source
  latest        the latest checkpoint
  live          now; the agent of a running task is not stopped for it. Of a stopped
                task, drift or the latest checkpoint: its volume is not looked at
  drift         what was changed while the task was not running, if undecided
  previous      only as FROM: what TO was made on, which is the checkpoint before
                it or, of the first one after a rewind of all files, its target
  TASK:MOMENT   a moment of another task of the same repository, such as a fork

TO defaults to latest, and FROM to base: everything that the task has changed, and what
the source of a fork had changed. SOURCE:NUMBER as FROM leaves that out.
With "live" or "drift" alone as TO, FROM is latest.

Paths select files, folders, and patterns: "src/*.go" in one folder, "**/*.go" in all.
Ignored files, such as dependencies and caches, are left out and counted, unless
--ignored is set or the task started with them.

On a terminal the output is coloured, and paged with $PAGER. Otherwise it is a
patch that "git apply" accepts; a file too large to compare is an error.`,
		Example: `  # Everything the task has changed
  kubectl clew diff fix-login

  # What happened in checkpoint 4, and from 4 to the latest checkpoint, as a summary
  kubectl clew diff fix-login previous 4
  kubectl clew diff fix-login 4 --stat

  # What the agent has changed since its latest checkpoint, and since checkpoint 4
  kubectl clew diff fix-login live
  kubectl clew diff fix-login 4 live

  # Only some files
  kubectl clew diff fix-login -- 'src/**/*.go' README.md

  # How two forks differ, and what a fork and its source each said since
  kubectl clew diff fix-login latest fix-login-2:latest
  kubectl clew diff fix-login-2 fix-login:latest latest --conversation

  # Apply the task's work in a clone of its repository
  kubectl clew diff fix-login | git apply

  # Has anything changed since checkpoint 4? In a script
  kubectl clew diff fix-login 4 live --exit-code --name-only`,
		ValidArgsFunction: p.completeDiff,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.check(cmd, args)
			if err == nil {
				err = o.run(cmd.Context(), args)
			}
			if o.exitCodes && err != nil && !errors.Is(err, errDiffers) {
				return coded{err, 2}
			}
			return err
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *diff) addFlags(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return coded{explainFlag(cmd, err), 2} })
	o.output = formatFlag(cmd, "patch", "json", "yaml")
	cmd.Flags().BoolVar(&o.stat, "stat", false, "Print a summary: each file with its numbers of added and removed lines.")
	cmd.Flags().BoolVar(&o.nameOnly, "name-only", false, "Print only the names of the files.")
	cmd.Flags().BoolVar(&o.conversation, "conversation", false, "Print the messages between the two moments instead of the files; of two branches of the conversation, or of two tasks, those that only one of them has.")
	cmd.Flags().BoolVar(&o.ignored, "ignored", false, "Include ignored files.")
	cmd.Flags().BoolVar(&o.exitCodes, "exit-code", false, "Exit with 1 if there are differences, and with 2 after an error.")
	cmd.Flags().StringVar(&o.uid, "uid", "", "UID of the task, if several had this name. Defaults to the newest.")
}

// check checks flags and arguments, and keeps the arguments after -- as paths.
func (o *diff) check(cmd *cobra.Command, args []string) error {
	moments := args
	if at := cmd.ArgsLenAtDash(); at >= 0 {
		moments, o.paths = args[:at], args[at:]
		hintAtFlags(o.ErrOut, cmd, o.paths)
	}
	forms := 0
	for _, set := range []bool{o.stat, o.nameOnly, o.conversation} {
		if set {
			forms++
		}
	}
	switch {
	case forms > 1:
		return errors.New("use only one of --stat, --name-only and --conversation: each of them says what to print")
	case o.conversation && o.output.value != "patch":
		return fmt.Errorf("--conversation prints messages for people; `kubectl clew task history -o %s` has them for programs", o.output.value)
	}
	if !slices.Equal(o.paths, []string{"."}) {
		if _, err := pathmatch.New(o.paths); err != nil {
			return err
		}
	}
	if len(moments) == 0 {
		return fmt.Errorf("missing argument TASK; usage: %s", cmd.UseLine())
	}
	if len(moments) > 3 {
		return fmt.Errorf("unexpected argument %q; write -- before paths; usage: %s", moments[3], cmd.UseLine())
	}
	return nil
}

func (o *diff) run(ctx context.Context, args []string) error {
	task, moments := args[0], args[1:len(args)-len(o.paths)]
	s, err := o.connect()
	if err != nil {
		return err
	}
	params, err := o.params(ctx, s, task, moments)
	if err != nil {
		return err
	}
	switch {
	case o.output.value != "patch":
		return o.printWhole(ctx, s, task, params)
	case o.conversation:
		return o.printConversation(ctx, s, task, params)
	case o.stat:
		return o.printStat(ctx, s, task, params)
	case o.nameOnly:
		return o.printNames(ctx, s, task, params)
	}
	return o.printPatch(ctx, s, task, params)
}

// params returns the parameters of the request. Names of checkpoints become numbers.
func (o *diff) params(ctx context.Context, s *session, task string, moments []string) (url.Values, error) {
	params := url.Values{"path": o.paths, "from": {historyv1.WordBase}, "to": {historyv1.WordLatest}}
	if slices.Equal(o.paths, []string{"."}) {
		params.Del("path")
	}
	if o.uid != "" {
		params.Set("uid", o.uid)
	}
	if o.ignored {
		params.Set("ignored", "true")
	}
	if len(moments) == 1 && (moments[0] == historyv1.WordLive || moments[0] == historyv1.WordDrift) {
		moments = []string{historyv1.WordLatest, moments[0]} // what is new; the reverse is asked by nobody
	}
	for i, name := range []string{"from", "to"} {
		if i >= len(moments) {
			break
		}
		moment, err := o.moment(ctx, s, task, moments[i])
		if err != nil {
			return nil, err
		}
		params.Set(name, moment)
	}
	return params, nil
}

// moment returns a moment as the history API names it.
func (o *diff) moment(ctx context.Context, s *session, task, text string) (string, error) {
	prefix := ""
	if other, rest, ok := strings.Cut(text, ":"); ok {
		switch task, prefix = other, other+":"; {
		case task == "":
			return "", fmt.Errorf("%q names no task before the colon; leave the colon out for the same task", text)
		case rest == "":
			return "", fmt.Errorf("%q names no moment after the colon; name one, such as %slatest", text, text)
		}
		text = rest
	}
	text = strings.TrimPrefix(text, "#")
	if _, err := strconv.ParseInt(text, 10, 64); err == nil || isMomentWord(text) {
		return prefix + text, nil
	}
	list, err := s.checkpoints(ctx, task)
	if err != nil {
		return "", err
	}
	for i := range list.Items {
		c := &list.Items[i]
		if c.Name != text || c.Status.Number == 0 {
			continue
		}
		uid := o.uid
		if prefix != "" || uid == "" {
			found, _, err := s.taskOrFormer(ctx, task)
			if err != nil {
				return "", err
			}
			uid = string(found.UID)
		}
		if c.Status.TaskUID != uid {
			return "", fmt.Errorf("checkpoint %s belongs to another task named %s: name a number of the one with UID %s", text, task, uid)
		}
		return prefix + strconv.FormatInt(c.Status.Number, 10), nil
	}
	return "", fmt.Errorf("task %s has no checkpoint %q; name a checkpoint of `kubectl clew checkpoint list %s -n %s`, base, previous, latest or live, or of another task its name and a colon, such as %s:latest", task, text, task, s.namespace, text)
}

// pages reads the difference page by page.
func (o *diff) pages(ctx context.Context, s *session, task string, params url.Values, format string, take func(*historyv1.Diff) error) error {
	params.Set("format", format)
	if format == "none" {
		params.Set("limit", "1000")
	}
	for first := true; ; first = false {
		page := &historyv1.Diff{}
		if err := o.page(ctx, s, task, params, page); err != nil {
			return err
		}
		if first {
			o.tellAtRest(params.Get("from"), page.From)
			o.tellAtRest(params.Get("to"), page.To)
		}
		if err := take(page); err != nil {
			return err
		}
		if page.Continue == "" {
			o.leftOut = page.Totals.IgnoredFiles
			if page.Totals.Files == 0 && len(params["path"]) > 0 {
				fmt.Fprintf(o.ErrOut, "no file that differs is selected by %s\n", oneLine(strings.Join(o.paths, " ")))
			}
			return o.verdict(page.Totals.Files > 0)
		}
		params.Set("continue", page.Continue)
	}
}

// longestLiveWait bounds how long a difference waits until the files of a task may be read again.
const longestLiveWait = 10 * time.Minute

// page reads one page. If the files of a running task have just been read for somebody else,
// which takes long, it waits until they may be read again.
func (o *diff) page(ctx context.Context, s *session, task string, params url.Values, into *historyv1.Diff) error {
	ctx, cancel := context.WithTimeout(ctx, longestLiveWait)
	defer cancel()
	for {
		request, err := s.historyRequest("GET", []string{"tasks", task, "diff"}, params)
		if err != nil {
			return err
		}
		if isLive(params.Get("from")) || isLive(params.Get("to")) {
			request = request.MaxRetries(0) // it would wait without a word
		}
		stop := s.progressIfSlow("waiting for the history")
		result := request.Do(ctx)
		stop()
		after, waits := apierrors.SuggestsClientDelay(result.Error())
		if !waits || !apierrors.HasStatusCause(result.Error(), historyv1.CauseLiveResting) {
			return s.answer(result, into)
		}
		fmt.Fprintf(o.ErrOut, "the files of task %s were read just now, which took long; trying again in %d s\n", task, after)
		select {
		case <-ctx.Done():
			return s.answer(result, into)
		case <-time.After(time.Duration(after) * time.Second):
		}
	}
}

// isLive reports whether a moment is the present of a task.
func isLive(moment string) bool {
	return moment == historyv1.WordLive || strings.HasSuffix(moment, ":"+historyv1.WordLive)
}

// tellAtRest says what stands for the present of a task that does not run.
func (o *diff) tellAtRest(asked string, m historyv1.DiffMoment) {
	if !isLive(asked) || m.Type == historyv1.MomentLive || m.Type == "" {
		return
	}
	known := fmt.Sprintf("its latest checkpoint, %d", m.Checkpoint)
	if m.Type == historyv1.MomentDrift {
		known = "what was found changed on its volume when a pod last started"
	}
	fmt.Fprintf(o.ErrOut, "task %s is not running: live is %s; what was changed on its volume since then is not looked at\n", oneLine(m.Task), known)
}

// tellIgnored says how many files are left out.
func (o *diff) tellIgnored() {
	if o.leftOut > 0 {
		fmt.Fprintf(o.ErrOut, "%s left out; --ignored includes them\n", plural(o.leftOut, "ignored file"))
	}
}

// verdict is the answer of --exit-code.
func (o *diff) verdict(differs bool) error {
	if differs && o.exitCodes {
		return errDiffers
	}
	return nil
}

// printWhole prints the difference as JSON or YAML, all pages as one.
func (o *diff) printWhole(ctx context.Context, s *session, task string, params url.Values) error {
	var all *historyv1.Diff
	format := "hunks"
	if o.stat || o.nameOnly {
		format = "none"
	}
	verdict := o.pages(ctx, s, task, params, format, func(page *historyv1.Diff) error {
		if all == nil {
			all = page
			return nil
		}
		all.Items = append(all.Items, page.Items...)
		return nil
	})
	if verdict != nil && !errors.Is(verdict, errDiffers) {
		return verdict
	}
	all.Continue, all.RemainingItemCount = "", nil
	if err := o.printRaw(o.output.value, all); err != nil {
		return err
	}
	return verdict
}
