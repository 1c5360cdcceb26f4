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

// taskExport holds the flags of `task export`.
type taskExport struct {
	*plugin
	file, uid string
}

func (p *plugin) taskExportCommand() *cobra.Command {
	o := &taskExport{plugin: p}
	cmd := &cobra.Command{
		Use:   "export TASK",
		Short: "Write a task's whole history as JSON lines",
		Long: `Write a task's whole history as JSON lines: all branches of its conversation in
full, checkpoints, snapshots and events. "task import" reads it, in this or another
cluster. The code of the checkpoints is in git and is not exported. The task's
timeline records the export and who made it.`,
		Example: `  # To a file
  kubectl clew task export fix-login -f fix-login.jsonl

  # To another program
  kubectl clew task export fix-login | jq -r 'select(.kind == "message") | .body.role'

  # An earlier task with this name; "task list -o wide" shows UIDs
  kubectl clew task export fix-login --uid 7e0d0a52-6f4e-4b0e-9d83-1f0c5f3f2a10 -f old.jsonl`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeHistory,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVarP(&o.file, "filename", "f", "-", "File to write; - is standard output. The file appears once the export is complete.")
	cmd.Flags().StringVar(&o.uid, "uid", "", "UID of the task, if several had this name. Defaults to the newest.")
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
	// Package durable is not for the terminal's side: it syncs the folder and renames an open
	// file, which a user's file system or operating system may not allow.
	temporary, err := os.CreateTemp(filepath.Dir(o.file), ".clew-export-*")
	if err != nil {
		return fmt.Errorf("cannot write the export: %w", err)
	}
	defer os.Remove(temporary.Name()) // fails once renamed, as it should
	tally, err := o.write(ctx, s, task, temporary)
	if err := errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary.Name(), o.file); err != nil {
		return fmt.Errorf("cannot write the export: %w", err)
	}
	fmt.Fprintf(o.Out, "history of task %s exported to %s: %s\n", task, o.file, tally)
	return nil
}

// write copies the export, and fails if it is incomplete.
func (o *taskExport) write(ctx context.Context, s *session, task string, to io.Writer) (*tally, error) {
	params := url.Values{}
	if o.uid != "" {
		params.Set("uid", o.uid)
	}
	request, err := s.historyRequest("GET", []string{"taskhistories", task, "export"}, params)
	if err != nil {
		return nil, err
	}
	update, stop := o.updatesIfSlow("waiting for the history")
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
			return nil, fmt.Errorf("the export ended early, after %s: %w; try again", tally, err)
		}
		tally.add(line)
		if _, err := out.Write(line); err != nil {
			return nil, fmt.Errorf("write the export: %w", err)
		}
		update(fmt.Sprintf("exported %s", tally))
	}
	if !tally.complete {
		return nil, fmt.Errorf("the export ended early, after %s; try again", tally)
	}
	return tally, out.Flush()
}

// tally counts the lines of an export.
type tally struct {
	messages, checkpoints, bytes int64
	// complete is set once the export's last line was read.
	complete bool
}

// add counts one line.
func (t *tally) add(line []byte) {
	t.bytes += int64(len(line))
	switch {
	case bytes.HasPrefix(line, []byte(`{"kind":"message"`)):
		t.messages++
	case bytes.HasPrefix(line, []byte(`{"kind":"checkpoint"`)):
		t.checkpoints++
	}
	t.complete = bytes.HasPrefix(line, []byte(`{"kind":"end"`))
}

// String formats the counts for people.
func (t *tally) String() string {
	return fmt.Sprintf("%s and %s, %s", plural(t.messages, "message"), plural(t.checkpoints, "checkpoint"), humanBytes(t.bytes))
}
