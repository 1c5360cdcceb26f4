package searchtext_test

import (
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/history/searchtext"
)

func TestIndex(t *testing.T) {
	random := make([]byte, 400)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	data := base64.StdEncoding.EncodeToString(random)
	hash := strings.Repeat("0123456789abcdef", 4)
	tests := map[string]struct{ text, want string }{
		"plain":         {"The quick  brown\nfox.", "the quick brown fox"},
		"code":          {`err := os.ReadFile("/etc/clew.d/a_b.yaml")`, "err os readfile etc clew d a b yaml"},
		"version":       {"go1.26.0-rc1", "go1 26 0 rc1"},
		"accents":       {"Über ÇA", "über ça"},
		"han":           {"数据 v2", "数 据 v2"},
		"hash":          {"commit " + hash, "commit " + hash},
		"encoded":       {"image " + data + " end", "image end"},
		"encoded, JSON": {`{"data":"` + data + `","n":1}`, "data n 1"},
		"long word":     {"a " + strings.Repeat("x", 65) + " b", "a b"},
		"long path":     {"/Usr1/" + strings.Repeat("dir/", 40), "usr1" + strings.Repeat(" dir", 40)},
		"not UTF-8":     {"a\xffb\x00c", "a b c"},
		"nothing":       {" \t!?", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, searchtext.Index(tt.text)); d != "" {
				t.Errorf("words (-want +got):\n%s", d)
			}
		})
	}
	if got := searchtext.Index("a b", "", "c"); got != "a b c" {
		t.Errorf("several texts: %q", got)
	}
	if n := len(searchtext.Index(strings.Repeat("word ", 1<<20))); n > searchtext.MaxText {
		t.Errorf("%d bytes of words", n)
	}
}

func TestParse(t *testing.T) {
	tests := map[string]struct {
		text, want string
		terms      []string
	}{
		"words":             {"Fix login", "fix login", []string{"fix", "login"}},
		"path":              {"internal/a.go", `"internal a go"`, []string{"internal", "a", "go"}},
		"phrase":            {`"not found" here`, `" not found " here`, []string{"not", "found", "here"}},
		"or":                {"a or b", "a or b", []string{"a", "b"}},
		"without":           {"a -b", "a -b", []string{"a"}},
		"without path":      {"a -b.go", `a -"b go"`, []string{"a"}},
		"without a phrase":  {`a -"b c" d`, `a -" b c " d`, []string{"a", "d"}},
		"open quote":        {`a "b`, `a " b "`, []string{"a", "b"}},
		"hyphen":            {"well-known", `"well known"`, []string{"well", "known"}},
		"operators":         {"a & b | !c:* <-> (d)", "a b c d", []string{"a", "b", "c", "d"}},
		"nothing":           {`-- "" !`, `" "`, nil},
		"only what is not":  {"-a", "-a", nil},
		"quotes in a quote": {`a'b\c`, `"a b c"`, []string{"a", "b", "c"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := searchtext.Parse(tt.text)
			if d := cmp.Diff(strings.Fields(tt.want), strings.Fields(got.Text)); d != "" {
				t.Errorf("text of the query (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.terms, got.Terms); d != "" {
				t.Errorf("terms (-want +got):\n%s", d)
			}
		})
	}
}

func TestSnippet(t *testing.T) {
	long := strings.Repeat("filler text here. ", 40)
	tests := map[string]struct {
		text  string
		terms []string
		want  string
	}{
		"short":         {"Fix the\n  login page", []string{"login"}, "Fix the [login] page"},
		"case and path": {"see Login.go", []string{"login", "go"}, "see [Login].[go]"},
		"not there":     {"abc def", []string{"x"}, "abc def"},
		"marks":         {"a [b] login", []string{"login"}, "a b [login]"},
		"not UTF-8":     {"a\xff login", []string{"login"}, "a [login]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, searchtext.Snippet(tt.text, tt.terms, 100, "[", "]")); d != "" {
				t.Errorf("snippet (-want +got):\n%s", d)
			}
		})
	}
	got := searchtext.Snippet(long+"login "+long+"the login page is broken "+long, []string{"login", "broken"}, 120, "[", "]")
	if !strings.Contains(got, "the [login] page is [broken]") {
		t.Errorf("the place with most words is not shown: %q", got)
	}
	if !strings.HasPrefix(got, "…") || !strings.HasSuffix(got, "…") {
		t.Errorf("the snippet is not marked as a part of the text: %q", got)
	}
	if len(got) > 140 {
		t.Errorf("the snippet has %d bytes, want at most 140", len(got))
	}
}

func FuzzWords(f *testing.F) {
	f.Add(`a "b -c" or "`)
	f.Add("数据\xff\x00")
	f.Fuzz(func(t *testing.T, text string) {
		q := searchtext.Parse(text)
		if strings.Count(q.Text, `"`)%2 != 0 {
			t.Errorf("quotes do not match: %q", q.Text)
		}
		searchtext.Snippet(text, q.Terms, 50, "[", "]")
		if index := searchtext.Index(text); searchtext.Index(index) != index {
			t.Errorf("words do not find themselves: %q", index)
		}
	})
}
