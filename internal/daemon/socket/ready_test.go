package socket_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// The gate in front of the agent opens when the daemon answers, not when its socket exists.
func TestTheGateOpensWhenTheDaemonAnswers(t *testing.T) {
	dir := t.TempDir()
	opened := make(chan error, 1)
	go func() { opened <- socket.AwaitReady(t.Context(), dir) }()

	listener, err := net.Listen("unix", filepath.Join(dir, socket.Name))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	closed, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	closed.Close() // a daemon that dies as it starts
	answering, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer answering.Close()
	select {
	case err := <-opened:
		t.Fatalf("the gate opened (error %v) before the daemon answered", err)
	default:
	}
	if f, err := wire.Read(answering); err != nil || f.Type != wire.TypePing {
		t.Fatalf("the gate sent %v, %v, want a ping", f, err)
	}
	if err := wire.Write(answering, wire.TypePong, nil); err != nil {
		t.Fatal(err)
	}

	if err := <-opened; err != nil {
		t.Errorf("the gate failed though the daemon answered: %v", err)
	}
}

func TestTheGateSaysWhyItStayedClosed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := socket.AwaitReady(ctx, t.TempDir()); err == nil {
		t.Error("the gate opened without a daemon")
	}
}
