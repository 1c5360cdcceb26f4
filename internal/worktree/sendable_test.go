package worktree

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckSendableFindsMissingAndDamagedObjects(t *testing.T) {
	for _, kind := range []string{"missing", "truncated"} {
		t.Run(kind, func(t *testing.T) {
			f := cloned(t, makeOrigin(t, 20))
			ctx := context.Background()
			f.write("victim", "precious content\n")
			one := f.checkpoint()
			blob := strings.TrimSpace(gitIn(t, f.config().GitDir, "rev-parse", one.Code+":victim"))
			f.write("victim", "other\n")
			two := f.checkpoint()
			both := []string{one.Code, one.State, two.Code, two.State}
			must(t, f.repo.CheckSendable(ctx, both, nil))
			loosen(t, f.config().GitDir)
			damageObject(t, f.config().GitDir, blob, kind)
			wantReason(t, f.repo.CheckSendable(ctx, []string{one.Code}, nil), CheckpointCorrupted)
			wantReason(t, f.repo.CheckSendable(ctx, []string{two.Code}, nil), CheckpointCorrupted)
			must(t, f.repo.CheckSendable(ctx, []string{two.Code, two.State}, []string{one.Code}))
		})
	}
}

// TestADamagedSizeIsNotALackOfMemory: git requests as much memory as the damaged size says,
// so more memory would not help.
func TestADamagedSizeIsNotALackOfMemory(t *testing.T) {
	f := cloned(t, "")
	for i := range 8000 { // a tree whose size takes four bytes
		f.write(fmt.Sprintf("a-file-of-a-long-name-%d", i), "")
	}
	c := f.checkpoint()
	gitIn(t, f.config().GitDir, "-c", "repack.writeBitmaps=false", "repack", "-adfq")
	f.repo.cfg.GitMemoryBytes = 16 << 20
	err := f.repo.CheckSendable(t.Context(), []string{c.Code}, nil)
	for ; err == nil; err = f.repo.CheckSendable(t.Context(), []string{c.Code}, nil) {
		f.repo.cfg.GitMemoryBytes -= 128 << 10
	}
	wantReason(t, err, MemoryExceeded)
	enlarge(t, f.config().GitDir, strings.TrimSpace(gitIn(t, f.config().GitDir, "rev-parse", c.Code+"^{tree}")))
	f.repo.cfg.GitMemoryBytes = 256 << 20
	wantReason(t, f.repo.CheckSendable(t.Context(), []string{c.Code}, nil), CheckpointCorrupted)
	wantReason(t, f.repo.Verify(t.Context(), c.target()), CheckpointCorrupted)
}

// TestADamagedDeltaIsNotALackOfMemory: a delta is stored in far fewer bytes than its object
// has, and it is the delta's base for which git runs out of memory.
func TestADamagedDeltaIsNotALackOfMemory(t *testing.T) {
	f := cloned(t, "")
	f.repo.cfg.MaxFileBytes = 16 << 20
	large := make([]byte, 12<<20)
	_, err := rand.Read(large)
	must(t, err)
	f.write("large", string(large))
	before := f.checkpoint()
	f.write("large", string(large)+"x")
	after := f.checkpoint()
	gitIn(t, f.config().GitDir, "-c", "repack.writeBitmaps=false", "repack", "-adfq")
	for mebibytes := int64(8); !strings.Contains(stderrOf(err), "failed to read delta base"); mebibytes++ {
		f.repo.cfg.GitMemoryBytes = mebibytes << 20
		_, err = f.repo.Restore(t.Context(), RestoreRequest{Target: before.target()})
		wantReason(t, err, MemoryExceeded)
	}
	base := strings.TrimSpace(gitIn(t, f.config().GitDir, "rev-parse", after.Code+":large"))
	changePacked(t, f.config().GitDir, base, func(entry []byte) { entry[len(entry)/2] ^= 1 })
	_, err = f.repo.Restore(t.Context(), RestoreRequest{Target: before.target()})
	wantReason(t, err, CheckpointCorrupted)
}

// enlarge changes one bit of an object's entry in the pack, so that its size is encoded in
// one more byte.
func enlarge(t *testing.T, gitDir, id string) {
	t.Helper()
	changePacked(t, gitDir, id, func(entry []byte) {
		i := 0
		for entry[i]&0x80 != 0 {
			i++
		}
		entry[i] |= 0x80
	})
}

// changePacked modifies the bytes of an object's entry in the pack.
func changePacked(t *testing.T, gitDir, id string, change func(entry []byte)) {
	t.Helper()
	packs, err := filepath.Glob(filepath.Join(gitDir, "objects/pack/*.pack"))
	must(t, err)
	for _, pack := range packs {
		for line := range strings.Lines(gitIn(t, gitDir, "verify-pack", "-v", pack)) {
			var kind string
			var of, size, offset int
			if n, _ := fmt.Sscanf(line, id+" %s %d %d %d", &kind, &of, &size, &offset); n < 4 {
				continue
			}
			content, err := os.ReadFile(pack)
			must(t, err)
			change(content[offset : offset+size])
			must(t, os.Remove(pack))
			must(t, os.WriteFile(pack, content, 0o444))
			return
		}
	}
	t.Fatalf("no pack contains the object %s", id)
}
