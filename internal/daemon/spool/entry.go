package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// An entry is the length of its body and the CRC-32C of its body (4 bytes each, little
// endian), then the body: the mark's line (8 bytes), the length of its session (1 byte) and
// the session, then for each record its length (4 bytes) and the record in protobuf. If the
// highest bit of the session's length is set, the mark's state follows the session: its
// length (4 bytes) and the state.
const (
	headerBytes = 8
	hasState    = 1 << 7
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type entry struct {
	mark    Mark
	records []*daemonv1.Record
	size    int64
}

func encode(mark Mark, records []*daemonv1.Record) ([]byte, error) {
	if len(mark.Session) >= hasState {
		return nil, errors.New("the session's name is longer than 127 bytes")
	}
	out := make([]byte, headerBytes, 256)
	out = binary.LittleEndian.AppendUint64(out, uint64(mark.Line))
	if mark.State == "" {
		out = append(out, byte(len(mark.Session)))
		out = append(out, mark.Session...)
	} else {
		out = append(out, byte(len(mark.Session))|hasState)
		out = append(out, mark.Session...)
		out = binary.LittleEndian.AppendUint32(out, uint32(len(mark.State)))
		out = append(out, mark.State...)
	}
	for _, r := range records {
		at := len(out)
		out = append(out, 0, 0, 0, 0)
		var err error
		if out, err = (proto.MarshalOptions{}).MarshalAppend(out, r); err != nil {
			return nil, fmt.Errorf("encode a record for the spool: %w", err)
		}
		binary.LittleEndian.PutUint32(out[at:], uint32(len(out)-at-4))
	}
	if len(out) > maxEntryBytes {
		return nil, fmt.Errorf("a batch of %d bytes is too large for the spool, which takes at most %d", len(out), maxEntryBytes)
	}
	binary.LittleEndian.PutUint32(out, uint32(len(out)-headerBytes))
	binary.LittleEndian.PutUint32(out[4:], crc32.Checksum(out[headerBytes:], castagnoli))
	return out, nil
}

var errNoEntry = errors.New("no valid entry")

// parse decodes the entry at the beginning of data.
func parse(data []byte) (entry, error) {
	if len(data) < headerBytes {
		return entry{}, errNoEntry
	}
	length := int64(binary.LittleEndian.Uint32(data))
	if length == 0 || length > maxEntryBytes || headerBytes+length > int64(len(data)) {
		return entry{}, errNoEntry
	}
	return parseBody(data, data[headerBytes:headerBytes+length])
}

// parseBody decodes an entry with the given body, whatever length its header says.
func parseBody(header, body []byte) (entry, error) {
	if len(header) < headerBytes || crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(header[4:]) {
		return entry{}, errNoEntry
	}
	e, err := decode(body)
	e.size = headerBytes + int64(len(body))
	return e, err
}

// readEntry reads the entry at offset of a file with end valid bytes.
func readEntry(f io.ReaderAt, offset, end int64) (entry, error) {
	var header [headerBytes]byte
	if end-offset < headerBytes {
		return entry{}, errNoEntry
	}
	if _, err := f.ReadAt(header[:], offset); err != nil {
		return entry{}, err
	}
	length := int64(binary.LittleEndian.Uint32(header[:]))
	if length == 0 || length > maxEntryBytes || offset+headerBytes+length > end {
		return entry{}, errNoEntry
	}
	body := make([]byte, length)
	if _, err := f.ReadAt(body, offset+headerBytes); err != nil {
		return entry{}, err
	}
	return parseBody(header[:], body)
}

func decode(body []byte) (entry, error) {
	short := errors.New("the entry is too short")
	var e entry
	mark, body, ok := decodeMark(body)
	if !ok {
		return entry{}, short
	}
	e.mark = mark
	for len(body) > 0 {
		if len(body) < 4 {
			return entry{}, short
		}
		n := int(binary.LittleEndian.Uint32(body))
		if n > len(body)-4 {
			return entry{}, short
		}
		r := &daemonv1.Record{}
		if err := proto.Unmarshal(body[4:4+n], r); err != nil {
			return entry{}, err
		}
		e.records = append(e.records, r)
		body = body[4+n:]
	}
	return e, nil
}

func decodeMark(body []byte) (m Mark, rest []byte, ok bool) {
	if len(body) < 9 {
		return m, nil, false
	}
	m.Line = int64(binary.LittleEndian.Uint64(body))
	n, state := int(body[8]&^hasState), body[8]&hasState != 0
	body = body[9:]
	if len(body) < n {
		return m, nil, false
	}
	m.Session, body = string(body[:n]), body[n:]
	if !state {
		return m, body, true
	}
	if len(body) < 4 || uint64(len(body)-4) < uint64(binary.LittleEndian.Uint32(body)) {
		return m, nil, false
	}
	n = 4 + int(binary.LittleEndian.Uint32(body))
	m.State = string(body[4:n])
	return m, body[n:], true
}
