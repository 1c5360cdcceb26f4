package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

type taskExport struct {
	*plugin
	file, uid string
}

func (p *plugin) taskExportCommand() *cobra.Command {
	o := &taskExport{plugin: p}
	cmd := &cobra.Command{
		Use:   "export TASK",
		Short: "Write a task's whole history as JSON lines",
		Long: `Write a task's whole history as JSON lines: all branches of its conversation with
every text in full, checkpoints, snapshots and events. "task import" reads it
again, here or in another cluster. The code of the checkpoints is in git and not
in it. That you took it out is written into the task's timeline.`,
		Example: `  # Into a file
  kubectl clew task export fix-login -f fix-login.jsonl

  # Through other programs
  kubectl clew task export fix-login | jq -r 'select(.kind == "message") | .body.role'

  # An earlier task of the name; "task list -o wide" shows UIDs
  kubectl clew task export fix-login --uid 7e0d0a52-6f4e-4b0e-9d83-1f0c5f3f2a10 -f old.jsonl`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeHistory,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVarP(&o.file, "filename", "f", "-", "File to write; - is standard output. It is made when the export is whole.")
	cmd.Flags().StringVar(&o.uid, "uid", "", "UID of an earlier task of the name; the newest when left out.")
	_ = cmd.RegisterFlagCompletionFunc("uid", cobra.NoFileCompletions)
	return cmd
}

func (o *taskExport) run(ctx context.Context, task string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	if o.file == "-" {
		_, err := o.write(ctx, s, task, o.Out)
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(o.file), ".clew-export-*")
	if err != nil {
		return fmt.Errorf("the export cannot be written: %w", err)
	}
	defer os.Remove(temporary.Name()) // fails once renamed, as it should
	tally, err := o.write(ctx, s, task, temporary)
	if err := errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary.Name(), o.file); err != nil {
		return fmt.Errorf("the export cannot be written: %w", err)
	}
	fmt.Fprintf(o.Out, "history of task %s exported to %s: %s\n", task, o.file, tally)
	return nil
}

// write copies the export, and fails if it is not whole.
func (o *taskExport) write(ctx context.Context, s *session, task string, to io.Writer) (*tally, error) {
	params := url.Values{}
	if o.uid != "" {
		params.Set("uid", o.uid)
	}
	request, err := s.historyRequest("GET", []string{"taskhistories", task, "export"}, params)
	if err != nil {
		return nil, err
	}
	say, stop := o.slowly("waiting for the history")
	defer stop()
	stream, err := request.Stream(ctx)
	if err != nil {
		return nil, s.explainHistory(err)
	}
	defer stream.Close()
	tally := &tally{}
	lines, out := bufio.NewReaderSize(stream, 1<<16), bufio.NewWriter(to)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("the export broke off after %s: %w; try again", tally, err)
		}
		tally.add(line)
		if _, err := out.Write(line); err != nil {
			return nil, fmt.Errorf("write the export: %w", err)
		}
		say(fmt.Sprintf("exported %s", tally))
	}
	if !tally.whole {
		return nil, fmt.Errorf("the export broke off after %s; try again", tally)
	}
	return tally, out.Flush()
}

// tally counts the lines of an export.
type tally struct {
	messages, checkpoints, bytes int64
	// whole: the last line was there.
	whole bool
}

func (t *tally) add(line []byte) {
	t.bytes += int64(len(line))
	switch {
	case bytes.HasPrefix(line, []byte(`{"kind":"message"`)):
		t.messages++
	case bytes.HasPrefix(line, []byte(`{"kind":"checkpoint"`)):
		t.checkpoints++
	}
	t.whole = bytes.HasPrefix(line, []byte(`{"kind":"end"`))
}

func (t *tally) String() string {
	return fmt.Sprintf("%s and %s, %s", plural(t.messages, "message"), plural(t.checkpoints, "checkpoint"), humanBytes(t.bytes))
}
