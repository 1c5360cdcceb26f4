package searchtext

import (
	"slices"
	"strings"

	"github.com/clew-dev/clew/internal/clip"
)

// Snippet returns about length bytes of the text around the place with the most distinct
// terms, with the terms between start and stop. Runs of white space become one space, and
// start and stop are removed from the text itself. If no term occurs, it returns the
// beginning of the text.
func Snippet(text string, terms []string, length int, start, stop string) string {
	marks := strings.NewReplacer(start, "", stop, "")
	found := find(text, terms)
	from, to := window(text, found, length)
	var b strings.Builder
	if from > 0 {
		b.WriteString("…")
	}
	at := from
	for _, f := range found {
		if f.from < at || f.to > to {
			continue
		}
		b.WriteString(marks.Replace(text[at:f.from]))
		b.WriteString(start + text[f.from:f.to] + stop)
		at = f.to
	}
	b.WriteString(marks.Replace(text[at:to]))
	if to < len(text) {
		b.WriteString("…")
	}
	return strings.Join(strings.Fields(strings.ToValidUTF8(b.String(), "")), " ")
}

// place is an occurrence of a term in a text.
type place struct {
	from, to int
	term     string
}

// maxPlaces bounds how many occurrences in a repetitive text are considered.
const maxPlaces = 2000

func find(text string, terms []string) []place {
	var found []place
	eachWord(text, func(word string, from, to int) bool {
		if slices.Contains(terms, word) {
			found = append(found, place{from, to, word})
		}
		return len(found) < maxPlaces
	})
	return found
}

// window returns the part of the text to show: it begins shortly before the place that is
// followed by the most distinct terms.
func window(text string, found []place, length int) (from, to int) {
	best, most := 0, 0
	for i, f := range found {
		distinct := map[string]bool{}
		for _, next := range found[i:] {
			if next.to > f.from+length*3/4 {
				break
			}
			distinct[next.term] = true
		}
		if len(distinct) > most {
			best, most = f.from, len(distinct)
		}
	}
	from = wordStart(text, max(best-length/4, 0))
	return from, wordStart(text, min(from+length, len(text)))
}

// wordStart moves back a little to the start of a word, or at least of a rune.
func wordStart(text string, i int) int {
	if i == 0 || i >= len(text) {
		return i
	}
	if space := strings.LastIndexAny(text[max(i-40, 0):i], " \n\t"); space >= 0 {
		return max(i-40, 0) + space + 1
	}
	return len(clip.Bytes(text, i))
}
