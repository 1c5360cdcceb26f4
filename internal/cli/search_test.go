package cli

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

func TestSearch(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{"GET search": historyv1.SearchResultList{Items: []historyv1.SearchResult{
		{Task: "fix-login", Position: 12, Time: metav1.NewMicroTime(noon), Role: "assistant", Tool: "Bash", RankMillionths: 60_793,
			Snippet: []historyv1.SnippetPart{{Text: "run the "}, {Text: "tests", Match: true}, {Text: "\nagain"}}},
		{Task: "old", Position: 3, Time: metav1.NewMicroTime(noon), Role: "user", RankMillionths: 1000, Snippet: []historyv1.SnippetPart{{Text: "tests", Match: true}}},
	}}})
	out, errOut := b.must("search", "run", "tests", "--task", "fix-login", "--role", "assistant", "--since", "2h", "--limit", "5")
	want := `RANK    TASK        POSITION   WHO                TIME                  WORDS
0.061   fix-login   12         assistant → Bash   2026-11-21 12:00:00   run the tests again
0.001   old         3          user               2026-11-21 12:00:00   tests
`
	wantText(t, "results", want, out)
	wantText(t, "standard error", "", errOut)
	wantText(t, "query", "limit=5&q=run+tests&role=assistant&since=2026-11-21T10%3A00%3A00Z&task=fix-login", r.query())
	out, _ = b.must("search", "tests", "-o", "json")
	list := decode[historyv1.SearchResultList](t, out)
	wantText(t, "kind of the list", "SearchResultList", list.Kind)
	if len(list.Items) != 2 {
		t.Fatalf("the list has %d results; want 2:\n%s", len(list.Items), out)
	}
	if !list.Items[0].Snippet[1].Match {
		t.Errorf("the second part of the first snippet is no match:\n%s", out)
	}
	r.answers["GET search"] = historyv1.SearchResultList{}
	out, errOut = b.must("search", "--", "-nothing")
	wantText(t, "output of a search without results", "", out)
	wantParts(t, "standard error of a search without results", errOut, "No messages found.")
	_, _, err := b.clew("", "search")
	wantError(t, err, "missing words to search for")
	_, _, err = b.clew("", "search", "x", "--since", "once")
	wantError(t, err, "it must be a duration")
	r.answers["GET search"] = metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "User bob may not list search"}
	_, _, err = b.clew("", "search", "x")
	wantError(t, err, "ask an administrator")
}
