package agent

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Text converts any bytes to a string that every store accepts: NUL and bytes that are not
// UTF-8 become \xNN.
func Text(b []byte) string {
	if utf8.Valid(b) && !strings.ContainsRune(string(b), 0) {
		return string(b)
	}
	var out strings.Builder
	out.Grow(len(b) + 16)
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == 0 || (r == utf8.RuneError && size == 1) {
			fmt.Fprintf(&out, `\x%02x`, b[0])
		} else {
			out.Write(b[:size])
		}
		b = b[size:]
	}
	return out.String()
}
