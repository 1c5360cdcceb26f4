package sidecar

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/pace"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/volume"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/worktree"
)

func TestPackingTheRepositoryCountsLikeACheckpoint(t *testing.T) {
	g := gomega.NewWithT(t)
	repo, err := worktree.Open(t.Context(), worktree.Config{Worktree: t.TempDir(), GitDir: filepath.Join(t.TempDir(), "git")})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	defer repo.Close()
	const each = 10 * time.Second
	used := time.Duration(0)
	paced := pace.New(pace.Config{ProcessorTime: func() time.Duration { used += each; return used },
		ProcessorsShort: func() bool { return false }, Agent: socket.New(nil, nil, daemonapi.Config{}, logr.Discard())})
	d := &daemon{log: logr.Discard(), pace: paced, volume: &volume.Volume{Repo: repo}}
	g.Expect(paced.RiskyRest()).To(gomega.BeZero())
	paced.Taken()
	d.maintain(t.Context())
	g.Expect(paced.RiskyRest()).To(gomega.BeNumerically(">", each))
}
