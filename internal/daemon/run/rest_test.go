package run

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/volume"
	"github.com/clew-dev/clew/internal/worktree"
)

// TestCheckpointsArePutOffForEightTimesWhatTheyUsedAMinuteAtMost, and for 20 s
// where somebody waits for one.
func TestCheckpointsArePutOffForEightTimesWhatTheyUsedAMinuteAtMost(t *testing.T) {
	start := time.Now()
	for name, c := range map[string]struct {
		used        time.Duration // for each of ten checkpoints
		every, rest time.Duration
	}{
		"small ones, often":         {used: 100 * time.Millisecond, every: 5 * time.Second},
		"a burst of small ones":     {used: 300 * time.Millisecond},
		"a burst of dear ones":      {used: 500 * time.Millisecond, rest: 16 * time.Second},
		"dear ones that keep to it": {used: 3 * time.Second, every: 24 * time.Second},
		"dear ones, too often":      {used: time.Second, every: 5 * time.Second, rest: 11 * time.Second},
		"the dearest":               {used: time.Hour, every: time.Minute, rest: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			p, now := newPace(1), start
			for range 10 {
				now = now.Add(c.every)
				p.worked(c.used, now)
				p.took = now
			}
			g.Expect(p.rest(now)).To(gomega.BeNumerically("~", c.rest, time.Millisecond))
			g.Expect(p.rest(now.Add(c.rest))).To(gomega.BeNumerically("<", time.Millisecond))
			g.Expect(p.holdRest(now)).To(gomega.BeNumerically("~", min(c.rest, longestHold), time.Millisecond), "a call that is held back waits no longer than that")
			g.Expect(p.holdRest(now.Add(longestHold))).To(gomega.BeZero())
			if c.every == 0 && c.rest > 0 {
				g.Expect(p.untilLook()).To(gomega.BeNumerically("~", c.rest, 5*time.Second))
			}
		})
	}
}

func TestPackingTheRepositoryCountsAsACheckpointDoes(t *testing.T) {
	g := gomega.NewWithT(t)
	repo, err := worktree.Open(t.Context(), worktree.Config{Worktree: t.TempDir(), GitDir: filepath.Join(t.TempDir(), "git")})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	defer repo.Close()
	const each = 10 * time.Second
	used := time.Duration(0)
	d := &daemon{log: logr.Discard(), pace: newPace(1), volume: &volume.Volume{Repo: repo},
		cfg: Config{ProcessorTime: func() time.Duration { used += each; return used }}}
	d.maintain(t.Context())
	g.Expect(d.pace.free).To(gomega.Equal(freeProcessorTime - each))
}
