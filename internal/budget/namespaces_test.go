package budget

import (
	"strings"
	"testing"
)

func TestANamespaceHasItsOwnBudgetOrThatOfAll(t *testing.T) {
	var b ByNamespace
	if b.String() != "{}" || b.Of("team") != (Amounts{}) {
		t.Errorf("by default, there are budgets: %s", b.String())
	}
	const text = `{"perNamespace":{"costMicroUSD":500},"namespaces":{"free":{},"team":{"inputTokens":7}}}`
	if err := b.Set(text); err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]Amounts{"any": {CostMicroUSD: 500}, "team": {InputTokens: 7}, "free": {}} {
		if got := b.Of(namespace); got != want {
			t.Errorf("the budget of %s is %+v, want %+v", namespace, got, want)
		}
	}
	if b.String() != text {
		t.Errorf("it is written as %s", b.String())
	}
}

func TestBudgetsOfNamespacesThatMakeNoSenseAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"5":                                 "no JSON such as",
		`{"perNamespace":{"dollars":5}}`:    "unknown field",
		`{"perNamespace":{"toolCalls":-5}}`: "perNamespace has the limit -5",
		`{"namespaces":{"a":{"checkpoints":-1}}}`: "namespaces.a has the limit -1",
	} {
		b := ByNamespace{}
		if err := b.Set(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q", text, err, want)
		}
	}
}
