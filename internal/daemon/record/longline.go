package record

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// maxLong caps a line that never ends, in bytes.
	maxLong = 1 << 30
	// longSync and longDelay are how many bytes of a long line, and for how long, may wait
	// to be synced to disk.
	longSync  = 4 << 20
	longDelay = 100 * time.Millisecond
)

// longLine is the beginning of a line that is too long to be held in memory. It is kept in
// a file until the line ends, because it can be parsed only then and the shim cannot keep
// it either. The file contains the session's name, a newline, and for each piece its
// number (8 bytes), its length (4 bytes) and its data.
//
// A piece counts as recorded when it is synced to the file and covered by the spool's
// mark; the shim sends later pieces again.
type longLine struct {
	file     *os.File
	begin    int64 // offset of the first piece
	size     int64 // of the file
	synced   int64 // size that is synced to disk
	syncedAt time.Time
	finished bool // the line's records are in the batch
}

// beginLong creates the file of a long line, without pieces.
func beginLong(path, session string) (*longLine, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create the file of a long line: %w", err)
	}
	n, err := f.WriteString(session + "\n")
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write the file of a long line: %w", err)
	}
	return &longLine{file: f, begin: int64(n), size: int64(n), syncedAt: time.Now()}, nil
}

// resumeLong opens the file that an earlier process left, if the last recorded piece of
// this session is in it. It returns nil if there is no such file.
func resumeLong(path, session string, line int64) (*longLine, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the file of a long line: %w", err)
	}
	l := &longLine{file: f, syncedAt: time.Now()}
	in := bufio.NewReader(f)
	name, _ := in.ReadString('\n')
	l.begin, l.size = int64(len(name)), int64(len(name))
	last := int64(0)
	for name == session+"\n" && last < line {
		number, data, err := readPiece(in)
		if err != nil || number > line {
			break
		}
		last = number
		l.size += pieceHeader + int64(len(data))
	}
	if last != line || line == 0 {
		f.Close()
		return nil, nil // the file belongs to a recorded line or to another session
	}
	l.synced = l.size
	if err := f.Truncate(l.size); err != nil {
		f.Close()
		return nil, fmt.Errorf("resume a long line: %w", err)
	}
	return l, nil
}

func (l *longLine) close() {
	if l != nil {
		_ = l.file.Close()
	}
}

const pieceHeader = 12

func (l *longLine) append(number int64, data []byte) error {
	piece := binary.LittleEndian.AppendUint64(make([]byte, 0, pieceHeader+len(data)), uint64(number))
	piece = append(binary.LittleEndian.AppendUint32(piece, uint32(len(data))), data...)
	if _, err := l.file.WriteAt(piece, l.size); err != nil {
		return fmt.Errorf("write a long line: %w", err)
	}
	l.size += int64(len(piece))
	return nil
}

func readPiece(in io.Reader) (number int64, data []byte, err error) {
	var header [pieceHeader]byte
	if _, err := io.ReadFull(in, header[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(header[8:])
	if n > maxLine+wire.MaxChunk {
		return 0, nil, errors.New("a piece is too long")
	}
	data = make([]byte, n)
	_, err = io.ReadFull(in, data)
	return int64(binary.LittleEndian.Uint64(header[:])), data, err
}

// inLong reports whether the current line is a long one.
func (r *Recorder) inLong() bool { return r.long != nil && !r.long.finished }

// addLong adds a piece of a long line.
func (r *Recorder) addLong(ctx context.Context, l wire.Line) error {
	if !r.inLong() {
		if err := r.beginLong(ctx); err != nil {
			return err
		}
	}
	if !l.More || r.long.size > maxLong {
		return r.finishLong(ctx, l.Data)
	}
	return r.persist(ctx, func() error { return r.long.append(l.Number, l.Data) })
}

// beginLong moves the beginning of a line to a file, after writing everything before it to
// disk, since the shim cannot keep both.
func (r *Recorder) beginLong(ctx context.Context) error {
	if r.pending {
		r.items(r.parser.End(), nil)
		r.pending = false
	}
	r.endOutput()
	r.markReady()
	if _, err := r.write(ctx); err != nil {
		return err
	}
	err := r.persist(ctx, func() (err error) {
		r.long, err = beginLong(r.longPath, r.session)
		return err
	})
	if err != nil {
		return err
	}
	if err := r.persist(ctx, func() error { return r.long.append(r.taken-1, r.piece) }); err != nil {
		return err
	}
	r.piece = nil
	return nil
}

// syncLong syncs the file of a long line to disk if that is due, or at once if now is set.
func (r *Recorder) syncLong(ctx context.Context, now bool) error {
	l := r.long
	if !r.inLong() || l.size == l.synced || (!now && l.size-l.synced < longSync && time.Since(l.syncedAt) < longDelay) {
		return nil
	}
	if err := r.persist(ctx, l.file.Sync); err != nil {
		return err
	}
	l.synced, l.syncedAt, r.whole = l.size, time.Now(), r.taken
	r.markReady()
	return nil
}

// finishLong records a long line whose last piece is rest.
func (r *Recorder) finishLong(ctx context.Context, rest []byte) error {
	l := r.long
	var failed error
	cutter := agent.NewCutter(func(piece []byte) {
		r.push(&daemonv1.Record{Body: &daemonv1.Record_Piece{Piece: &daemonv1.Piece{Data: piece}}})
		if r.size >= maxBatchBytes && failed == nil {
			r.ready = len(r.batch)
			_, failed = r.write(ctx)
		}
	})
	line := r.mask.Writer(cutter)
	in := bufio.NewReader(io.NewSectionReader(l.file, l.begin, l.size-l.begin))
	for failed == nil {
		_, data, err := readPiece(in)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read a long line: %w", err)
		}
		_, _ = line.Write(data) // a Cutter never fails
	}
	_, _ = line.Write(rest)
	_ = line.Flush()
	short, mend := cutter.Finish()
	if failed != nil {
		return failed
	}
	l.finished, r.whole = true, r.taken
	if short != nil {
		r.line(short, mend)
		return nil
	}
	r.message(&daemonv1.Message{Role: daemonv1.Role_ROLE_OUTPUT}, mend)
	r.markReady()
	return nil
}

// dropLong removes the file of a long line that is recorded.
func (r *Recorder) dropLong() {
	if r.long == nil || !r.long.finished {
		return
	}
	r.long.close()
	r.long = nil
	// If it is left behind, resumeLong ignores it: the line is already recorded.
	_ = os.Remove(r.longPath)
}
