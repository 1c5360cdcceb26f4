// Package gitbomb makes small packs that hold large objects, as somebody sends
// them to a git server who means harm.
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

// Pack is a pack of objects that are encoded already.
func Pack(objects ...[]byte) []byte {
	pack := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(len(objects)))
	for _, object := range objects {
		pack = append(pack, object...)
	}
	sum := sha1.Sum(pack)
	return append(pack, sum[:]...)
}

// Kinds of objects in a pack; a delta is based on an object that it names.
const (
	KindCommit = 1
	KindTree   = 2
	KindBlob   = 3
	KindDelta  = 7
)

// Object is an object in a pack: its kind and size, what it is based on, and the
// compressed content.
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
	_, _ = io.Copy(w, content) // a buffer takes everything
	_ = w.Close()
	return object.Bytes()
}

// ObjectID is the hash by which git knows an object.
func ObjectID(kind string, size int, content io.Reader) []byte {
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

// Delta is a pack of some hundred bytes that holds a blob of so many, as a
// delta that copies its base again and again.
func Delta(size int) (pack, tip []byte) {
	const baseSize = 64 << 10
	copies := size / baseSize
	delta := binary.AppendUvarint(nil, baseSize)
	delta = binary.AppendUvarint(delta, uint64(copies*baseSize))
	delta = append(delta, bytes.Repeat([]byte{0x80}, copies)...) // copies 64 KiB from the start
	tip = ObjectID("blob", baseSize, letters(baseSize))
	return Pack(Object(KindBlob, baseSize, nil, letters(baseSize)), Object(KindDelta, len(delta), tip, bytes.NewReader(delta))), tip
}

// Commit is a pack that holds a commit with a message of so many bytes.
func Commit(size int) (pack, tip []byte) {
	head := fmt.Sprintf("tree %x\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\n", ObjectID("tree", 0, letters(0)))
	size += len(head)
	commit := func() io.Reader { return io.MultiReader(strings.NewReader(head), letters(size-len(head))) }
	return Pack(Object(KindTree, 0, nil, letters(0)), Object(KindCommit, size, nil, commit())), ObjectID("commit", size, commit())
}

// Push is the body of a request that pushes a pack to a new ref.
func Push(ref string, pack, tip []byte) []byte {
	command := fmt.Appendf(nil, "%040d %x %s\x00 report-status side-band-64k", 0, tip, ref)
	body := append(fmt.Appendf(nil, "%04x", len(command)+4), command...)
	return append(append(body, "0000"...), pack...)
}
