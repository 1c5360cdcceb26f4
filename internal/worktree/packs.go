package worktree

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"io"
)

// maxPackLooked is the size of the largest pack that is looked into for secrets.
// What an agent commits is packed by "git gc" with the rest of its repository,
// so a pack of a small project is looked into whole.
const maxPackLooked = 64 << 20

// Types of the entries of a pack, by git's documentation of its format.
const (
	packOffsetDelta = 6
	packRefDelta    = 7
)

var errNoPack = errors.New("not a pack that is understood")

// packHoldsSecret looks into the entries of a pack of git's. Of a delta, what it
// inserts is looked at: what it copies stands in another entry. Whatever cannot
// be read holds none.
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

func (s *scanner) packEntryHoldsSecret(in *bufio.Reader) (bool, error) {
	kind, size, err := packEntry(in)
	if err != nil {
		return false, err
	}
	// It reads byte by byte, and so not into the next entry.
	content, err := zlib.NewReader(in)
	if err != nil {
		return false, err
	}
	if kind < packOffsetDelta {
		_, found, err := s.secrets.CopySame(io.Discard, content)
		return found, err
	}
	delta, err := io.ReadAll(io.LimitReader(content, min(size, maxPackLooked)+1))
	if err != nil {
		return false, err
	}
	return s.secrets.Holds(deltaInserts(delta)), nil
}

// packEntry reads what comes before the compressed content of an entry.
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

// deltaInserts is what a delta inserts, with a byte in the place of each copy.
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
