package worktree

import (
	"context"
	"crypto/rand"
	"testing"
)

// randomText returns text that git cannot compress.
func randomText(size int) string {
	content := make([]byte, size)
	_, _ = rand.Read(content)
	return string(content)
}

// TestReplacedFilesDoNotFillTheVolume: an agent rewrites a large file, and its files are stored
// again and again while it works.
func TestReplacedFilesDoNotFillTheVolume(t *testing.T) {
	const fileBytes, limit = 1 << 20, 4 << 20
	ctx := context.Background()
	f := cloned(t, makeOrigin(t, 5))
	f.repo.cfg.MaxReplacedBytes = limit
	var kept []Checkpoint
	var most int64
	for i := range 24 {
		f.write("large", randomText(fileBytes))
		f.warm()
		if i%12 == 11 {
			f.write("large", randomText(fileBytes))
			kept = append(kept, f.checkpoint())
		}
		_, err := f.repo.Maintain(ctx)
		must(t, err)
		size, err := f.repo.packBytes()
		must(t, err)
		most = max(most, size)
	}
	if most > limit+5*fileBytes {
		t.Errorf("the packs took up to %d bytes, want at most %d of replaced files, and those of two checkpoints", most, limit)
	}
	for _, c := range kept {
		must(t, f.repo.Verify(ctx, c.target()))
	}
	f.warm()
	gitIn(t, f.config().GitDir, "fsck", "--full")
}

// TestFilesThatWarmStoresForACheckpointDoNotCountAsReplaced: dropping objects rewrites the
// repository.
func TestFilesThatWarmStoresForACheckpointDoNotCountAsReplaced(t *testing.T) {
	f := cloned(t, makeOrigin(t, 5))
	for range 3 {
		f.write("large", randomText(1<<20))
		f.warm()
		f.checkpoint()
	}
	if f.repo.replaced > 100<<10 {
		t.Errorf("%d bytes count as replaced, though each checkpoint has what was stored for it", f.repo.replaced)
	}
}
