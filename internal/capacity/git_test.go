package capacity_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/capacity"
)

func TestTheLimitHoldsForTheCommandAndItsChildren(t *testing.T) {
	run := func(bytes int64, script string) string {
		t.Helper()
		name, words := capacity.LimitedCommand("/bin/sh", bytes, []string{"-c", script})
		out, err := exec.CommandContext(t.Context(), name, words...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	const limit, inherited = "ulimit -S -d", "sh -c 'ulimit -S -d'"
	for _, script := range []string{limit, inherited} {
		if got := run(64<<20, script); got != "65536" {
			t.Errorf("%s: the limit is %q KiB, want 65536", script, got)
		}
	}
	if with, without := run(64<<20, "ulimit -H -d"), run(0, "ulimit -H -d"); with != without {
		t.Errorf("the hard limit is %s instead of %s, so a hook could not set its own limit", with, without)
	}
	if with, without := run(0, limit), run(64<<20, "ulimit -S -d $(ulimit -H -d); ulimit -S -d"); with == "65536" || without == "65536" {
		t.Errorf("the limit of 65536 KiB applies where it must not: %s without a limit, %s for a hook that sets its own", with, without)
	}
}
