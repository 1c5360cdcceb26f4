package gitpath_test

import (
	"testing"

	"github.com/clew-dev/clew/internal/gitpath"
)

func TestPathsAreQuotedAndReadBack(t *testing.T) {
	for path, want := range map[string]string{
		"plain/path":   "plain/path",
		"with space":   "with space",
		"ünïcödé":      "ünïcödé",
		"new\nline":    `"new\nline"`,
		"\xff\xfe":     `"\377\376"`,
		`"quoted"`:     `"\"quoted\""`,
		`back\slash`:   `back\slash`,
		"back\\\x01":   `"back\\\001"`,
		"tab\tand\x7f": `"tab\tand\177"`,
	} {
		if got := gitpath.Quote(path); got != want {
			t.Errorf("gitpath.Quote(%q) is %s, want %s", path, got, want)
		}
		if back, err := gitpath.Unquote(gitpath.Quote(path)); err != nil || back != path {
			t.Errorf("gitpath.Unquote(gitpath.Quote(%q)) is %q, %v, want the path", path, back, err)
		}
	}
	for _, bad := range []string{`"`, `"a`, `"\q"`, `"\9"`, `"\40"`, `"\`} {
		if got, err := gitpath.Unquote(bad); err == nil {
			t.Errorf("gitpath.Unquote(%s) is %q, want an error", bad, got)
		}
	}
}
