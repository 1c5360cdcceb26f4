package mask

import "slices"

// view is a text without its line breaks, so that a value is found that was
// wrapped: base64, for one, breaks its lines at 76 columns. A break is a line end,
// also as it is escaped in JSON, with the further breaks and the indentation
// that follow it.
type view struct {
	text []byte
	// segments say where parts of text stand in the original, in order.
	segments []segment
	// end is how much of the original is in the view; what follows may be the
	// beginning of an escaped line end.
	end int
}

// segment is a part of a view that has no break in it.
type segment struct{ at, original int }

// maxBreak is the length of the longest break, in bytes: what is longer parts
// two texts, and a stream need not be held back for long.
const maxBreak = 256

// viewOf makes a view. Unless it is the last of a stream, an escape that is not
// whole at the end is left out.
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

// original is where a byte of the view stands in the original.
func (v *view) original(at int) int {
	i, found := slices.BinarySearchFunc(v.segments, at, func(s segment, at int) int { return s.at - at })
	if !found {
		i--
	}
	return v.segments[i].original + at - v.segments[i].at
}

// breakLength is the length of the break that b begins with; 0 if there is none.
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

// lineEnd is the length of one line end, as it is or escaped.
func lineEnd(b []byte) int {
	if b[0] == '\n' || b[0] == '\r' {
		return 1
	}
	return escape(b, "nr")
}

// escape is the length of an escape of one of the letters, after any number of
// backslashes: a JSON text inside a JSON text doubles them.
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
