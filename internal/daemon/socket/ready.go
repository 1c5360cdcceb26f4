package socket

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// AwaitReady waits until the daemon that serves runDir answers a ping. It returns the last
// failure once ctx ends.
func AwaitReady(ctx context.Context, runDir string) error {
	for wait := (backoff.Backoff{Min: 5 * time.Millisecond, Max: 50 * time.Millisecond}); ; {
		err := Ready(runDir)
		if err == nil {
			return nil
		}
		if wait.Wait(ctx) != nil {
			return err
		}
	}
}

// Ready returns nil if the daemon that serves runDir answers a ping.
func Ready(runDir string) error {
	c, err := net.DialTimeout("unix", filepath.Join(runDir, Name), 2*time.Second)
	if err != nil {
		return fmt.Errorf("connect to the daemon: %w", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if err := wire.Write(c, wire.TypePing, nil); err != nil {
		return fmt.Errorf("the daemon does not answer: %w", err)
	}
	if f, err := wire.Read(c); err != nil || f.Type != wire.TypePong {
		return fmt.Errorf("the daemon does not answer: %w", err)
	}
	return nil
}
