package resources

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// PlainText makes text that others wrote safe to be shown, and cuts it to so many
// characters: what could move a cursor, change colours or reorder letters is
// escaped. Line breaks and tabs stay.
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

// harmful says that a character is not one to read. Cf holds the marks that
// reverse the direction of writing; emoji need the zero-width joiner.
func harmful(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) && r != '\u200d'
}
