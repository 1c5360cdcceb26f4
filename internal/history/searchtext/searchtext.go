// Package searchtext splits texts into the words that full-text search indexes. Queries
// are split the same way, so that any text finds itself: code, paths and versions are
// split into their parts, case is ignored, and what no person searches for, encoded data
// and endless words, is left out. It does no I/O.
package searchtext

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxWord is the longest word that is indexed, in runes; a SHA-256 in hex has that
	// length.
	MaxWord = 64
	// MaxText is the number of bytes of words indexed per message. A tsvector holds 1
	// MiB. A word of n bytes takes n+1 here and at most n+5 there, or 2 if it occurred
	// before, and one-byte words soon repeat: this leaves ample room.
	MaxText = 256 << 10
	// minEncoded is the shortest run of letters, digits, +, / and = that is taken for
	// encoded data.
	minEncoded = 96
)

// Index returns the words of the texts, separated by single spaces.
func Index(texts ...string) string {
	var b strings.Builder
	for _, text := range texts {
		eachWord(text, func(word string, _, _ int) bool {
			if b.Len()+len(word)+1 > MaxText {
				return false
			}
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(word)
			return true
		})
	}
	return b.String()
}

// Query is a parsed search query.
type Query struct {
	// Text is in the syntax of websearch_to_tsquery and contains only words, quotes and
	// minus signs.
	Text string
	// Terms are the words to find, without excluded ones. If empty, there is nothing to
	// search for.
	Terms []string
}

// Parse reads the syntax of web search engines: words, "quoted phrases", or, -without.
// Any text is a query.
func Parse(text string) Query {
	var q Query
	var b strings.Builder
	quoted, without := false, false
	for len(text) > 0 {
		i := strings.IndexByte(text, '"')
		part := text
		if i >= 0 {
			part = text[:i]
		}
		without = q.part(&b, part, quoted, without)
		if i < 0 {
			break
		}
		b.WriteString(`" `)
		if quoted {
			without = false
		}
		quoted = !quoted
		text = text[i+1:]
	}
	if quoted {
		b.WriteByte('"')
	}
	q.Text = strings.TrimSpace(b.String())
	return q
}

// part adds the text between two quotes. without reports that a minus precedes a phrase;
// part returns it for the next phrase.
func (q *Query) part(b *strings.Builder, part string, quoted, without bool) bool {
	if quoted {
		eachWord(part, func(word string, _, _ int) bool {
			b.WriteString(word + " ")
			if !without {
				q.Terms = append(q.Terms, word)
			}
			return true
		})
		return without
	}
	for field := range strings.FieldsSeq(part) {
		body, minus := strings.CutPrefix(field, "-")
		if minus && body == "" {
			continue
		}
		q.field(b, body, minus)
	}
	if strings.HasSuffix(part, "-") && (len(part) == 1 || part[len(part)-2] == ' ') {
		b.WriteByte('-')
		return true
	}
	return false
}

// field adds one field, which may split into several consecutive words.
func (q *Query) field(b *strings.Builder, field string, minus bool) {
	var parts []string
	eachWord(field, func(word string, _, _ int) bool {
		parts = append(parts, word)
		return true
	})
	if len(parts) == 0 {
		return
	}
	text := strings.Join(parts, " ")
	if len(parts) > 1 {
		text = `"` + text + `"`
	}
	if minus {
		text = "-" + text
	} else if len(parts) > 1 || parts[0] != "or" {
		q.Terms = append(q.Terms, parts...)
	}
	b.WriteString(text + " ")
}

// eachWord calls f with each word of a text, in lower case, and its byte offsets, until f
// returns false.
func eachWord(text string, f func(word string, from, to int) bool) {
	skip := 0
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		if !isWord(r) {
			i += size
			continue
		}
		if i >= skip {
			n, data := leadingRun(text[i:])
			if data {
				i += n
				continue
			}
			skip = i + max(n, 1)
		}
		to := i + size
		if !standsAlone(r) {
			to = wordEnd(text, to)
		}
		if utf8.RuneCountInString(text[i:to]) <= MaxWord && !f(strings.ToLower(text[i:to]), i, to) {
			return
		}
		i = to
	}
}

// wordEnd returns the end of the word that continues at i.
func wordEnd(text string, i int) int {
	for i < len(text) {
		r, size := utf8.DecodeRuneInString(text[i:])
		if !isWord(r) || standsAlone(r) {
			break
		}
		i += size
	}
	return i
}

func isWord(r rune) bool {
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.Mn, r))
}

// standsAlone reports whether the rune belongs to a script without spaces between words;
// each such rune counts as a word.
func standsAlone(r rune) bool {
	return r >= 0x0E00 && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai)
}

// leadingRun returns the length of the run of letters, digits, +, / and = at the start of text,
// and whether it is encoded data.
func leadingRun(text string) (n int, data bool) {
	var upper, lower, digits, slashes int
	for ; n < len(text); n++ {
		switch c := text[n]; {
		case c >= 'A' && c <= 'Z':
			upper++
		case c >= 'a' && c <= 'z':
			lower++
		case c >= '0' && c <= '9':
			digits++
		case c == '/':
			slashes++
		case c != '+' && c != '=':
			return n, isData(n, upper, lower, digits, slashes)
		}
	}
	return n, isData(n, upper, lower, digits, slashes)
}

// isData distinguishes encoded data from long paths, which have short parts.
func isData(n, upper, lower, digits, slashes int) bool {
	return n >= minEncoded && upper > 0 && lower > 0 && digits > 0 && slashes*12 <= n
}
