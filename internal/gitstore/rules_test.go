package gitstore

import (
	"bufio"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

func TestCheckCommands(t *testing.T) {
	const zero = "0000000000000000000000000000000000000000"
	one, two := strings.Repeat("1", 40), strings.Repeat("2", 40)
	task := Task{Namespace: "team", Name: "fix", UID: "uid-1", Attempt: 1}
	for _, test := range []struct {
		old, new, ref string
		want          gitstoreapi.Reason
	}{
		{zero, one, "refs/clew/uid-1/code/1", ""},
		{zero, one, "refs/clew/uid-1/state/2147483647", ""},
		{one, one, "refs/clew/uid-1/code/1", ""},
		{zero, one, "refs/heads/clew/fix/b", ""},
		{one, two, "refs/heads/clew/fix/deep/er/b", ""},
		{zero, one, "refs/heads/clew/fix/vermächtnis", ""},
		{one, two, "refs/clew/uid-1/code/1", gitstoreapi.RefImmutable},
		{one, zero, "refs/clew/uid-1/code/1", gitstoreapi.DeleteNotAllowed},
		{one, zero, "refs/heads/main", gitstoreapi.DeleteNotAllowed},
		{zero, zero, "refs/clew/uid-1/code/1", gitstoreapi.DeleteNotAllowed},
		{zero, one, "refs/clew/uid-1/code/0", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1/code/-1", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1/code/2147483648", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1/code/9999999999", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1/code/10000000000", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1/code/١", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1/code/1x", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1/code", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-12/code/1", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1x/code/1", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/other/code/1", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1/head/" + one, ""},
		{one, one, "refs/clew/uid-1/head/" + one, ""},
		{zero, one, "refs/clew/uid-1/head/" + two, gitstoreapi.RefNotAllowed},
		{one, two, "refs/clew/uid-1/head/" + one, gitstoreapi.RefNotAllowed},
		{one, zero, "refs/clew/uid-1/head/" + one, gitstoreapi.DeleteNotAllowed},
		{zero, one, "refs/clew/uid-1/head/1", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1/head/" + one[:39], gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-2/head/" + one, gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1/live", ""},
		{one, two, "refs/clew/uid-1/live", ""},
		{one, zero, "refs/clew/uid-1/live", gitstoreapi.DeleteNotAllowed},
		{zero, one, "refs/clew/uid-2/live", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1/live/1", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1/../other/code/1", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/clew/uid-1//code/1", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/heads/clew/fix", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/heads/clew/fix/", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/heads/clew/fix-2/b", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/heads/clew/other/b", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/heads/main", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/tags/v1", gitstoreapi.RefNotAllowed},
		{zero, one, "refs/replace/" + two, gitstoreapi.RefNotAllowed},
		{zero, one, "HEAD", gitstoreapi.RefNotAllowed},
		{zero, one, "", gitstoreapi.RefNotAllowed},
	} {
		got := gitstoreapi.Reason("")
		// An allowed update before it makes no difference.
		if refused := checkCommands(task, []Command{{zero, one, "refs/heads/clew/fix/good"}, {test.old, test.new, test.ref}}); refused != nil {
			got = refused.Reason
		}
		if got != test.want {
			t.Errorf("%s: refused with %q, want %q", test.ref, got, test.want)
		}
	}
}

func TestRefNameProblem(t *testing.T) {
	for name, valid := range map[string]bool{
		"refs/heads/clew/fix/b":              true,
		"refs/heads/clew/fix/b.1_x+y=z,#%&'": true,
		"refs/heads/clew/fix/käse-奶酪":        true,
		"refs/heads/clew/fix/a.b/c@d":        true,
		"a/" + strings.Repeat("b", 200):      true,
		"a/" + strings.Repeat("b", 201):      false,
		strings.Repeat("a/", 16) + "b":       false,
		strings.Repeat("a", 2000):            false,
		"":                                   false, "/": false, "a//b": false, "/a": false, "a/": false,
		"a/-b": false, "-a": false, ".a": false, "a/.b": false, "a.": false, "a./b": false,
		"a.lock": false, "a.lock/b": false, "a.LOCK": false,
		"a..b": false, "a@{b": false, "@": false, "a/@/b": false,
		"a b": false, "a\tb": false, "a\nb": false, "a\x00b": false, "a\x7fb": false, "a\x1b[31mb": false,
		"a~b": false, "a^b": false, "a:b": false, "a?b": false, "a*b": false, "a[b": false, `a\b`: false,
		"a\u0085b": false, "a\u2028b": false, "a\u202eb": false, "a\u2066b": false, "a\xffb": false,
	} {
		if problem := refNameProblem(name); (problem == "") != valid {
			t.Errorf("refNameProblem(%q) returned %q, want valid %t", name, problem, valid)
		}
	}
}

func TestRepositoryAndNamespaceNames(t *testing.T) {
	for path, valid := range map[string]bool{
		"/team/r-0123456789abcdef0123.git/info/refs":            true,
		"/team-1/r-empty-0123.git/git-upload-pack":              true,
		"/team/r-x.git/git-receive-pack":                        true,
		"/team/r-x/info/refs":                                   false,
		"/team/x.git/info/refs":                                 false,
		"/team/r-.git/info/refs":                                false,
		"/team/r--.git/info/refs":                               false,
		"/team/r-x-.git/info/refs":                              false,
		"/team/r-x.y.git/info/refs":                             false,
		"/-team/r-x.git/info/refs":                              false,
		"/TEAM/r-x.git/info/refs":                               false,
		"/team/../r-x.git/info/refs":                            false,
		"/" + strings.Repeat("a", 64) + "/r-x.git/info/refs":    false,
		"/team/r-x.git/info/refs\n":                             false,
		"/team/r-x.git/objects/info/alternates":                 false,
		"/team/r-" + strings.Repeat("a", 63) + ".git/info/refs": false,
	} {
		if _, _, _, ok := parsePath(path); ok != valid {
			t.Errorf("parsePath(%q) returned %t, want %t", path, ok, valid)
		}
	}
}

// Only the report of a push and what follows it are held back.
func TestCopyUntilReport(t *testing.T) {
	line := func(band byte, text string) string { return string(packet(append([]byte{band}, text...))) }
	progress, life := line(2, "Resolving deltas"), "0005\x01"
	report := line(1, "000eunpack ok\n0019ok refs/clew/u/code/1\n0000") + "0000"
	for name, test := range map[string]struct {
		answer     string
		sideBand   bool
		sent, held string
	}{
		"side-band":      {progress + life + progress + report, true, progress + life + progress, report},
		"late progress":  {progress + report + progress + "0000", true, progress, report + progress + "0000"},
		"report alone":   {report, true, "", report},
		"plain":          {"000eunpack ok\n0000", false, "", "000eunpack ok\n0000"},
		"nothing":        {"", false, "", ""},
		"empty, in band": {"0000", true, "", "0000"},
	} {
		recorder := httptest.NewRecorder()
		held, err := copyUntilReport(recorder, bufio.NewReader(strings.NewReader(test.answer)), test.sideBand, func() bool { return false })
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff([]string{test.sent, test.held}, []string{recorder.Body.String(), string(held)}); diff != "" {
			t.Errorf("%s: what was sent and what was held back (-want +got):\n%s", name, diff)
		}
	}
	if _, err := copyUntilReport(httptest.NewRecorder(), bufio.NewReader(strings.NewReader(progress+"00")), true, func() bool { return false }); err == nil {
		t.Error("truncated output was accepted")
	}
}

func TestStored(t *testing.T) {
	for report, want := range map[string]bool{
		"000eunpack ok\n0019ok refs/clew/u/code/1\n0000":                   true,
		"000eunpack ok\n0028ng refs/clew/u/code/1 hook declined\n0000":     false,
		"001eunpack index-pack abnormal\n0019ng refs/clew/u/code/1 x\n000": false,
		"": false,
	} {
		if stored([]byte(report)) != want {
			t.Errorf("stored(%q) returned %t, want %t", report, !want, want)
		}
	}
}

func TestPreReceiveNeedsItsEnvironment(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"nothing":      {},
		"no attempt":   {hookTaskName: "fix", hookTaskUID: "u", hookFences: "/x"},
		"no UID":       {hookTaskName: "fix", hookAttempt: "1", hookFences: "/x"},
		"bad attempt":  {hookTaskName: "fix", hookTaskUID: "u", hookAttempt: "one", hookFences: "/x"},
		"no fences":    {hookTaskName: "fix", hookTaskUID: "u", hookAttempt: "1"},
		"no task name": {hookTaskUID: "u", hookAttempt: "1", hookFences: "/x"},
	} {
		err := PreReceive(strings.NewReader(""), &strings.Builder{}, func(key string) string { return env[key] })
		if err == nil || !strings.Contains(err.Error(), "was not run by the gitstore") {
			t.Errorf("%s: PreReceive returned %v, want a refusal of the environment", name, err)
		}
	}
	whole := map[string]string{hookTaskName: "fix", hookTaskUID: "u", hookAttempt: "1", hookFences: "/x"}
	zero, one := strings.Repeat("0", 40), strings.Repeat("1", 40)
	for stdin, want := range map[string]string{
		zero + " " + one + " refs/heads/main\n":    "clew: RefNotAllowed: ",
		one + " " + zero + " refs/clew/u/code/1\n": "clew: DeleteNotAllowed: ",
		"nonsense\n": "clew: BadRequest: ",
	} {
		err := PreReceive(strings.NewReader(stdin), &strings.Builder{}, func(key string) string { return whole[key] })
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("PreReceive(%q) returned %v, want %q", stdin, err, want)
		}
	}
}
