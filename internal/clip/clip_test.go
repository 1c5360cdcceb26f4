package clip_test

import (
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/clip"
)

func TestTextsAreTruncatedAtACharacter(t *testing.T) {
	for name, c := range map[string]struct {
		truncate func(string, int) string
		text     string
		n        int
		want     string
	}{
		"short enough":                      {clip.Bytes, "naïve", 6, "naïve"},
		"bytes":                             {clip.Bytes, "naïve", 4, "naï"},
		"bytes, in the middle of one":       {clip.Bytes, "naïve", 3, "na"},
		"bytes, in the middle of the first": {clip.Bytes, "😀", 3, ""},
		"zero bytes":                        {clip.Bytes, "naïve", 0, ""},
		"negative":                          {clip.Bytes, "naïve", -1, ""},
		"invalid UTF-8":                     {clip.Bytes, strings.Repeat("\x80", 10), 5, strings.Repeat("\x80", 5)},
		"marked, short enough":              {clip.Marked, "naïve", 6, "naïve"},
		"marked":                            {clip.Marked, "naïve", 3, "na…"},
		"runes, short enough":               {clip.Runes, "naïve", 5, "naïve"},
		"runes":                             {clip.Runes, "naïvely", 4, "naï…"},
		"a single rune":                     {clip.Runes, "naïve", 1, "…"},
		"runes without limit":               {clip.Runes, "naïve", 0, "naïve"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.truncate(c.text, c.n); got != c.want {
				t.Errorf("%q truncated to %d is %q, want %q", c.text, c.n, got, c.want)
			}
		})
	}
}
