package prepare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/worktree"
)

// shimFile is the path of the shim within the run folder.
const shimFile = "bin/clew-daemon"

// copyFile copies a file atomically.
func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy the shim: %w", err)
	}
	defer in.Close()
	return durable.Stream(to, mode, func(w io.Writer) error {
		_, err := io.Copy(w, in)
		return err
	})
}

// writeConversation writes the conversation so far to a file for the agent.
func (p *preparer) writeConversation(ctx context.Context) error {
	if p.cfg.Pod.PrepareOnly {
		return nil
	}
	return p.retry(ctx, func() error {
		return durable.Stream(filepath.Join(p.cfg.RunDir, daemonapi.ConversationFile), 0o644, func(w io.Writer) error {
			return wrapPlace(placeServer, p.cfg.Server.Conversation(ctx, func(e *daemonv1.ConversationEntry) error {
				at := time.Time{}
				if e.GetTime() != nil {
					at = e.GetTime().AsTime()
				}
				return agent.Encode(w, e.GetMessage(), at)
			}))
		})
	})
}

// credentials reads the credentials of the task's repository. caFile is the path of its CA
// certificate, or "".
func credentials(dir string) (c worktree.Credentials, caFile string, err error) {
	read := func(key string) string {
		b, readErr := os.ReadFile(filepath.Join(dir, key))
		if readErr != nil && !errors.Is(readErr, os.ErrNotExist) {
			err = fmt.Errorf("read the repository's credentials: %w", readErr)
		}
		return strings.TrimSuffix(string(b), "\n")
	}
	if dir == "" {
		return c, "", nil
	}
	c.Username, c.Password = read("username"), read("password")
	if token := read("token"); token != "" && c.Password == "" {
		c.Password = token
	}
	if read("ca.crt") != "" {
		caFile = filepath.Join(dir, "ca.crt")
	}
	return c, caFile, err
}
