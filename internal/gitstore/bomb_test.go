package gitstore

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/clew-dev/clew/internal/gitstore/refusal"
)

// packOf is a pack of objects that are encoded already.
func packOf(objects ...[]byte) []byte {
	pack := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(len(objects)))
	for _, object := range objects {
		pack = append(pack, object...)
	}
	sum := sha1.Sum(pack)
	return append(pack, sum[:]...)
}

const (
	packedCommit = 1
	packedTree   = 2
	packedBlob   = 3
	packedDelta  = 7
)

// packed is an object in a pack: its kind and size, what it is based on, and the
// compressed content.
func packed(kind, size int, base []byte, content io.Reader) []byte {
	first := byte(kind<<4 | size&15)
	var object bytes.Buffer
	for rest := size >> 4; rest > 0; rest >>= 7 {
		object.WriteByte(first | 0x80)
		first = byte(rest & 0x7f)
	}
	object.WriteByte(first)
	object.Write(base)
	w := zlib.NewWriter(&object)
	_, _ = io.Copy(w, content) // a buffer takes everything
	_ = w.Close()
	return object.Bytes()
}

func objectID(kind string, size int, content io.Reader) []byte {
	sum := sha1.New()
	fmt.Fprintf(sum, "%s %d\x00", kind, size)
	_, _ = io.Copy(sum, content) // a hash takes everything
	return sum.Sum(nil)
}

// letters is a text of so many bytes, none of which it keeps.
func letters(size int) io.Reader { return io.LimitReader(manyLetters{}, int64(size)) }

type manyLetters struct{}

func (manyLetters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

// deltaBomb is a pack of some hundred bytes that holds a blob of so many, as a
// delta that copies its base again and again.
func deltaBomb(size int) (pack, tip []byte) {
	const baseSize = 64 << 10
	copies := size / baseSize
	delta := binary.AppendUvarint(nil, baseSize)
	delta = binary.AppendUvarint(delta, uint64(copies*baseSize))
	delta = append(delta, bytes.Repeat([]byte{0x80}, copies)...) // copies 64 KiB from the start
	tip = objectID("blob", baseSize, letters(baseSize))
	return packOf(packed(packedBlob, baseSize, nil, letters(baseSize)), packed(packedDelta, len(delta), tip, bytes.NewReader(delta))), tip
}

// commitBomb is a pack that holds a commit with a message of so many bytes.
func commitBomb(size int) (pack, tip []byte) {
	head := fmt.Sprintf("tree %x\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\n", objectID("tree", 0, letters(0)))
	size += len(head)
	commit := func() io.Reader { return io.MultiReader(strings.NewReader(head), letters(size-len(head))) }
	return packOf(packed(packedTree, 0, nil, letters(0)), packed(packedCommit, size, nil, commit())), objectID("commit", size, commit())
}

// pushPack sends a pack as a client of its own make does, and returns what the
// server says to it.
func (s *testServer) pushPack(token, ref string, pack, tip []byte) string {
	s.t.Helper()
	body := packet(fmt.Appendf(nil, "%040d %x %s\x00 report-status side-band-64k", 0, tip, ref))
	body = append(append(body, "0000"...), pack...)
	r, err := http.NewRequest(http.MethodPost, s.url("team", repository)+"/git-receive-pack", bytes.NewReader(body))
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
	for name, make := range map[string]func(int) ([]byte, []byte){"delta": deltaBomb, "commit": commitBomb} {
		pack, tip := make(bomb)
		if len(pack) > 1<<20 {
			t.Fatalf("the %s bomb has %d bytes", name, len(pack))
		}
		said := server.pushPack(taskToken("evil", 1), codeRef("evil", 1), pack, tip)
		if refused, ok := refusal.Parse(said); !ok || refused.Reason != refusal.MemoryExceeded || refused.Retryable() {
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
