// Package clip truncates texts to a number of bytes or characters. It never splits a
// character: valid UTF-8 stays valid.
package clip

import "unicode/utf8"

// ellipsis marks a truncated text.
const ellipsis = "…"

// Bytes returns the longest beginning of a text with at most n bytes; "" if n < 1.
func Bytes(text string, n int) string {
	if len(text) <= n {
		return text
	}
	n = max(n, 0)
	// Invalid UTF-8 may have no start of a character at all, so look back only so far.
	for back := 0; back < utf8.UTFMax && n-back >= 0; back++ {
		if utf8.RuneStart(text[n-back]) {
			return text[:n-back]
		}
	}
	return text[:n]
}

// Marked is Bytes, followed by an ellipsis if the text was truncated. The ellipsis is in
// addition to the n bytes.
func Marked(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return Bytes(text, n) + ellipsis
}

// Runes truncates a text to at most n characters, ending in an ellipsis if
// the text was truncated. It returns the whole text if n < 1.
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
