package agent

import (
	"crypto/sha256"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// pieces splits a text into pieces of at most MaxPiece bytes. The text may be written in
// parts of any size. Invalid UTF-8 and NUL become \xNN, as in Text.
type pieces struct {
	emit func([]byte)
	tail []byte // an incomplete character at the end of the last write
	buf  []byte
	cut  cutString
}

// write adds the next part of the text.
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

// text adds valid UTF-8 without NUL.
func (p *pieces) text(s string) {
	for len(s) > 0 {
		n := min(len(s), MaxPiece-len(p.buf))
		p.buf = append(p.buf, s[:n]...)
		s = s[n:]
		if len(p.buf) < MaxPiece {
			return
		}
		// A character that does not fit goes to the next piece.
		at := boundary(p.buf, len(p.buf))
		rest := append([]byte(nil), p.buf[at:]...)
		p.buf = p.buf[:at]
		p.flush()
		p.buf = append(p.buf, rest...)
	}
}

// flush ends and emits the current piece.
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

// show extends the preview, if all of the text before b is in it.
func (p *pieces) show(b []byte) {
	if shown := int64(len(p.cut.preview)); shown < previewBytes && shown == p.cut.bytes-int64(len(b)) {
		p.cut.preview = append(p.cut.preview, b[:boundary(b, previewBytes-len(p.cut.preview))]...)
	}
}

// add inserts a text that was cut out before.
func (p *pieces) add(s cutString) {
	p.drain()
	before := p.cut.bytes
	if int64(len(p.cut.preview)) == before {
		p.cut.preview = append(p.cut.preview, s.preview[:boundary(s.preview, previewBytes-len(p.cut.preview))]...)
	}
	p.cut.hashes = append(p.cut.hashes, s.hashes...)
	p.cut.bytes += s.bytes
}

// drain ends the current piece, including an incomplete character.
func (p *pieces) drain() {
	if len(p.tail) > 0 {
		tail := p.tail
		p.tail = nil
		p.text(Text(tail))
	}
	p.flush()
}

// end ends the text.
func (p *pieces) end() cutString {
	p.drain()
	return p.cut
}

// boundary returns the largest n up to limit for which b[:n] ends with a complete
// character. A byte that is not UTF-8 counts as a character.
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

// stringPieces splits a JSON string into pieces. It is written in its JSON encoding, without
// the quotes.
type stringPieces struct {
	pieces
	plain bool // emit the decoded string

	escape []byte // an incomplete escape sequence
	high   rune   // a high surrogate that waits for its low one
}

func newStringPieces(emit func([]byte), plain bool) *stringPieces {
	return &stringPieces{pieces: pieces{emit: emit}, plain: plain}
}

// write adds the next part of the JSON string.
func (s *stringPieces) write(b []byte) {
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
			s.endSurrogate()
			s.pieces.write(b[:at])
		}
		if b = b[at:]; len(b) > 0 {
			s.escape = append(s.escape, b[0])
			b = b[1:]
		}
	}
}

// unescape decodes the escape sequence if it is complete.
func (s *stringPieces) unescape() {
	e := s.escape
	if e[1] == 'u' {
		if len(e) < 6 {
			return
		}
		s.escape = nil
		n, err := strconv.ParseUint(string(e[2:]), 16, 16)
		if err != nil {
			s.endSurrogate()
			s.pieces.write(e)
			return
		}
		s.unit(rune(n))
		return
	}
	s.escape = nil
	s.endSurrogate()
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
		s.pieces.write(e) // not a JSON escape
	}
}

// unit adds one UTF-16 code unit.
func (s *stringPieces) unit(r rune) {
	if s.high != 0 {
		if pair := utf16.DecodeRune(s.high, r); pair != utf8.RuneError {
			s.high = 0
			s.pieces.write(utf8.AppendRune(nil, pair))
			return
		}
		s.endSurrogate()
	}
	if r >= 0xd800 && r < 0xdc00 {
		s.high = r
		return
	}
	s.pieces.write(utf8.AppendRune(nil, r))
}

// endSurrogate replaces a high surrogate without a low one.
func (s *stringPieces) endSurrogate() {
	if s.high != 0 {
		s.high = 0
		s.pieces.write(utf8.AppendRune(nil, utf8.RuneError))
	}
}

// end ends the string.
func (s *stringPieces) end() cutString {
	s.endSurrogate()
	if len(s.escape) > 0 {
		s.pieces.write(s.escape)
	}
	return s.pieces.end()
}
