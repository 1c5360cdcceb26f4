// Package clip shortens texts to so many bytes or characters, and never splits a
// character: what was valid UTF-8 stays so.
package clip

import "unicode/utf8"

// ellipsis shows that a text goes on.
const ellipsis = "…"

// Bytes is the beginning of a text, of at most n bytes; "" for an n below 1.
func Bytes(text string, n int) string {
	if len(text) <= n {
		return text
	}
	n = max(n, 0)
	// What is no UTF-8 may have no beginning of a character anywhere.
	for back := 0; back < utf8.UTFMax && n-back >= 0; back++ {
		if utf8.RuneStart(text[n-back]) {
			return text[:n-back]
		}
	}
	return text[:n]
}

// Marked is Bytes, with an ellipsis behind a text that was shortened, beyond the n bytes.
func Marked(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return Bytes(text, n) + ellipsis
}

// Runes is the beginning of a text, of at most n characters, the last of which is an
// ellipsis if it was shortened; all of it for an n below 1.
func Runes(text string, n int) string {
	if n <= 0 || utf8.RuneCountInString(text) <= n {
		return text
	}
	end := 0
	for range n - 1 {
		_, size := utf8.DecodeRuneInString(text[end:])
		end += size
	}
	return text[:end] + ellipsis
}
