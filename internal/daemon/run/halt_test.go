package run

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemonapi"
)

// An agent decides how often it is stopped, and whether it stops.
func TestOfAnAgentThatDoesNotStopTheLogTellsNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		var lines bytes.Buffer
		s := newSocket(nil, nil, daemonapi.Config{}, funcr.New(func(_, args string) { lines.WriteString(args + "\n") }, funcr.Options{}))
		ours, shims := net.Pipe()
		defer ours.Close()
		go func() { _, _ = io.Copy(io.Discard, shims) }()
		s.current = &connection{Conn: ours}
		const times = 60
		begin := time.Now()
		for range times {
			s.freeze(t.Context()).thaw()
		}
		g.Expect(time.Since(begin)).To(gomega.Equal(times * freezeTimeout))
		// One at once, and the others of each minute with the next one.
		g.Expect(strings.Split(strings.TrimSpace(lines.String()), "\n")).To(gomega.HaveExactElements(
			gomega.ContainSubstring(`"timesBefore"=0`), gomega.ContainSubstring(`"timesBefore"=19`), gomega.ContainSubstring(`"timesBefore"=19`)))
	})
}
