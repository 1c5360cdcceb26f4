package gitstore

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/refname"
)

// TestReplacedLiveFilesDoNotFillTheRepository: an agent rewrites a large file, and somebody asks
// for it again and again.
func TestReplacedLiveFilesDoNotFillTheRepository(t *testing.T) {
	const fileBytes, limit = 1 << 20, 4 << 20
	server := newTestServer(t, Limits{})
	server.handler.replaced.least = limit
	maintainer := NewMaintainer(server.handler, time.Hour, 50, logr.Discard())
	repo := server.store.repository("team", repository)
	task := server.client(taskToken("fix", 1))
	checkpoint := task.commit("kept", "of a checkpoint")
	task.push("HEAD:"+codeRef("fix", 1), "HEAD:"+stateRef("fix", 1))
	var newest string
	var most int64
	for range 20 {
		content := make([]byte, fileBytes)
		_, _ = rand.Read(content)
		newest = task.commit("large", string(content))
		task.push("+HEAD:" + refname.Live("uid-fix"))
		task.git("reset", "--quiet", "--hard", checkpoint)
		for range maintainer.takeQueued() {
			maintainer.maintain(t.Context(), repo)
		}
		size, err := diskUse(repo.Path)
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, size)
	}
	if most > limit+3*fileBytes {
		t.Errorf("the repository took up to %d bytes, of which one live file of %d and %d that were replaced are wanted", most, fileBytes, limit)
	}
	if got := server.remoteRef(refname.Live("uid-fix")); got != newest {
		t.Errorf("the live ref is %q, want %s", got, newest)
	}
	if got := server.remoteRef(codeRef("fix", 1)); got != checkpoint {
		t.Errorf("the checkpoint is %q, want %s", got, checkpoint)
	}
	fsck(t, repo.Path)
	if all := everything(t, repo.Path); !strings.Contains(all, "of a checkpoint") {
		t.Error("the checkpoint's file is gone")
	}
}

// TestCheckpointsAreNotCountedAsReplaced: a purge rewrites the repository.
func TestCheckpointsAreNotCountedAsReplaced(t *testing.T) {
	server := newTestServer(t, Limits{})
	server.handler.replaced.least = 0
	task := server.client(taskToken("fix", 1))
	task.commit("a", "one")
	task.push("HEAD:"+codeRef("fix", 1), "+HEAD:"+refname.Live("uid-fix"))
	task.commit("a", "two")
	task.push("HEAD:" + codeRef("fix", 2))
	if marked, err := server.store.repository("team", repository).marked(); marked || err != nil {
		t.Errorf("the repository is marked for a purge: %v, %v", marked, err)
	}
}
