package resources

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// PlainText makes untrusted text safe to display, and truncates it to a number of characters.
// It escapes characters that could move a cursor, change colours or reorder letters. Line
// breaks and tabs are kept.
func PlainText(s string, characters int) string {
	var b strings.Builder
	room := characters
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		piece := s[i : i+size]
		switch {
		case r == utf8.RuneError && size == 1:
			piece = "\uFFFD"
		case harmful(r) && r < 0x100:
			piece = fmt.Sprintf("\\x%02x", r)
		case harmful(r):
			piece = fmt.Sprintf("\\u%04x", r)
		}
		i += size
		n := utf8.RuneCountInString(piece)
		if n > room || n == room && i < len(s) {
			b.WriteString("…")
			break
		}
		room -= n
		b.WriteString(piece)
	}
	return b.String()
}

// harmful reports whether a character must be escaped. The category Cf contains the marks that
// reverse the direction of writing; emoji need the zero-width joiner.
func harmful(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) && r != '\u200d'
}
