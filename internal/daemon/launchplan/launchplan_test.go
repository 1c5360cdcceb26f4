package launchplan_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/daemon/launchplan"
)

func TestPlan(t *testing.T) {
	dir := t.TempDir()
	if _, err := launchplan.Read(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("without a plan the error is %v, want fs.ErrNotExist", err)
	}
	want := launchplan.Plan{AgentType: "ClaudeCode", Memory: "Session", Session: "s", Model: "m", Tools: []string{"clew-daemon", "tools"}, Prompt: strings.Repeat("long ", 100_000)}
	for range 2 {
		if err := launchplan.Write(dir, want); err != nil {
			t.Fatal(err)
		}
		if got, err := launchplan.Read(dir); err != nil || !cmp.Equal(want, got) {
			t.Fatalf("%v, %+v", err, got)
		}
	}
	info, err := os.Stat(filepath.Join(dir, launchplan.File))
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Fatalf("%v %v", info, err)
	}
	for range 2 {
		if err := launchplan.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	os.WriteFile(filepath.Join(dir, launchplan.File), []byte("{torn"), 0o600)
	if _, err := launchplan.Read(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a plan that cannot be read gives %v", err)
	}
}
