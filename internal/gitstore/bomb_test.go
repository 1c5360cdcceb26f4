package gitstore

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/testing/gitbomb"
)

// pushPack sends a pack as a client of its own make does, and returns what the
// server says to it.
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
	// As a client shows it: messages without their packets' heads.
	var shown strings.Builder
	for rest := answer; len(rest) > 5; {
		size, err := hex.DecodeString(string(rest[:4]))
		if err != nil || int(binary.BigEndian.Uint16(size)) > len(rest) || binary.BigEndian.Uint16(size) < 5 {
			break
		}
		n := binary.BigEndian.Uint16(size)
		fmt.Fprintf(&shown, "remote: %s\n", rest[5:n])
		rest = rest[n:]
	}
	return shown.String()
}

// childMemory is the most that a process that this one started, and waited for,
// has used; between fork and exec, that is what this one uses.
func childMemory(t *testing.T) int64 {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage); err != nil {
		t.Fatal(err)
	}
	return usage.Maxrss << 10
}

func TestASmallPushCannotTakeAllMemory(t *testing.T) {
	const bomb = 512 << 20
	server := newTestServer(t, Limits{})
	for name, make := range map[string]func(int) ([]byte, []byte){"delta": gitbomb.Delta, "commit": gitbomb.Commit} {
		pack, tip := make(bomb)
		if len(pack) > 1<<20 {
			t.Fatalf("the %s bomb has %d bytes", name, len(pack))
		}
		said := server.pushPack(taskToken("evil", 1), codeRef("evil", 1), pack, tip)
		if refused, ok := gitstoreapi.Parse(said); !ok || refused.Reason != gitstoreapi.MemoryExceeded || refused.Retryable() {
			t.Errorf("the %s bomb was answered with %v: %s", name, refused, said)
		}
	}
	if most := childMemory(t); most > 384<<20 {
		t.Errorf("git used %d MiB, and may use %d", most>>20, testGitMemory>>20)
	}
	// An ordinary push of the same task goes on.
	task := server.client(taskToken("evil", 1))
	task.commit("a", noise(5_000_000))
	task.push("HEAD:" + codeRef("evil", 1))
	fsck(t, server.bare(repository))
}
