package mask_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/daemon/mask"
)

const key = `sk-ant-"quoted"/key+ü<1>`

func masker(values ...string) *mask.Masker {
	var list [][]byte
	for _, v := range values {
		list = append(list, []byte(v))
	}
	return mask.New(list...)
}

func jsonText(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// TestForms lists the ways in which a value is found.
func TestForms(t *testing.T) {
	plainJSON := func(s string) string {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(s)
		return strings.TrimSpace(b.String())
	}
	pem := "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\nshort\n-----END PRIVATE KEY-----\n"
	for _, tc := range []struct{ name, value, text, want string }{
		{"as it is", key, "the key is " + key + ".", "the key is [masked]."},
		{"in JSON", key, `{"a":` + plainJSON(key) + `}`, `{"a":"[masked]"}`},
		{"in JSON for HTML", key, jsonText(key), `"[masked]"`},
		{"in JSON in JSON", key, jsonText(jsonText(key)), `"\"[masked]\""`},
		{"in JSON of ASCII alone", key, `sk-ant-\"quoted\"/key+\u00fc<1>`, "[masked]"},
		{"in JSON with escaped slashes", key, `sk-ant-\"quoted\"\/key+ü<1>`, "[masked]"},
		{"beyond the basic plane", "key 😀 end", `key \ud83d\ude00 end`, "[masked]"},
		{"ending in a quote", `abcdef"`, jsonText(`abcdef"`), `"[masked]"`},
		{"in a URL", key, "?k=" + url.QueryEscape(key) + "&x", "?k=[masked]&x"},
		{"in base64", key, base64.StdEncoding.EncodeToString([]byte(key)), "[masked]"},
		{"in base64 of URLs", key, base64.RawURLEncoding.EncodeToString([]byte(key)), "[masked]"},
		{"a line feed at the end is not part of it", "secret-1\n", "secret-1, secret-1x", "[masked], [masked]x"},
		{"several lines", pem, "x" + pem + "y", "x[masked]\ny"},
		{"a line of several", pem, "> AQEFAASCBKcwggSjAgEAAoIB", "> [masked]"},
		{"short lines and frames of several", pem, "short -----BEGIN PRIVATE KEY-----", "short -----BEGIN PRIVATE KEY-----"},
		{"too short", "abcde", "abcde", "abcde"},
		{"digits", "123456", `{"n":123456}`, `{"n":999999}`},
		{"not there", key, "sk-ant-", "sk-ant-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := masker(tc.value)
			got := m.Text(tc.text)
			got = strings.TrimSuffix(got, "=")
			if got = strings.TrimSuffix(got, "="); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestBasicAuthorization finds a value inside a longer base64 text, wherever it
// begins there.
func TestBasicAuthorization(t *testing.T) {
	m := masker("token-of-the-agent")
	for _, user := range []string{"u", "us", "use", "user"} {
		text := base64.StdEncoding.EncodeToString([]byte(user + ":token-of-the-agent" + user))
		masked := m.Text(text)
		if !strings.Contains(masked, mask.Replacement) {
			t.Errorf("%s is not masked", text)
		}
		left, _ := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.ReplaceAll(masked, mask.Replacement, ""), "="))
		if strings.Contains(string(left), "of-the") {
			t.Errorf("%q is left of the value", left)
		}
	}
}

// TestValues lists what happens where values meet.
func TestValues(t *testing.T) {
	for _, tc := range []struct {
		name, text, want, same string
		values                 []string
	}{
		{"overlapping", "<abcdef123xyz>", "<[masked]>", "<************>", []string{"abcdef123", "def123xyz"}},
		{"one inside another", "<abcdefghij>", "<[masked]>", "<**********>", []string{"cdefgh", "abcdefghij"}},
		{"one the beginning of another", "<abcdefg> <abcdefghij>", "<[masked]g> <[masked]>", "<******g> <**********>", []string{"abcdef", "abcdefghij"}},
		{"side by side", "<abcdefuvwxyz>", "<[masked][masked]>", "<************>", []string{"abcdef", "uvwxyz"}},
		{"overlapping itself", "<aaaaaaaa>", "<[masked]>", "<********>", []string{"aaaaaa"}},
		{"none", "text", "text", "text", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := masker(tc.values...)
			if got := m.Text(tc.text); got != tc.want {
				t.Errorf("Text: %q, want %q", got, tc.want)
			}
			if got := string(m.Same([]byte(tc.text))); got != tc.same {
				t.Errorf("Same: %q, want %q", got, tc.same)
			}
		})
	}
}

// TestStreams splits a text at every place, and at many places: the output is the same as
// that of one piece.
func TestStreams(t *testing.T) {
	m := masker("abcdef123", "def123xyz", "multi\nline-value-0123456", "aaaaaa", "12345678")
	text := "abcdef12 abcdef123xyz def123xy multi\nline-value-012345 multi\nline-value-0123456aaaaaaaaabcdef123abcdef123 12345678"
	want := m.Text(text)
	same := string(m.Same([]byte(text)))
	if len(same) != len(text) {
		t.Fatalf("%d bytes became %d", len(text), len(same))
	}
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s:\n%q, want\n%q", what, got, want)
		}
	}
	for i := range text {
		var b bytes.Buffer
		w := m.Writer(&b)
		_, _ = io.WriteString(w, text[:i])
		if w.Held() && b.String() == text[:i] {
			t.Errorf("the writer says that it holds back text at %d, and has written all", i)
		}
		_, _ = io.WriteString(w, text[i:])
		_ = w.Flush()
		check(fmt.Sprint("cut at ", i), b.String(), want)
	}
	for _, read := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader} {
		var b bytes.Buffer
		n, found, err := m.CopySame(&b, read(strings.NewReader(text)))
		if err != nil {
			t.Error(err)
		}
		if n != int64(len(text)) {
			t.Errorf("%d bytes were copied, want %d", n, len(text))
		}
		if !found {
			t.Error("no value was found")
		}
		check("the same length", b.String(), same)
	}
}

