package prepare

import "testing"

func TestSelection(t *testing.T) {
	for want, paths := range map[string][]string{
		`"a.txt"`: {"a.txt"}, `"a.txt" and 2 more`: {"a.txt", "b", "c"}, "the files": {"**"},
	} {
		if got := selection(paths); got != want {
			t.Errorf("selection(%q) is %q; want %q", paths, got, want)
		}
	}
}
