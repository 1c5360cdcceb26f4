package mask

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// forms returns the encodings and variants in which a value is searched for, including
// those of its long lines.
func forms(value []byte) [][]byte {
	out := formsOfOne(value)
	if lines := bytes.Split(value, []byte("\n")); len(lines) > 1 {
		for _, line := range lines {
			// The lines that frame a key in PEM are not secret.
			if line = bytes.TrimSpace(line); len(line) >= minLine && !bytes.HasPrefix(line, []byte("-----")) {
				out = append(out, formsOfOne(line)...)
			}
		}
	}
	return out
}

// formsOfOne returns the encodings and variants of a value as a whole.
func formsOfOne(value []byte) [][]byte {
	out := [][]byte{value}
	if utf8.Valid(value) {
		text := string(value)
		for _, once := range escapes(text) {
			out = append(out, []byte(once))
			for _, twice := range escapes(once) {
				out = append(out, []byte(twice))
			}
		}
		out = append(out, []byte(url.QueryEscape(text)), []byte(url.PathEscape(text)))
	}
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		out = append(out, []byte(encoding.EncodeToString(value)))
		for before := range 3 {
			if part := inside(encoding, value, before); len(part) >= minPart {
				out = append(out, []byte(part))
			}
		}
	}
	for _, encoding := range []*base32.Encoding{base32.StdEncoding, base32.HexEncoding} {
		encoding = encoding.WithPadding(base32.NoPadding)
		out = append(out, []byte(encoding.EncodeToString(value)))
		for before := range 5 {
			if part := inside32(encoding, value, before); len(part) >= minPart {
				out = append(out, []byte(part))
			}
		}
	}
	digits := hex.EncodeToString(value)
	out = append(out, []byte(digits), []byte(strings.ToUpper(digits)))
	if len(value) >= minVariant {
		out = append(out, reversed(value), bytes.ToUpper(value), bytes.ToLower(value),
			[]byte(strings.NewReplacer("/", "_", "+", "-").Replace(string(value))))
	}
	return out
}

// reversed returns a value as the program rev prints it.
func reversed(value []byte) []byte {
	if !utf8.Valid(value) {
		return value
	}
	runes := []rune(string(value))
	slices.Reverse(runes)
	return []byte(string(runes))
}

// inside32 is inside for base32, which encodes five bytes as eight characters.
func inside32(encoding *base32.Encoding, value []byte, before int) string {
	text := encoding.EncodeToString(append(make([]byte, before), value...))
	return text[(before*8+4)/5 : (before+len(value))*8/5]
}

// inside returns the part that is always the same in the base64 text of a longer input that
// has the value after 3n+before other bytes.
func inside(encoding *base64.Encoding, value []byte, before int) string {
	text := encoding.EncodeToString(append(make([]byte, before), value...))
	from := []int{0, 2, 3}[before]
	to := (before + len(value)) * 8 / 6
	return text[from:to]
}

// escapes returns the ways to write s inside a JSON string.
func escapes(s string) []string {
	out := []string{quoted(s, false)}
	for _, other := range []string{quoted(s, true), strings.ReplaceAll(out[0], "/", `\/`), ascii(out[0])} {
		if other != out[0] {
			out = append(out, other)
		}
	}
	return out
}

// quoted returns s as a JSON string without its quotes.
func quoted(s string, html bool) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(html)
	if encoder.Encode(s) != nil {
		return s
	}
	text := strings.TrimSuffix(b.String(), "\n")
	return text[1 : len(text)-1]
}

// ascii returns s with all characters outside ASCII written as \uXXXX.
func ascii(s string) string {
	quoted := strconv.QuoteToASCII(s)
	if len(quoted) == len(s)+2 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			b.WriteString(unicodeEscape(0xd800+r>>10) + unicodeEscape(0xdc00+r&0x3ff))
		default:
			b.WriteString(unicodeEscape(r))
		}
	}
	return b.String()
}

func unicodeEscape(r rune) string {
	digits := strconv.FormatInt(int64(r), 16)
	return `\u` + strings.Repeat("0", 4-len(digits)) + digits
}