// TestNothingGetsThrough writes random texts of a small alphabet, full of
// values and parts of them, in random pieces.
func TestNothingGetsThrough(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "ab-"[random.IntN(3)]
		}
		return string(b)
	}
	for range 300 {
		var values []string
		for range 1 + random.IntN(4) {
			values = append(values, "x"+word(5+random.IntN(8))+"x")
		}
		m := masker(values...)
		var text strings.Builder
		for range 20 {
			v := values[random.IntN(len(values))]
			text.WriteString(word(random.IntN(4)) + v[:random.IntN(len(v)+1)] + v)
		}
		whole := text.String()
		var b, stars bytes.Buffer
		w := m.Writer(&b)
		for rest := whole; rest != ""; {
			n := min(len(rest), 1+random.IntN(12))
			_, _ = io.WriteString(w, rest[:n])
			rest = rest[n:]
		}
		_ = w.Flush()
		_, _, _ = m.CopySame(&stars, iotest.OneByteReader(strings.NewReader(whole)))
		where := fmt.Sprintf("values %q, text %q", values, whole)
		if want := m.Text(whole); b.String() != want {
			t.Fatalf("%s: in pieces it became %q, want %q", where, b.String(), want)
		}
		for _, masked := range [][]byte{b.Bytes(), stars.Bytes()} {
			if m.Holds(masked) {
				t.Fatalf("%s: a value is left in %q", where, masked)
			}
		}
		if stars.Len() != len(whole) {
			t.Fatalf("%s: CopySame wrote %d bytes, want %d: %q", where, stars.Len(), len(whole), stars.String())
		}
	}
}

// TestFromEnvironment reads variables and Secret volumes.
func TestFromEnvironment(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("keys/..2026/token", "token-in-a-volume\n")
	write("keys/sub/other", "other-in-a-volume")
	if err := os.Symlink("..2026/token", filepath.Join(dir, "keys/token")); err != nil {
		t.Fatal(err)
	}
	environ := []string{"HOME=/home/agent", "CLEW_MASK_0=value-of-a-key", "CLEW_MASK_1_NAME=a=b=c=d", "CLEW_MASK_2=", "PATH=/bin"}
	m, err := mask.FromEnvironment(environ, dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Text("value-of-a-key a=b=c=d token-in-a-volume other-in-a-volume /home/agent"); got != "[masked] [masked] [masked] [masked] /home/agent" {
		t.Errorf("the masked text is %q", got)
	}
	if diff := cmp.Diff([]string{"HOME=/home/agent", "PATH=/bin"}, mask.Strip(environ)); diff != "" {
		t.Errorf("environment without the values (-want +got):\n%s", diff)
	}
	fewer, err := mask.FromEnvironment(environ[:1], dir)
	if err != nil {
		t.Fatal(err)
	}
	if fewer.Fingerprint() == 0 || fewer.Fingerprint() == m.Fingerprint() {
		t.Errorf("two sets of values have the fingerprints %d and %d, want two other than 0", fewer.Fingerprint(), m.Fingerprint())
	}
	if err := os.Symlink("nowhere/loop", filepath.Join(dir, "keys/gone")); err != nil {
		t.Fatal(err)
	}
	if _, err := mask.FromEnvironment(nil, dir); err != nil {
		t.Errorf("a link to a key that was removed is an error: %v", err)
	}
}

// TestWithoutValues: a Masker without values is nil, and changes nothing.
func TestWithoutValues(t *testing.T) {
	none, err := mask.FromEnvironment([]string{"HOME=/home/agent"}, filepath.Join(t.TempDir(), "absent"))
	if err != nil {
		t.Fatal(err)
	}
	if none != nil {
		t.Fatalf("the masker is %v, want nil", none)
	}
	if got := none.Fingerprint(); got != 0 {
		t.Errorf("the fingerprint is %d, want 0", got)
	}
	if none.Holds([]byte("x")) {
		t.Error("it found a value")
	}
	var b bytes.Buffer
	w := none.Writer(&b)
	_, _ = w.Write([]byte("x"))
	if err := w.Flush(); err != nil {
		t.Error(err)
	}
	for what, got := range map[string]string{"Text": none.Text("x"), "Same": string(none.Same([]byte("x"))), "Writer": b.String()} {
		if got != "x" {
			t.Errorf("%s made %q of x", what, got)
		}
	}
}
func BenchmarkHolds(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, 1<<20)
	for i := range text {
		text[i] = byte(' ' + random.IntN(90))
	}
	for _, n := range []int{1, 10, 50} {
		var values []string
		for i := range n {
			values = append(values, fmt.Sprintf("sk-%d-%016x%016x", i, random.Uint64(), random.Uint64()))
		}
		m := masker(values...)
		b.Run(fmt.Sprintf("values=%d", n), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if m.Holds(text) {
					b.Fatal("found")
				}
			}
		})
	}
}
