package capacity

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{"1073741824\n": 1 << 30, "max\n": 0, "": 0, "-1": 0, "junk": 0, "9223372036854771712\n": 0} {
		if got := parse(text); got != want {
			t.Errorf("parse(%q) returned %d, want %d", text, got, want)
		}
	}
}

func TestWithoutAContainerLimitThereIsNoLimit(t *testing.T) {
	if ForGit(0) != 0 || ForDaemon(0) != math.MaxInt64 {
		t.Errorf("without a container limit git is limited to %d and the daemon to %d, want 0 and none", ForGit(0), ForDaemon(0))
	}
}

func TestAServerLeavesMemoryOutsideTheHeap(t *testing.T) {
	if got := ForServer(500); got != 400 {
		t.Errorf("a server gets %d of 500, want 400", got)
	}
	if got := Beside(1000, 600); got != 400 {
		t.Errorf("%d of 1000 are left beside 600, want 400", got)
	}
	if got := Beside(800, 900); got != 100 {
		t.Errorf("%d of 800 are left beside 900, want 100", got)
	}
	if ForServer(0) != math.MaxInt64 || Beside(0, 900) != math.MaxInt64 {
		t.Error("without a container limit a server gets one")
	}
}

func TestSetGoMemoryLimitYieldsToTheEnvironment(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	t.Setenv("GOMEMLIMIT", "1GiB")
	SetGoMemoryLimit(1 << 40)
	if got := debug.SetMemoryLimit(-1); got != before {
		t.Errorf("the limit became %d although GOMEMLIMIT is set, want %d", got, before)
	}
	t.Setenv("GOMEMLIMIT", "")
	SetGoMemoryLimit(1 << 40)
	if got := debug.SetMemoryLimit(-1); got != 1<<40 {
		t.Errorf("the limit is %d, want %d", got, int64(1)<<40)
	}
}

func TestTheDaemonAndOneGitFitTogether(t *testing.T) {
	const limit = 1 << 30
	if sum := ForDaemon(limit) + ForGit(limit); sum > limit*9/10 {
		t.Errorf("the daemon and one git get %d of %d bytes together, want nine tenths at most", sum, limit)
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
			t.Errorf("the limit read from %s is %d, want %d", file, got, 1<<30)
		}
	}
}
