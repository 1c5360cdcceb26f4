package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// An entry is the length of its body and the CRC-32C of its body (4 bytes
// each, little endian), then the body: the mark's line (8 bytes), the length of
// its session (1 byte) and the session, then for each record its length (4
// bytes) and the record in protobuf. If the length of the session has its
// highest bit set, the mark's state follows the session: its length (4 bytes)
// and the state.
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
		return nil, fmt.Errorf("a batch of %d bytes is too large for the spool: at most %d", len(out), maxEntryBytes)
	}
	binary.LittleEndian.PutUint32(out, uint32(len(out)-headerBytes))
	binary.LittleEndian.PutUint32(out[4:], crc32.Checksum(out[headerBytes:], castagnoli))
	return out, nil
}

// errTorn: the entry is one that a crash interrupted.
var errTorn = errors.New("an entry that was not written to its end")

// readEntry reads the entry at offset of a file with end valid bytes.
func readEntry(f io.ReaderAt, offset, end int64) (entry, error) {
	var header [headerBytes]byte
	if end-offset < headerBytes {
		return entry{}, errTorn
	}
	if _, err := f.ReadAt(header[:], offset); err != nil {
		return entry{}, err
	}
	length := int64(binary.LittleEndian.Uint32(header[:]))
	if length == 0 || length > maxEntryBytes {
		return entry{}, errors.New("its length is wrong")
	}
	if offset+headerBytes+length > end {
		return entry{}, errTorn
	}
	body := make([]byte, length)
	if _, err := f.ReadAt(body, offset+headerBytes); err != nil {
		return entry{}, err
	}
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(header[4:]) {
		if offset+headerBytes+length == end {
			return entry{}, errTorn
		}
		return entry{}, errors.New("its checksum is wrong")
	}
	e, err := decode(body)
	e.size = headerBytes + length
	return e, err
}

func decode(body []byte) (entry, error) {
	short := errors.New("it is too short")
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

// load reads the folder and makes the spool ready for Append.
func (s *Spool) load() error {
	names, err := filepath.Glob(filepath.Join(s.dir, "*.log"))
	if err != nil {
		return fmt.Errorf("read the spool: %w", err)
	}
	slices.Sort(names)
	for _, path := range names {
		first, err := strconv.ParseInt(strings.TrimSuffix(filepath.Base(path), ".log"), 10, 64)
		if err != nil || first < 1 {
			return fmt.Errorf("%w: %s is no segment", ErrCorrupted, path)
		}
		s.segments = append(s.segments, &segment{path: path, first: first})
	}
	if len(s.segments) == 0 {
		return s.rotate(0)
	}
	for i, seg := range s.segments {
		if i == 0 {
			s.last = seg.first - 1
		} else if seg.first != s.last+1 {
			return fmt.Errorf("%w: records between %d and %d are missing", ErrCorrupted, s.last, seg.first)
		}
		if err := s.scan(seg, i == len(s.segments)-1); err != nil {
			return err
		}
	}
	if s.active, err = os.OpenFile(s.current().path, os.O_RDWR, 0); err != nil {
		return fmt.Errorf("open the spool: %w", err)
	}
	return nil
}

// scan reads a segment through, and cuts off a torn end if it is the newest.
func (s *Spool) scan(seg *segment, newest bool) error {
	f, err := os.OpenFile(seg.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the spool: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open the spool: %w", err)
	}
	for seg.size < info.Size() {
		e, err := readEntry(f, seg.size, info.Size())
		if err != nil && !newest {
			return fmt.Errorf("%w: %s at byte %d: %w", ErrCorrupted, seg.path, seg.size, err)
		}
		if err != nil {
			return s.cut(f, seg, info.Size(), errors.Is(err, errTorn))
		}
		seg.size += e.size
		s.mark = e.mark
		s.last += int64(len(e.records))
	}
	return nil
}

// cut removes what follows the valid part of the newest segment. What an
// interrupted write cannot explain is put aside first.
func (s *Spool) cut(f *os.File, seg *segment, size int64, torn bool) error {
	if !torn {
		rest, err := io.ReadAll(io.NewSectionReader(f, seg.size, size-seg.size))
		if err != nil {
			return fmt.Errorf("read the spool's damaged end: %w", err)
		}
		if strings.Trim(string(rest), "\x00") != "" {
			name := filepath.Join(s.dir, fmt.Sprintf("damaged-%d-%d", s.last+1, seg.size))
			if err := os.WriteFile(name, rest, 0o600); err != nil {
				return fmt.Errorf("put the spool's damaged end aside: %w", err)
			}
			s.damaged = int64(len(rest))
		}
	}
	if err := f.Truncate(seg.size); err != nil {
		return fmt.Errorf("cut the spool's torn end: %w", err)
	}
	return f.Sync()
}

// rotate begins a new segment after sequence last. Its first entry carries the
// mark, so that older segments can go.
func (s *Spool) rotate(last int64) error {
	path := filepath.Join(s.dir, fmt.Sprintf("%020d.log", last+1))
	if s.active != nil && path == s.current().path {
		return nil // nothing but marks so far: go on in it
	}
	header, err := encode(s.mark, nil)
	if err != nil {
		return err
	}
	f, err := writeSegment(path, header)
	if err != nil {
		return fmt.Errorf("begin a segment of the spool: %w", err)
	}
	if err := syncDir(s.dir); err != nil {
		f.Close()
		return err
	}
	if s.active != nil {
		s.active.Close()
	}
	s.active = f
	s.segments = append(s.segments, &segment{path: path, first: last + 1, size: int64(len(header))})
	return nil
}

// writeSegment makes the file under another name first, so that a segment
// always begins with its mark.
func writeSegment(path string, header []byte) (*os.File, error) {
	f, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(header)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		f.Close()
		os.Remove(path + ".new")
		return nil, err
	}
	return f, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync the spool's folder: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync the spool's folder: %w", err)
	}
	return nil
}
