package gitstore

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/testing/gitbomb"
)

// pushPack sends a pack without git's client, and returns the server's response as git
// would print it.
func (s *testServer) pushPack(token, ref string, pack, tip []byte) string {
	s.t.Helper()
	body := bytes.NewReader(gitbomb.Push(ref, pack, tip))
	r, err := http.NewRequest(http.MethodPost, s.url("team", repository)+"/git-receive-pack", body)
	if err != nil {
		s.t.Fatal(err)
	}
	r.SetBasicAuth("x", token)
	r.Header.Set("Content-Type", "application/x-git-receive-pack-request")
	response, err := s.Client().Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	// As git prints it: messages without the packets' headers.
	var shown strings.Builder
	for packets := bytes.NewReader(answer); ; {
		line, _, err := readPacket(packets, 1<<16)
		if err != nil || line == nil {
			return shown.String()
		}
		fmt.Fprintf(&shown, "remote: %s\n", line[1:]) // behind the band
	}
}

// childMemory returns the most memory that any child process used that has been waited
// for. Between fork and exec a child uses as much as this process.
func childMemory(t *testing.T) int64 {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage); err != nil {
		t.Fatal(err)
	}
	return usage.Maxrss << 10
}

func TestASmallPushCannotTakeAllMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: make test runs it")
	}
	const bomb = 512 << 20
	server := newTestServer(t, Limits{})
	for name, make := range map[string]func(int) ([]byte, []byte){"delta": gitbomb.Delta, "commit": gitbomb.Commit} {
		pack, tip := make(bomb)
		if len(pack) > 1<<20 {
			t.Fatalf("the %s bomb has %d bytes", name, len(pack))
		}
		output := server.pushPack(taskToken("evil", 1), codeRef("evil", 1), pack, tip)
		refused := checkRefused(t, "the "+name+" bomb", output, gitstoreapi.MemoryExceeded)
		if refused != nil && refused.Retryable() {
			t.Errorf("the refusal of the %s bomb is retryable: %v", name, refused)
		}
	}
	if most := childMemory(t); most > 384<<20 {
		t.Errorf("git used %d MiB, although it may use %d only", most>>20, testGitMemory>>20)
	}
	// An ordinary push of the same task still works.
	task := server.client(taskToken("evil", 1))
	task.commit("a", noise(5_000_000))
	task.push("HEAD:" + codeRef("evil", 1))
	fsck(t, server.bare(repository))
}
