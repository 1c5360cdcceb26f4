package socket

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// The agent causes its stops and decides whether it stops, so the log is limited.
func TestAnAgentThatDoesNotStopIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		var lines bytes.Buffer
		s := New(nil, nil, daemonapi.Config{}, funcr.New(func(_, args string) { lines.WriteString(args + "\n") }, funcr.Options{}))
		ours, shims := net.Pipe()
		defer ours.Close()
		go func() { _, _ = io.Copy(io.Discard, shims) }()
		s.current = &connection{Conn: ours}
		const times = 60
		begin := time.Now()
		for range times {
			s.Freeze(t.Context()).Thaw()
		}
		g.Expect(time.Since(begin)).To(gomega.Equal(times * freezeTimeout))
		// The first is logged at once, later ones once a minute with the count in between.
		g.Expect(strings.Split(strings.TrimSpace(lines.String()), "\n")).To(gomega.HaveExactElements(
			gomega.ContainSubstring(`"timesBefore"=0`), gomega.ContainSubstring(`"timesBefore"=19`), gomega.ContainSubstring(`"timesBefore"=19`)))
	})
}

// connect makes a connection of the shim the current one, and returns the frames that the
// server sends on it.
func connect(t *testing.T, s *Server) (c *connection, sent <-chan wire.Frame) {
	t.Helper()
	ours, shims := net.Pipe()
	t.Cleanup(func() { ours.Close() })
	frames := make(chan wire.Frame, 16)
	go func() {
		for {
			f, err := wire.Read(shims)
			if err != nil {
				return
			}
			frames <- f
		}
	}()
	c = &connection{Conn: ours}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = c
	return c, frames
}

func TestACallStopsTheAgentAgainAfterTheShimHasReconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		s := New(nil, nil, daemonapi.Config{}, logr.Discard())
		gone, _ := connect(t, s)
		go func() { s.Stop(t.Context()).End() }() // waits for an answer that never comes
		synctest.Wait()
		s.close(gone)
		_, sent := connect(t, s)
		stop := s.Stop(t.Context())
		defer stop.End()
		g.Expect(sent).To(gomega.Receive(gomega.HaveField("Type", wire.TypeFreeze)))
	})
}

func TestTheAgentStaysStoppedUntilAllFreezesHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		s := New(nil, nil, daemonapi.Config{}, logr.Discard())
		c, sent := connect(t, s)
		expectFrame := func(typ wire.Type, id int64) {
			t.Helper()
			synctest.Wait()
			var f wire.Frame
			g.Expect(sent).To(gomega.Receive(&f))
			var z wire.Freeze
			g.Expect(f.Decode(&z)).To(gomega.Succeed())
			g.Expect(f.Type).To(gomega.Equal(typ))
			g.Expect(z.ID).To(gomega.Equal(id))
		}
		expectNothing := func() {
			t.Helper()
			synctest.Wait()
			g.Expect(sent).To(gomega.BeEmpty())
		}
		first, second := s.Freeze(t.Context()), s.Freeze(t.Context())
		expectFrame(wire.TypeFreeze, 1)
		expectFrame(wire.TypeFreeze, 2)
		g.Expect(first.active()).To(gomega.BeTrue())
		second.Thaw()
		expectNothing()
		g.Expect(first.active()).To(gomega.BeTrue())
		first.Thaw()
		expectFrame(wire.TypeThaw, 2)
		// A Thawed ends its freeze, which took too long, and those before it.
		third, fourth := s.Freeze(t.Context()), s.Freeze(t.Context())
		expectFrame(wire.TypeFreeze, 3)
		expectFrame(wire.TypeFreeze, 4)
		var frame bytes.Buffer
		g.Expect(wire.Write(&frame, wire.TypeThawed, wire.Freeze{ID: 4})).To(gomega.Succeed())
		thawed, err := wire.Read(&frame)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect((&stream{s: s, c: c}).control(t.Context(), thawed)).To(gomega.Succeed())
		g.Expect(third.active()).To(gomega.BeFalse())
		fifth := s.Freeze(t.Context())
		expectFrame(wire.TypeFreeze, 5)
		g.Expect(fifth.active()).To(gomega.BeTrue())
		fifth.Thaw()
		expectFrame(wire.TypeThaw, 5)
		third.Thaw()
		fourth.Thaw()
	})
}

// An agent can send its own shim the signal to end, and keep running.
func TestAPodCountsAsEndingForAtMostTwoMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		s := New(nil, nil, daemonapi.Config{}, logr.Discard())
		c, _ := connect(t, s)
		terminating := func() {
			t.Helper()
			g.Expect((&stream{s: s, c: c}).control(t.Context(), wire.Frame{Type: wire.TypeTerminating})).To(gomega.Succeed())
		}
		g.Expect(s.Ending()).To(gomega.BeFalse())
		terminating()
		g.Expect(s.Ending()).To(gomega.BeTrue())
		time.Sleep(maxEnding) // the limit itself is tested, on the fake clock
		terminating()
		g.Expect(s.Ending()).To(gomega.BeFalse())
	})
}
