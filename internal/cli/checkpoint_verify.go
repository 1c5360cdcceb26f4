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
	"github.com/clew-dev/clew/api/v1alpha1"
)

// checkpointVerify holds the flags of `checkpoint verify`.
type checkpointVerify struct {
	*plugin
	wait   waitFlags
	output *enumFlag
}

func (p *plugin) checkpointVerifyCommand() *cobra.Command {
	o := &checkpointVerify{plugin: p}
	cmd := &cobra.Command{
		Use:        "verify TASK [CHECKPOINT]",
		SuggestFor: []string{"check", "fsck"},
		Short:      "Verify that checkpoints are as they were stored",
		Long: `Verify now that a checkpoint, or each checkpoint of a task, is as it was stored: every
object in the gitstore and every message. Clew does so by itself once a day; what is
found here is recorded in the same way, as the condition Intact of the Checkpoint.

The exit code is 0 if all are intact, 1 if one is damaged, and 2 if that could not be
found out.`,
		Example: `  # All checkpoints of a task, the newest first
  kubectl clew checkpoint verify fix-login

  # One of them
  kubectl clew checkpoint verify fix-login 3

  # The numbers of those that are damaged
  kubectl clew checkpoint verify fix-login -o json | jq '.items[] | select(.state == "Damaged").number'`,
		Args:              theFirst("TASK", "CHECKPOINT"),
		ValidArgsFunction: p.completeTaskCheckpoint,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.run(cmd.Context(), args)
			if err != nil && !errors.Is(err, errDamaged) {
				return coded{err, 2}
			}
			return err
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return coded{err, 2} })
	o.wait.add(cmd, "every checkpoint is verified")
	o.output = formatFlag(cmd, "text", "json", "yaml")
	return cmd
}

// errDamaged ends the command when a checkpoint is damaged.
var errDamaged = errors.New("not all checkpoints are intact")

// verificationList is what -o json prints.
type verificationList struct {
	Items []historyv1.CheckpointVerification `json:"items"`
}

func (o *checkpointVerify) run(ctx context.Context, args []string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	task, err := s.task(ctx, args[0])
	if err != nil {
		return err
	}
	numbers, err := o.numbers(ctx, s, task, args[1:])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.wait.timeout)
	defer cancel()
	update, stop := o.updatesIfSlow("verifying")
	defer stop()
	list, damaged, since := verificationList{Items: []historyv1.CheckpointVerification{}}, 0, ""
	for i, number := range numbers {
		update(fmt.Sprintf("verifying checkpoint %d, %d of %d", number, i+1, len(numbers)))
		v, err := o.verify(ctx, s, task, number, since)
		if err != nil {
			return err
		}
		since = v.Since.UTC().Format(time.RFC3339Nano)
		if list.Items = append(list.Items, *v); v.State == historyv1.VerificationDamaged {
			damaged++
		}
		if o.output.value == "text" {
			fmt.Fprintln(o.Out, verificationText(v))
		}
	}
	stop()
	if o.output.value != "text" {
		if err := o.printRaw(o.output.value, list); err != nil {
			return err
		}
	}
	if damaged > 0 {
		return fmt.Errorf("%w: %d of %s of task %s damaged", errDamaged, damaged, plural(int64(len(numbers)), "checkpoint"), task.Name)
	}
	return nil
}

// numbers returns the numbers of the checkpoints to verify: that which is named, or all that the
// gitstore has, newest first.
func (o *checkpointVerify) numbers(ctx context.Context, s *session, task *v1alpha1.Task, named []string) ([]int64, error) {
	if len(named) > 0 {
		if number, err := strconv.ParseInt(strings.TrimPrefix(named[0], "#"), 10, 32); err == nil && number > 0 {
			return []int64{number}, nil
		}
		list, err := s.checkpoints(ctx, task.Name)
		if err != nil {
			return nil, err
		}
		if number, ok := numberOf(list, task, named[0]); ok && number > 0 {
			return []int64{number}, nil
		}
		at := slices.IndexFunc(list.Items, func(c v1alpha1.Checkpoint) bool { return c.Name == named[0] })
		if at >= 0 && namesItself(named[0]) && list.Items[at].Status.Number > 0 && list.Items[at].Status.TaskUID == string(task.UID) {
			return []int64{list.Items[at].Status.Number}, nil
		}
		_, err = findCheckpoint(list, task, named[0])
		return nil, err
	}
	recorded, err := s.allRecorded(ctx, task)
	if err != nil {
		return nil, err
	}
	var numbers []int64
	for _, c := range slices.Backward(recorded) {
		if c.Durable && !c.Lost {
			numbers = append(numbers, c.Number)
		}
	}
	if len(numbers) == 0 {
		return nil, fmt.Errorf("the gitstore has no checkpoint of task %s yet", task.Name)
	}
	return numbers, nil
}

// verify has a checkpoint verified, and waits for the outcome, unless it was verified since.
func (o *checkpointVerify) verify(ctx context.Context, s *session, task *v1alpha1.Task, number int64, since string) (*historyv1.CheckpointVerification, error) {
	path := []string{"tasks", task.Name, "checkpoints", strconv.FormatInt(number, 10), "verification"}
	for {
		params := url.Values{"uid": {string(task.UID)}}
		if since != "" {
			params.Set("since", since)
		}
		request, err := s.historyRequest("GET", path, params)
		if err != nil {
			return nil, err
		}
		found := &historyv1.CheckpointVerification{}
		result := request.Do(ctx)
		switch err := result.Error(); {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("checkpoint %d was not verified within %s; it still is being verified: ask again, or set --timeout", number, o.wait.timeout)
		case apierrors.IsTooManyRequests(err) && o.wait.wait:
			pause, _ := apierrors.SuggestsClientDelay(err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(max(pause, 1)) * time.Second):
			}
			continue
		}
		if err := s.answer(result, found); err != nil {
			return nil, err
		}
		if found.State != historyv1.VerificationInProgress || !o.wait.wait {
			return found, nil
		}
		since = found.Since.UTC().Format(time.RFC3339Nano)
	}
}

// verificationText says in a line what was found.
func verificationText(v *historyv1.CheckpointVerification) string {
	text := fmt.Sprintf("checkpoint %d of task %s ", v.Number, oneLine(v.Task))
	switch v.State {
	case historyv1.VerificationIntact:
		return text + "is intact"
	case historyv1.VerificationInProgress:
		return text + "is being verified"
	}
	text += "is damaged: " + oneLine(v.Damage)
	if v.IntactBefore > 0 {
		text += fmt.Sprintf("; checkpoint %d is the nearest earlier one that is intact", v.IntactBefore)
	} else {
		text += "; no earlier checkpoint is intact"
	}
	if v.Healing != "" {
		text += "; " + oneLine(v.Healing)
	}
	return text
}
