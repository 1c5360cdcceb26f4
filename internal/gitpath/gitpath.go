// Package gitpath writes paths the way git prints them, so that any name a file can have fits
// into a line of text, JSON included, and can be read back.
package gitpath

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Quote returns path as git displays it: unchanged, or in double quotes with C
// escapes if it is not valid UTF-8, contains control characters or begins with a
// quote. The result is always valid UTF-8; Unquote reverses it.
func Quote(path string) string {
	if !needsQuotes(path) {
		return path
	}
	return CQuote(path)
}

func needsQuotes(path string) bool {
	if strings.HasPrefix(path, `"`) || !utf8.ValidString(path) {
		return true
	}
	for i := 0; i < len(path); i++ {
		if path[i] < 0x20 || path[i] == 0x7f {
			return true
		}
	}
	return false
}

// CQuote puts path in double quotes with the escapes that git fast-import reads.
func CQuote(path string) string {
	var b strings.Builder
	b.Grow(len(path) + 8)
	b.WriteByte('"')
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < 0x20 || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Unquote reverses Quote. It fails for text that Quote cannot return.
func Unquote(text string) (string, error) {
	if !strings.HasPrefix(text, `"`) {
		return text, nil
	}
	if len(text) < 2 || !strings.HasSuffix(text, `"`) {
		return "", fmt.Errorf("the quoted path %s has no closing quote", text)
	}
	in := text[1 : len(text)-1]
	var b strings.Builder
	for i := 0; i < len(in); i++ {
		if in[i] != '\\' {
			b.WriteByte(in[i])
			continue
		}
		rest := in[i+1:]
		switch {
		case rest != "" && (rest[0] == '"' || rest[0] == '\\'):
			b.WriteByte(rest[0])
			i++
		case rest != "" && rest[0] == 'n':
			b.WriteByte('\n')
			i++
		case rest != "" && rest[0] == 't':
			b.WriteByte('\t')
			i++
		case len(rest) >= 3 && rest[0] >= '0' && rest[0] <= '3' && isOctal(rest[1]) && isOctal(rest[2]):
			b.WriteByte((rest[0]-'0')<<6 | (rest[1]-'0')<<3 | (rest[2] - '0'))
			i += 3
		default:
			return "", fmt.Errorf("the quoted path %s has an unknown escape", text)
		}
	}
	return b.String(), nil
}

func isOctal(c byte) bool { return c >= '0' && c <= '7' }
