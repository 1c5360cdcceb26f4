package pace

import (
	"os/exec"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

func TestAProcessThatRunsCountsBeforeItHasEnded(t *testing.T) {
	g := gomega.NewWithT(t)
	own := func() time.Duration {
		var used unix.Rusage
		g.Expect(unix.Getrusage(unix.RUSAGE_SELF, &used)).To(gomega.Succeed())
		return time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	before := ProcessorTime() - own()
	busy := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
	g.Expect(busy.Start()).To(gomega.Succeed())
	defer func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
	}()
	g.Eventually(func() time.Duration { return ProcessorTime() - own() - before }).
		WithTimeout(time.Minute).Should(gomega.BeNumerically(">", 300*time.Millisecond))
}
