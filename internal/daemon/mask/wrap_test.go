package mask_test

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/mask"
)

// longKey is as long as the keys of model APIs are.
var longKey = "sk-ant-api03-" + strings.Repeat("Ab9/x_Q-z7Kd+", 8)

// wrap breaks a text into lines.
func wrap(text string, columns int, lineEnd string) string {
	var b strings.Builder
	for i := 0; i < len(text); i += columns {
		b.WriteString(text[i:min(i+columns, len(text))] + lineEnd)
	}
	return b.String()
}

// reverse is a text as the program rev prints it.
func reverse(text string) string {
	out := []byte(text)
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return string(out)
}

// encodings are ways to print a key, within other text.
func encodings() map[string]string {
	within := "user:" + longKey + ":end"
	return map[string]string{
		"as it is":                longKey,
		"base64":                  base64.StdEncoding.EncodeToString([]byte(longKey)),
		"base64 of URLs":          base64.URLEncoding.EncodeToString([]byte(longKey)),
		"base64 of more":          base64.StdEncoding.EncodeToString([]byte(within)),
		"base64 of a line":        base64.StdEncoding.EncodeToString([]byte(longKey + "\n")),
		"base32":                  base32.StdEncoding.EncodeToString([]byte(longKey)),
		"base32 of more":          base32.StdEncoding.EncodeToString([]byte(within)),
		"hex":                     hex.EncodeToString([]byte(longKey)),
		"hex in upper case":       strings.ToUpper(hex.EncodeToString([]byte(within))),
		"reversed":                reverse(longKey),
		"upper case":              strings.ToUpper(longKey),
		"lower case":              strings.ToLower(longKey),
		"characters of base64url": strings.NewReplacer("/", "_", "+", "-").Replace(longKey),
	}
}

// left is the longest part of a text that is in another.
func left(text, in string) int {
	longest := 0
	for i := range text {
		for longest < len(text)-i && strings.Contains(in, text[i:i+longest+1]) {
			longest++
		}
	}
	return longest
}

// TestWrappedValues finds a key however it is encoded and wherever the lines of
// it are broken, in a stream that is cut anywhere.
func TestWrappedValues(t *testing.T) {
	m := masker(longKey)
	for name, text := range encodings() {
		for _, columns := range []int{20, 40, 60, 64, 76, 1000} {
			for _, lineEnd := range []string{"\n", "\r\n", "\n    ", "\n\t", `\n`, `\r\n`, `\\n`, `\n\t`} {
				wrapped := "before: " + wrap(text, columns, lineEnd) + "after"
				got := m.Text(wrapped)
				if !strings.Contains(got, mask.Replacement) || !strings.HasPrefix(got, "before: ") || !strings.HasSuffix(got, "after") {
					t.Fatalf("%s, %d columns, %q: %q", name, columns, lineEnd, got)
				}
				bare := strings.NewReplacer(lineEnd, "").Replace(strings.TrimSuffix(strings.TrimPrefix(got, "before: "), "after"))
				if n := left(text, bare); n > 16 { // of base64 of more, what frames the key stays
					t.Fatalf("%s, %d columns, %q: %d characters are left: %q", name, columns, lineEnd, n, got)
				}
				if !m.Holds([]byte(wrapped)) {
					t.Fatalf("%s: not held", name)
				}
				if same := m.Same([]byte(wrapped)); len(same) != len(wrapped) || m.Holds(same) {
					t.Fatalf("%s: %q", name, same)
				}
			}
		}
	}
}

// TestWrappedStreams writes wrapped values in two pieces, cut at every place.
func TestWrappedStreams(t *testing.T) {
	m := masker(longKey)
	for name, text := range encodings() {
		for _, lineEnd := range []string{"\n", "\r\n  ", `\r\n\t`} {
			wrapped := "a line\n" + wrap(text, 31, lineEnd) + "and another\n"
			want := m.Text(wrapped)
			for i := range wrapped {
				var b bytes.Buffer
				w := m.Writer(&b)
				_, _ = io.WriteString(w, wrapped[:i])
				_, _ = io.WriteString(w, wrapped[i:])
				_ = w.Flush()
				if b.String() != want {
					t.Fatalf("%s, cut at %d:\n%q, want\n%q", name, i, b.String(), want)
				}
			}
		}
	}
}

// TestLinesAreNotHeldForLong passes lines on when nothing follows for a while.
func TestLinesAreNotHeldForLong(t *testing.T) {
	m := masker("secret-value-1")
	var b bytes.Buffer
	w := m.Writer(&b)
	_, _ = io.WriteString(w, "this is\nthe sec\n")
	if b.String() != "this is\nthe " || !w.HeldLine() {
		t.Fatalf("%q", b.String())
	}
	_ = w.FlushLines()
	if b.String() != "this is\nthe sec\n" || w.HeldLine() || w.Held() {
		t.Fatalf("%q", b.String())
	}
	_, _ = io.WriteString(w, "se\ncret-val\nue-1\n")
	_ = w.Flush()
	if b.String() != "this is\nthe sec\n[masked]\n" {
		t.Fatalf("%q", b.String())
	}
}

// TestOrdinaryTextStays: short values have no variants, and what only looks like
// an escape changes nothing.
func TestOrdinaryTextStays(t *testing.T) {
	m := masker("default", longKey)
	for _, text := range []string{"DEFAULT", "tluafed", `C:\\new\\readme`, "\\", `\`, "a\n\n\nb", strings.Repeat("\n", 1000), fmt.Sprint(longKey[:20], strings.Repeat(" ", 300), "\n", longKey[20:40])} {
		if got := m.Text(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}
