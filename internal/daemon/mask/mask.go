// Package mask keeps the values of the agent's Secrets from leaving the pod.
//
// It promises:
//
//   - A value is found unencoded, escaped in JSON (also twice, as in a JSON text inside a
//     JSON text), in the percent-encoding of URLs, in hex, and in base64 and base32, alone
//     or in the middle of a longer encoded text (as in a basic authorization). A value of 8
//     bytes or more is also found reversed, in upper and in lower case, and with the two
//     characters exchanged in which the base64 of URLs differs. Each line of 16 bytes or
//     more of a value of several lines is also found by itself.
//   - In all of these, line breaks with indentation may occur anywhere, unescaped or escaped
//     in JSON, because programs wrap encoded text.
//   - A value is found however a stream is split into writes.
//   - Values of less than 6 bytes are ignored: they would mask ordinary words.
//
// A value is replaced by [masked]; a value of digits alone by as many nines, so that a
// JSON number remains one. A value that is compressed, encrypted, split by other text
// (spaces, line numbers, the columns of a hex dump) or encoded in another way is not found.
package mask

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Replacement replaces a masked value.
const Replacement = "[masked]"

const (
	// minValue is the length, in bytes, of the shortest value that is masked, minLine that
	// of a line of a longer value, minPart that of a part of an encoded text.
	minValue = 6
	minLine  = 16
	minPart  = 10
	// minVariant is the length, in bytes, of the shortest value that is also searched for
	// in variants that may be ordinary words: reversed, or in another case.
	minVariant = 8
	// formsVersion is increased when values are found in further forms, so that files
	// checked by an older release are checked again.
	formsVersion = 2
)

// Masker replaces a set of values. A nil Masker has no values. It is safe for concurrent
// use.
type Masker struct {
	needles     []needle // longest first
	fingerprint uint32
	window      int // length of the shortest needle, at most 255
	longest     int // length of the longest needle
	// shift is how far the window may advance, by the two bytes that it ends in; at 0 a
	// needle of their bucket may begin where the window does.
	shift [1 << 16]uint8
	// bucket lists the needles whose window ends in two bytes.
	bucket map[uint16][]int
	// firsts lists the needles by their first byte.
	firsts [256][]int
}

// needle is one form of a value.
type needle struct {
	text   []byte
	digits bool // text consists of digits
}

// New returns a Masker for values; nil if none is long enough to be masked.
func New(values ...[]byte) *Masker {
	var kept [][]byte
	for _, v := range values {
		if v = bytes.TrimSpace(v); len(v) >= minValue {
			kept = append(kept, v)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	slices.SortFunc(kept, bytes.Compare)
	kept = slices.CompactFunc(kept, bytes.Equal)
	m := &Masker{bucket: map[uint16][]int{}}
	sum := sha256.New()
	sum.Write([]byte{formsVersion})
	known := map[string]bool{}
	for _, v := range kept {
		_ = binary.Write(sum, binary.BigEndian, uint64(len(v)))
		sum.Write(v)
		for _, form := range forms(v) {
			whole := viewOf(form, true)
			if form = whole.text; len(form) >= minValue && !known[string(form)] {
				known[string(form)] = true
				m.needles = append(m.needles, needle{text: form, digits: isDigits(form)})
			}
		}
	}
	m.fingerprint = max(1, binary.BigEndian.Uint32(sum.Sum(nil)))
	m.index()
	return m
}

func isDigits(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c < '0' || c > '9' })
}

// index builds the tables of the search, which is Wu and Manber's.
func (m *Masker) index() {
	slices.SortFunc(m.needles, func(a, b needle) int {
		return cmp.Or(cmp.Compare(len(b.text), len(a.text)), bytes.Compare(a.text, b.text))
	})
	m.longest = len(m.needles[0].text)
	m.window = min(len(m.needles[len(m.needles)-1].text), 1<<8-1)
	for i := range m.shift {
		m.shift[i] = uint8(m.window - 1)
	}
	for n, needle := range m.needles {
		for end := 2; end <= m.window; end++ {
			pair := pairOf(needle.text[end-2], needle.text[end-1])
			m.shift[pair] = min(m.shift[pair], uint8(m.window-end))
		}
		last := pairOf(needle.text[m.window-2], needle.text[m.window-1])
		m.bucket[last] = append(m.bucket[last], n)
		m.firsts[needle.text[0]] = append(m.firsts[needle.text[0]], n)
	}
}

func pairOf(a, b byte) uint16 { return uint16(a)<<8 | uint16(b) }

// next returns the first place, from from on, where a needle begins, and the longest needle
// that begins there. start is len(b) if there is none.
func (m *Masker) next(b []byte, from int) (start int, found *needle) {
	for i := from + m.window; i <= len(b); {
		pair := pairOf(b[i-2], b[i-1])
		if shift := m.shift[pair]; shift > 0 {
			i += int(shift)
			continue
		}
		start := i - m.window
		for _, n := range m.bucket[pair] {
			if bytes.HasPrefix(b[start:], m.needles[n].text) {
				return start, &m.needles[n]
			}
		}
		i++
	}
	return len(b), nil
}

// tail returns where, at the end of b, a needle may begin that continues after b; len(b) if
// none can.
func (m *Masker) tail(b []byte) int {
	for p := max(0, len(b)-m.longest+1); p < len(b); p++ {
		for _, n := range m.firsts[b[p]] {
			if text := m.needles[n].text; len(text) > len(b)-p && bytes.HasPrefix(text, b[p:]) {
				return p
			}
		}
	}
	return len(b)
}

// Fingerprint returns a number that differs for another set of values; 0 for none. It
// reveals too little to guess a value.
func (m *Masker) Fingerprint() uint32 {
	if m == nil {
		return 0
	}
	return m.fingerprint
}

// Holds reports whether b contains a value.
func (m *Masker) Holds(b []byte) bool {
	if m == nil {
		return false
	}
	_, found := m.next(viewOf(b, true).text, 0)
	return found != nil
}

// Text returns s with the values in it replaced.
func (m *Masker) Text(s string) string {
	if m == nil || len(s) < m.window || !m.Holds([]byte(s)) {
		return s
	}
	return string(m.Bytes([]byte(s)))
}

// Bytes returns b with the values in it replaced; b itself if it has none.
func (m *Masker) Bytes(b []byte) []byte {
	if !m.Holds(b) {
		return b
	}
	var out bytes.Buffer
	w := m.Writer(&out)
	_, _ = w.Write(b)
	_ = w.Flush()
	return out.Bytes()
}

// Same returns b with each byte of a value replaced by an asterisk, so that the length
// stays the same; b itself if it has no value.
func (m *Masker) Same(b []byte) []byte {
	if !m.Holds(b) {
		return b
	}
	var out bytes.Buffer
	_, _, _ = m.CopySame(&out, bytes.NewReader(b))
	return out.Bytes()
}
