package memory

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{"1073741824\n": 1 << 30, "max\n": 0, "": 0, "-1": 0, "junk": 0, "9223372036854771712\n": 0} {
		if got := parse(text); got != want {
			t.Errorf("%q is %d bytes, want %d", text, got, want)
		}
	}
}

func TestWithoutALimitNobodyHasOne(t *testing.T) {
	if ForGit(0) != 0 || ForDaemon(0) != math.MaxInt64 {
		t.Errorf("git has %d, the daemon %d", ForGit(0), ForDaemon(0))
	}
}

func TestTheDaemonAndOneGitFitTogether(t *testing.T) {
	const limit = 1 << 30
	if sum := ForDaemon(limit) + ForGit(limit); sum > limit*9/10 {
		t.Errorf("%d of %d bytes are given away", sum, limit)
	}
}

func TestTheLimitIsFoundInBothVersionsOfCgroups(t *testing.T) {
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		root := t.TempDir()
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("1073741824\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := limitUnder(root); got != 1<<30 {
			t.Errorf("by %s the limit is %d", file, got)
		}
	}
}
