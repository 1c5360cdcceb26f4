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

// taskImport holds the flags of `task import`.
type taskImport struct {
	*plugin
	file string
}

func (p *plugin) taskImportCommand() *cobra.Command {
	o := &taskImport{plugin: p}
	cmd := &cobra.Command{
		Use:   "import -f FILE",
		Short: "Import a task's history from an export",
		Long: `Import a task's history, as written by "task export", into the namespace: either
all of it or nothing. It can be read, searched and exported like any other. The
import creates no Task and contains no code.`,
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
			return fmt.Errorf("cannot read the export: %w", err)
		}
		defer file.Close()
		from, name = file, o.file
	}
	lines := bufio.NewReader(from)
	if beginning, _ := lines.Peek(len(exportBeginning)); !bytes.Equal(beginning, []byte(exportBeginning)) {
		return fmt.Errorf("%s is not an export written by `kubectl clew task export`: its first line does not begin with %s", name, exportBeginning)
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

// send uploads the lines, compressed, since the way through the API server is slow.
func (o *taskImport) send(ctx context.Context, s *session, lines io.Reader) (*historyv1.TaskHistory, error) {
	request, err := s.historyRequest("POST", []string{"taskhistories"}, nil)
	if err != nil {
		return nil, err
	}
	update, stop := o.updatesIfSlow("importing")
	defer stop()
	zipped, write := io.Pipe()
	defer zipped.Close() // ends the goroutine if the server did not read everything
	go func() {
		zip := gzip.NewWriter(write)
		_, err := io.Copy(zip, &countingReader{reader: lines, update: update})
		_ = write.CloseWithError(errors.Join(err, zip.Close())) // never fails
	}()
	imported := &historyv1.TaskHistory{}
	result := request.SetHeader("Content-Type", "application/x-ndjson").SetHeader("Content-Encoding", "gzip").Body(zipped).Do(ctx)
	return imported, s.answer(result, imported)
}

// countingReader reports how much was read through it.
type countingReader struct {
	reader io.Reader
	update func(string)
	bytes  int64
}

// Read implements io.Reader.
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	c.bytes += int64(n)
	c.update(fmt.Sprintf("importing: sent %s", humanBytes(c.bytes)))
	return n, err
}
