package gitstore

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// checkpointStream returns a stream for git fast-import: many commits, each of which changes 5
// of 500 files, under the refs of the task's checkpoints.
func checkpointStream(task string, many int) string {
	var s strings.Builder
	for number := 1; number <= many; number++ {
		fmt.Fprintf(&s, "commit %s\nmark :%d\ncommitter Clew <%s> %d +0000\ndata 4\nwork\n", codeRef(task, number), number, checkpointCommitter, 1700000000+number)
		if number > 1 {
			fmt.Fprintf(&s, "from :%d\n", number-1)
		}
		for i := range 500 {
			if number == 1 || i/5 == number%100 {
				text := fmt.Sprintf("package p\n\n// File %d, as checkpoint %d has it.\n%s", i, number, strings.Repeat("var x = 1 // a line that stays\n", 40))
				fmt.Fprintf(&s, "M 100644 inline dir%d/file%d.go\ndata %d\n%s\n", i%20, i, len(text), text)
			}
		}
	}
	return s.String()
}

// sizeOf returns the size of the files below a folder.
func sizeOf(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// A policy deletes objects of the cluster and nothing here: the third of many checkpoints is
// fetched as the last one is, and stays as it was. They are 100, with CLEW_SOAK=1 1,000.
func TestManyCheckpointsStay(t *testing.T) {
	many := 100
	if os.Getenv("CLEW_SOAK") == "1" {
		many = 1000
	}
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	task.gitWith(checkpointStream("fix", many), "fast-import", "--quiet")
	for first := 1; first <= many; first += 100 {
		var refs []string
		for number := first; number < first+100; number++ {
			refs = append(refs, codeRef("fix", number))
		}
		task.push(refs...)
	}
	repo := server.store.repository("team", repository)
	pushed := sizeOf(t, repo.Path)
	NewMaintainer(server.handler, time.Hour, 5, logr.Discard()).maintain(t.Context(), repo)
	t.Logf("%d checkpoints with 5 changed files each: %d KiB in the gitstore, %d KiB after maintenance", many, pushed>>10, sizeOf(t, repo.Path)>>10)

	var took [2]time.Duration
	for i, number := range []int{3, many} {
		fresh := server.client(taskToken("fix", 2))
		began := time.Now()
		fresh.git("fetch", "--quiet", fresh.url, codeRef("fix", number))
		took[i] = time.Since(began)
		if got, want := fresh.git("rev-parse", "FETCH_HEAD"), task.git("rev-parse", codeRef("fix", number)); got != want {
			t.Errorf("checkpoint %d is %s, not %s", number, got, want)
		}
		if files := strings.Count(fresh.git("ls-tree", "-r", "--name-only", "FETCH_HEAD"), "\n") + 1; files != 500 {
			t.Errorf("checkpoint %d has %d files, not 500", number, files)
		}
	}
	t.Logf("fetched checkpoint 3 in %s, and %d in %s", took[0], many, took[1])
	fsck(t, repo.Path)
}
