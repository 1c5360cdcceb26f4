package resources_test

import (
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/resources"
)

func TestPlainTextEscapesControlCharacters(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"two\nlines\tand ü 👩\u200d💻":      "two\nlines\tand ü 👩\u200d💻",
		"\x1b]0;owned\x07\x1b[2J":         `\x1b]0;owned\x07\x1b[2J`,
		"c1 \u009b31m del \x7f":           `c1 \x9b31m del \x7f`,
		"evil\u202egnp.exe \u2066x\u2069": `evil\u202egnp.exe \u2066x\u2069`,
		"broken \xff":                     "broken \uFFFD",
	} {
		if got := resources.PlainText(text, 100); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		strings.Repeat("ü", 10): strings.Repeat("ü", 10),
		strings.Repeat("ü", 11): strings.Repeat("ü", 9) + "…",
		"1234567\x1b":           "1234567…",
		"123456\x1b":            `123456\x1b`,
		"1234567890\u202e":      "123456789…",
	} {
		if got := resources.PlainText(text, 10); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
