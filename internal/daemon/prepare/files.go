package prepare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/durable"
)

// shimFile is the path of the shim within the run folder.
const shimFile = "bin/clew-daemon"

// linkProgram gives the shim the other name under which it is the command line of Clew's tools.
func linkProgram(file string) error {
	link := filepath.Join(filepath.Dir(file), filepath.Base(launchplan.ProgramFile))
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("link the program for Clew's tools: %w", err)
	}
	if err := os.Symlink(filepath.Base(file), link); err != nil {
		return fmt.Errorf("link the program for Clew's tools: %w", err)
	}
	return nil
}

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
