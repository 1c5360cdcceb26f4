package mask

import "slices"

// view is a text without its line breaks, so that a wrapped value is found: base64, for
// example, is wrapped at 76 columns. A break is a line end, unescaped or escaped in JSON,
// with the line ends and the indentation that follow it.
type view struct {
	text []byte
	// segments map parts of text to their offsets in the original, in order.
	segments []segment
	// end is how many bytes of the original are in the view; the rest may be the beginning
	// of an escaped line end.
	end int
}

// segment is a part of a view without a break: its offset in the view and in the original.
type segment struct{ at, original int }

// maxBreak is the length, in bytes, of the longest break: a longer one separates two texts,
// and bounds how much of a stream is held back.
const maxBreak = 256

// viewOf returns a view of b. Unless b is the last part of a stream, an incomplete escape
// at its end is left out.
func viewOf(b []byte, last bool) view {
	v := view{end: len(b)}
	if !last {
		for v.end > 0 && b[v.end-1] == '\\' {
			v.end--
		}
	}
	from := 0
	for i := 0; i < v.end; i++ {
		if c := b[i]; c != '\n' && c != '\r' && c != '\\' {
			continue
		}
		n := breakLength(b[i:v.end])
		if n == 0 {
			continue
		}
		v.add(b[from:i], from)
		from = i + n
		i = from - 1
	}
	if from == 0 {
		v.text, v.segments = b[:v.end], []segment{{0, 0}}
		return v
	}
	v.add(b[from:v.end], from)
	return v
}

func (v *view) add(part []byte, original int) {
	if len(part) > 0 {
		v.segments = append(v.segments, segment{len(v.text), original})
		v.text = append(v.text, part...)
	}
}

// original returns the offset in the original of a byte of the view.
func (v *view) original(at int) int {
	i, found := slices.BinarySearchFunc(v.segments, at, func(s segment, at int) int { return s.at - at })
	if !found {
		i--
	}
	return v.segments[i].original + at - v.segments[i].at
}

// breakLength returns the length of the break at the beginning of b; 0 if there is none.
func breakLength(b []byte) int {
	n := lineEnd(b)
	if n == 0 {
		return 0
	}
	for n < len(b) && n < maxBreak {
		more := lineEnd(b[n:])
		switch {
		case more > 0:
		case b[n] == ' ' || b[n] == '\t':
			more = 1
		default:
			more = escape(b[n:], "t")
		}
		if more == 0 {
			break
		}
		n += more
	}
	return n
}

// lineEnd returns the length of one line end at the beginning of b, unescaped or escaped.
func lineEnd(b []byte) int {
	if b[0] == '\n' || b[0] == '\r' {
		return 1
	}
	return escape(b, "nr")
}

// escape returns the length of an escape of one of the letters, after up to 8 backslashes:
// a JSON text inside a JSON text doubles them.
func escape(b []byte, letters string) int {
	n := 0
	for n < len(b) && n < 8 && b[n] == '\\' {
		n++
	}
	if n == 0 || n == len(b) {
		return 0
	}
	for i := range letters {
		if b[n] == letters[i] {
			return n + 1
		}
	}
	return 0
}
