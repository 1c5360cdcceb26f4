package agent

import (
	"crypto/sha256"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// pieces cuts a text into pieces. The text may come in any parts; what is not
// UTF-8 in it, and NUL, becomes \xNN as in Text.
type pieces struct {
	emit func([]byte)
	tail []byte // the beginning of a character
	buf  []byte
	cut  spill
}

func (p *pieces) write(b []byte) {
	for len(b) > 0 {
		part := b[:min(len(b), MaxPiece)]
		b = b[len(part):]
		if len(p.tail) > 0 {
			part = append(p.tail, part...)
			p.tail = nil
		}
		whole := boundary(part, len(part))
		p.tail = append(p.tail, part[whole:]...)
		p.text(Text(part[:whole]))
	}
}

// text takes text that is clean.
func (p *pieces) text(s string) {
	for len(s) > 0 {
		n := min(len(s), MaxPiece-len(p.buf))
		p.buf = append(p.buf, s[:n]...)
		s = s[n:]
		if len(p.buf) < MaxPiece {
			return
		}
		// A character that does not fit goes into the next piece.
		at := boundary(p.buf, len(p.buf))
		rest := append([]byte(nil), p.buf[at:]...)
		p.buf = p.buf[:at]
		p.flush()
		p.buf = append(p.buf, rest...)
	}
}

// flush ends a piece.
func (p *pieces) flush() {
	if len(p.buf) == 0 {
		return
	}
	sum := sha256.Sum256(p.buf)
	p.cut.hashes = append(p.cut.hashes, sum[:])
	p.cut.bytes += int64(len(p.buf))
	p.show(p.buf)
	p.emit(p.buf)
	p.buf = nil
}

// show adds to the beginning of the text.
func (p *pieces) show(b []byte) {
	if shown := int64(len(p.cut.preview)); shown < previewBytes && shown == p.cut.bytes-int64(len(b)) {
		p.cut.preview = append(p.cut.preview, b[:boundary(b, previewBytes-len(p.cut.preview))]...)
	}
}

// add puts a text that was cut before in here.
func (p *pieces) add(s spill) {
	p.drain()
	before := p.cut.bytes
	if int64(len(p.cut.preview)) == before {
		p.cut.preview = append(p.cut.preview, s.preview[:boundary(s.preview, previewBytes-len(p.cut.preview))]...)
	}
	p.cut.hashes = append(p.cut.hashes, s.hashes...)
	p.cut.bytes += s.bytes
}

// drain ends the piece, and the character that was left unfinished.
func (p *pieces) drain() {
	if len(p.tail) > 0 {
		tail := p.tail
		p.tail = nil
		p.text(Text(tail))
	}
	p.flush()
}

func (p *pieces) end() spill {
	p.drain()
	return p.cut
}

// boundary is the largest n, at most the limit, so that b[:n] ends with a whole
// character. Bytes that are no UTF-8 are characters of their own.
func boundary(b []byte, limit int) int {
	if limit >= len(b) {
		limit = len(b)
	}
	if limit <= 0 {
		return 0
	}
	for back := 1; back < utf8.UTFMax && back <= limit; back++ {
		at := limit - back
		if !utf8.RuneStart(b[at]) {
			continue
		}
		if limit < len(b) {
			if _, size := utf8.DecodeRune(b[at:]); at+size > limit {
				return at
			}
		} else if !utf8.FullRune(b[at:]) {
			return at
		}
		return limit
	}
	return limit
}

// spilling cuts a JSON string that is written to it as it stands in the JSON.
type spilling struct {
	pieces
	plain bool // emit what it stands for

	escape []byte // the escape that has begun, without its end
	high   rune   // the first half of a pair of surrogates
}

func newSpilling(emit func([]byte), plain bool) *spilling {
	return &spilling{pieces: pieces{emit: emit}, plain: plain}
}

func (s *spilling) write(b []byte) {
	if !s.plain {
		s.pieces.write(b)
		return
	}
	for len(b) > 0 {
		if len(s.escape) > 0 {
			s.escape = append(s.escape, b[0])
			b = b[1:]
			s.unescape()
			continue
		}
		at := 0
		for at < len(b) && b[at] != '\\' {
			at++
		}
		if at > 0 {
			s.lone()
			s.pieces.write(b[:at])
		}
		if b = b[at:]; len(b) > 0 {
			s.escape = append(s.escape, b[0])
			b = b[1:]
		}
	}
}

// unescape ends an escape if it is whole.
func (s *spilling) unescape() {
	e := s.escape
	if e[1] == 'u' {
		if len(e) < 6 {
			return
		}
		s.escape = nil
		n, err := strconv.ParseUint(string(e[2:]), 16, 16)
		if err != nil {
			s.lone()
			s.pieces.write(e)
			return
		}
		s.unit(rune(n))
		return
	}
	s.escape = nil
	s.lone()
	switch e[1] {
	case 'n':
		s.pieces.write([]byte{'\n'})
	case 't':
		s.pieces.write([]byte{'\t'})
	case 'r':
		s.pieces.write([]byte{'\r'})
	case 'b':
		s.pieces.write([]byte{'\b'})
	case 'f':
		s.pieces.write([]byte{'\f'})
	case '"', '\\', '/':
		s.pieces.write(e[1:])
	default:
		s.pieces.write(e) // no escape of JSON
	}
}

// unit takes a unit of UTF-16.
func (s *spilling) unit(r rune) {
	if s.high != 0 {
		if pair := utf16.DecodeRune(s.high, r); pair != utf8.RuneError {
			s.high = 0
			s.pieces.write(utf8.AppendRune(nil, pair))
			return
		}
		s.lone()
	}
	if r >= 0xd800 && r < 0xdc00 {
		s.high = r
		return
	}
	s.pieces.write(utf8.AppendRune(nil, r))
}

// lone ends a first half that has no second.
func (s *spilling) lone() {
	if s.high != 0 {
		s.high = 0
		s.pieces.write(utf8.AppendRune(nil, utf8.RuneError))
	}
}

func (s *spilling) end() spill {
	s.lone()
	if len(s.escape) > 0 {
		s.pieces.write(s.escape)
	}
	return s.pieces.end()
}
