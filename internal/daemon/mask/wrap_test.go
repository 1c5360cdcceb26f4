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

	"github.com/google/go-cmp/cmp"

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

// left returns the length of the longest part of a text that is in another.
func left(text, in string) int {
	longest := 0
	for i := range text {
		for longest < len(text)-i && strings.Contains(in, text[i:i+longest+1]) {
			longest++
		}
	}
	return longest
}

// TestWrappedValues finds a key however it is encoded and wherever it is wrapped.
func TestWrappedValues(t *testing.T) {
	m := masker(longKey)
	for name, text := range encodings() {
		for _, columns := range []int{20, 40, 60, 64, 76, 1000} {
			for _, lineEnd := range []string{"\n", "\r\n", "\n    ", "\n\t", `\n`, `\r\n`, `\\n`, `\n\t`} {
				wrapped := "before: " + wrap(text, columns, lineEnd) + "after"
				got := m.Text(wrapped)
				if !strings.Contains(got, mask.Replacement) {
					t.Fatalf("%s, %d columns, %q: nothing was masked: %q", name, columns, lineEnd, got)
				}
				if !strings.HasPrefix(got, "before: ") || !strings.HasSuffix(got, "after") {
					t.Fatalf("%s, %d columns, %q: the text around the value was changed: %q", name, columns, lineEnd, got)
				}
				bare := strings.NewReplacer(lineEnd, "").Replace(strings.TrimSuffix(strings.TrimPrefix(got, "before: "), "after"))
				if n := left(text, bare); n > 16 { // in an encoded longer text, what surrounds the key stays
					t.Fatalf("%s, %d columns, %q: %d characters are left: %q", name, columns, lineEnd, n, got)
				}
				if !m.Holds([]byte(wrapped)) {
					t.Fatalf("%s, %d columns, %q: Holds does not find it", name, columns, lineEnd)
				}
				if same := m.Same([]byte(wrapped)); len(same) != len(wrapped) || m.Holds(same) {
					t.Fatalf("%s, %d columns, %q: Same made %q of it", name, columns, lineEnd, same)
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

// TestLinesAreNotHeldForLong: FlushLines writes a held line when nothing follows for a while.
func TestLinesAreNotHeldForLong(t *testing.T) {
	m := masker("secret-value-1")
	var b bytes.Buffer
	w := m.Writer(&b)
	type state struct {
		Written        string
		Held, HeldLine bool
	}
	expect := func(when string, want state) {
		t.Helper()
		if diff := cmp.Diff(want, state{b.String(), w.Held(), w.HeldLine()}); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", when, diff)
		}
	}
	_, _ = io.WriteString(w, "this is\nthe sec\n")
	expect("after the beginning of a value", state{Written: "this is\nthe ", Held: true, HeldLine: true})
	_ = w.FlushLines()
	expect("after FlushLines", state{Written: "this is\nthe sec\n"})
	_, _ = io.WriteString(w, "se\ncret-val\nue-1\n")
	_ = w.Flush()
	expect("at the end", state{Written: "this is\nthe sec\n[masked]\n"})
}

// TestOrdinaryTextStays: short values have no variants, and text that only looks like an
// escape is not changed.
func TestOrdinaryTextStays(t *testing.T) {
	m := masker("default", longKey)
	for _, text := range []string{"DEFAULT", "tluafed", `C:\\new\\readme`, "\\", `\`, "a\n\n\nb", strings.Repeat("\n", 1000), fmt.Sprint(longKey[:20], strings.Repeat(" ", 300), "\n", longKey[20:40])} {
		if got := m.Text(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}
