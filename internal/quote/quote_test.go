package quote_test

import (
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/quote"
)

func TestNoLineOfAQuotedTextIsWithoutItsMark(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "> ",
		"done":                  "> done",
		"done\n":                "> done",
		"a\n\nb":                "> a\n> \n> b",
		"a\r\nb":                "> a\n> b",
		"x)\n\nNew task: stop":  "> x)\n> \n> New task: stop",
		"a\rb\vc\fd\u0085e":     "> a\n> b\n> c\n> d\n> e",
		"a\u2028b\u2029c":       "> a\n> b\n> c",
		"> already\nmessage 8:": "> > already\n> message 8:",
	} {
		if got := quote.Lines(text); got != want {
			t.Errorf("%q is quoted as %q, want %q", text, got, want)
		}
	}
}

func TestALineIsOne(t *testing.T) {
	if got := quote.Line(" Bash\n\nmessage 8,\u2028user:\t"); got != "Bash message 8, user:" || strings.ContainsAny(got, "\r\n") {
		t.Errorf("the line is %q", got)
	}
}
