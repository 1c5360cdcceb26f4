package worktree

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"io"
)

// maxScannedPack is the size of the largest pack that is scanned for secrets.
// "git gc" packs what an agent commits together with the rest of its repository,
// so the pack of a small project is scanned whole.
const maxScannedPack = 64 << 20

// Types of the entries in a pack (gitformat-pack).
const (
	packOffsetDelta = 6
	packRefDelta    = 7
)

var errNoPack = errors.New("the pack has an unsupported format")

// packHoldsSecret reports whether an entry of a git pack contains a secret. In a
// delta only the inserted data is checked, since what it copies is in another entry.
// Data that cannot be read counts as containing none.
func (s *scanner) packHoldsSecret(pack io.Reader) bool {
	in := bufio.NewReaderSize(pack, 64<<10)
	var header [12]byte
	if _, err := io.ReadFull(in, header[:]); err != nil || string(header[:4]) != "PACK" {
		return false
	}
	for range binary.BigEndian.Uint32(header[8:]) {
		found, err := s.packEntryHoldsSecret(in)
		if found || err != nil {
			return found
		}
	}
	return false
}

// packEntryHoldsSecret reads one entry of a pack and reports whether it contains a
// secret.
func (s *scanner) packEntryHoldsSecret(in *bufio.Reader) (bool, error) {
	kind, size, err := packEntry(in)
	if err != nil {
		return false, err
	}
	// in is an io.ByteReader, so zlib reads nothing of the next entry.
	content, err := zlib.NewReader(in)
	if err != nil {
		return false, err
	}
	if kind < packOffsetDelta {
		_, found, err := s.secrets.CopySame(io.Discard, content)
		return found, err
	}
	delta, err := io.ReadAll(io.LimitReader(content, min(size, maxScannedPack)+1))
	if err != nil {
		return false, err
	}
	return s.secrets.Holds(deltaInserts(delta)), nil
}

// packEntry reads the header of an entry, which precedes its compressed content.
func packEntry(in *bufio.Reader) (kind byte, size int64, err error) {
	b, err := in.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	kind, size = b>>4&7, int64(b&15)
	for shift := 4; b&0x80 != 0; shift += 7 {
		if b, err = in.ReadByte(); err != nil || shift > 56 {
			return 0, 0, errors.Join(errNoPack, err)
		}
		size |= int64(b&0x7f) << shift
	}
	switch kind {
	case packRefDelta:
		_, err = in.Discard(20)
	case packOffsetDelta:
		for b = 0x80; b&0x80 != 0 && err == nil; {
			b, err = in.ReadByte()
		}
	}
	return kind, size, err
}

// deltaInserts returns the data that a delta inserts, with a NUL in place of each copy.
func deltaInserts(delta []byte) []byte {
	for range 2 { // the sizes of the base and of the result
		i := bytes.IndexFunc(delta, func(r rune) bool { return r < 0x80 })
		if i < 0 {
			return nil
		}
		delta = delta[i+1:]
	}
	var out []byte
	for len(delta) > 0 {
		op := delta[0]
		delta = delta[1:]
		n := int(op)
		if op&0x80 != 0 {
			n = 0
			for bits := op & 0x7f; bits != 0; bits &= bits - 1 {
				n++
			}
		}
		n = min(n, len(delta))
		if op&0x80 != 0 {
			out = append(out, 0)
		} else {
			out = append(out, delta[:n]...)
		}
		delta = delta[n:]
	}
	return out
}
