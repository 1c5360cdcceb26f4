package worktree

import (
	"context"
	"strings"
	"testing"
)

func TestWhatCannotBeSentIsToldFromWhatCan(t *testing.T) {
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
			must(t, f.repo.Sendable(ctx, both, nil))
			loosen(t, f.config().GitDir)
			damageObject(t, f.config().GitDir, blob, kind)
			wantReason(t, f.repo.Sendable(ctx, []string{one.Code}, nil), CheckpointCorrupted)
			wantReason(t, f.repo.Sendable(ctx, []string{two.Code}, nil), CheckpointCorrupted)
			must(t, f.repo.Sendable(ctx, []string{two.Code, two.State}, []string{one.Code}))
		})
	}
}
