package cli

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

type taskImport struct {
	*plugin
	file string
}

func (p *plugin) taskImportCommand() *cobra.Command {
	o := &taskImport{plugin: p}
	cmd := &cobra.Command{
		Use:   "import -f FILE",
		Short: "Take in a task's history that was exported",
		Long: `Take in a task's history that "task export" has written, into the namespace: as a
whole or not at all. It can be read, searched and exported like any other. It
makes no Task, and brings no code.`,
		Example: `  # From a file
  kubectl clew task import -f fix-login.jsonl

  # From another cluster
  kubectl clew --context old task export fix-login | kubectl clew task import -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().StringVarP(&o.file, "filename", "f", "", "File to read; - is standard input. Required.")
	return cmd
}

func (o *taskImport) run(ctx context.Context) error {
	if o.file == "" {
		return errors.New("name the file to import with -f FILE, or -f - for standard input")
	}
	from, name := o.In, "standard input"
	if o.file != "-" {
		file, err := os.Open(o.file)
		if err != nil {
			return fmt.Errorf("the export cannot be read: %w", err)
		}
		defer file.Close()
		from, name = file, o.file
	}
	lines := bufio.NewReader(from)
	if beginning, _ := lines.Peek(len(exportBeginning)); !bytes.Equal(beginning, []byte(exportBeginning)) {
		return fmt.Errorf("%s is no history that `kubectl clew task export` has written: its first line does not begin with %s", name, exportBeginning)
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	imported, err := o.send(ctx, s, lines)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "history of task %s imported: %s and %s, UID %s\n", oneLine(imported.Name),
		plural(imported.Messages, "message"), plural(imported.Checkpoints, "checkpoint"), imported.UID)
	return nil
}

// exportBeginning is how the first line of an export begins.
const exportBeginning = `{"kind":"task"`

// send sends the lines, zipped, since the way through the API server is slow.
func (o *taskImport) send(ctx context.Context, s *session, lines io.Reader) (*historyv1.TaskHistory, error) {
	request, err := s.historyRequest("POST", []string{"taskhistories"}, nil)
	if err != nil {
		return nil, err
	}
	say, stop := o.slowly("importing")
	defer stop()
	zipped, write := io.Pipe()
	defer zipped.Close() // ends the sender if the server did not read everything
	go func() {
		zip := gzip.NewWriter(write)
		_, err := io.Copy(zip, &counted{reader: lines, say: say})
		_ = write.CloseWithError(errors.Join(err, zip.Close())) // never fails
	}()
	imported := &historyv1.TaskHistory{}
	result := request.SetHeader("Content-Type", "application/x-ndjson").SetHeader("Content-Encoding", "gzip").Body(zipped).Do(ctx)
	return imported, s.answer(result, imported)
}

// counted tells how much was read through it.
type counted struct {
	reader io.Reader
	say    func(string)
	bytes  int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	c.bytes += int64(n)
	c.say(fmt.Sprintf("importing: sent %s", humanBytes(c.bytes)))
	return n, err
}
