package mask

import (
	"bytes"
	"errors"
	"io"
)

// Writer replaces values in what is written to it. It holds back bytes that may be the
// beginning of a value.
type Writer struct {
	m    *Masker
	out  io.Writer
	same bool // write asterisks instead of the replacement

	held   []byte
	masked int  // how many of the held bytes belong to a value that was already replaced
	found  bool // a value was found
	ready  bytes.Buffer
}

// Writer returns a Writer that writes to out.
func (m *Masker) Writer(out io.Writer) *Writer { return &Writer{m: m, out: out} }

// Write implements io.Writer. It returns only errors of the underlying writer.
func (w *Writer) Write(p []byte) (int, error) {
	if w.m == nil {
		return w.out.Write(p)
	}
	if err := w.pass(p, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes what is held back.
func (w *Writer) Flush() error {
	if w.m == nil {
		return nil
	}
	return w.pass(nil, true)
}

// Held reports whether something is held back.
func (w *Writer) Held() bool { return len(w.held) > 0 }

// FlushLines writes the whole lines of what is held back, which is right when the next line
// does not follow soon: then no value continues in it.
func (w *Writer) FlushLines() error {
	lines := bytes.LastIndexByte(w.held, '\n') + 1
	if w.m == nil || lines == 0 {
		return nil
	}
	rest, masked := bytes.Clone(w.held[lines:]), max(0, w.masked-lines)
	w.held = w.held[:lines]
	err := w.pass(nil, true)
	w.held, w.masked = append(w.held, rest...), masked
	return err
}

// HeldLine reports whether a whole line is held back.
func (w *Writer) HeldLine() bool { return bytes.IndexByte(w.held, '\n') >= 0 }

// pass masks and writes what is held back and p, except what it holds back for the next
// call unless last is set.
func (w *Writer) pass(p []byte, last bool) error {
	data := p
	if len(w.held) > 0 {
		w.held = append(w.held, p...)
		data = w.held
	}
	v := viewOf(data, last)
	hold := v.end
	if !last {
		if at := w.m.tail(v.text); at < len(v.text) {
			hold = v.original(at)
		}
	}
	if _, found := w.m.next(v.text, 0); found == nil && w.masked == 0 && len(w.held) == 0 {
		w.held = append(w.held, data[hold:]...)
		return w.write(data[:hold])
	}
	w.ready.Reset()
	covered := w.replace(data, &v, hold)
	w.held = append(w.held[:0], data[hold:]...)
	w.masked = max(0, covered-hold)
	return w.write(w.ready.Bytes())
}

// replace masks the data before hold into ready, and returns where the last value that
// begins there ends. Values that overlap are replaced together.
func (w *Writer) replace(data []byte, v *view, hold int) (covered int) {
	covered = w.masked
	if w.same {
		w.stars(min(covered, hold))
	}
	for at := 0; ; at++ {
		found, needle := w.m.next(v.text, at)
		start, end := hold, hold
		if needle != nil {
			start = min(v.original(found), hold)
			end = v.original(found+len(needle.text)-1) + 1
		}
		if start > covered {
			w.ready.Write(data[covered:start])
		}
		if start == hold {
			return covered
		}
		w.found = true
		switch {
		case w.same:
			w.stars(max(0, min(end, hold)-max(start, min(covered, hold))))
		case start >= covered && needle.digits:
			for range needle.text {
				w.ready.WriteByte('9')
			}
		case start >= covered:
			w.ready.WriteString(Replacement)
		}
		covered, at = max(covered, end), found
	}
}

func (w *Writer) stars(n int) {
	for range n {
		w.ready.WriteByte('*')
	}
}

func (w *Writer) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, err := w.out.Write(b)
	return err
}

// CopySame copies src to dst with each byte of a value replaced by an asterisk, and reports
// whether it found a value. n is the number of bytes copied.
func (m *Masker) CopySame(dst io.Writer, src io.Reader) (n int64, found bool, err error) {
	if m == nil {
		n, err = io.Copy(dst, src)
		return n, false, err
	}
	w := &Writer{m: m, out: dst, same: true}
	buf := make([]byte, 128<<10)
	for {
		read, err := src.Read(buf)
		n += int64(read)
		if e := w.pass(buf[:read], false); e != nil {
			return n, w.found, e
		}
		if errors.Is(err, io.EOF) {
			return n, w.found, w.pass(nil, true)
		}
		if err != nil {
			return n, w.found, err
		}
	}
}
