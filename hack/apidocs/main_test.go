package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/reason"
)

// root is the top of the repository.
const root = "../.."

func TestThePagesAreUpToDate(t *testing.T) {
	for plural, name := range kinds() {
		want, err := renderKind(root, plural, name)
		if err != nil {
			t.Fatal(err)
		}
		is, err := os.ReadFile(filepath.Join(root, "api", "docs", name+".md"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(is)); diff != "" {
			t.Errorf("api/docs/%s.md is out of date: run make manifests (-want +got):\n%s", name, diff)
		}
	}
}

// TestEveryReasonIsOnAPage checks that every kind in the table of reasons has a page, and
// every condition has reasons. A page shows the conditions of its kind and all other places
// of the table.
func TestEveryReasonIsOnAPage(t *testing.T) {
	conditions, err := conditionsOf(filepath.Join(root, "api", "v1alpha1", "reasons.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reason.All() {
		for _, place := range r.On {
			if conditions[place.Kind] == nil {
				t.Errorf("%s occurs in %s, which has no page", r.Name, place.Kind)
			}
		}
	}
	for kind, all := range conditions {
		for _, c := range all {
			if len(reason.At(kind, c.Type)) == 0 {
				t.Errorf("the condition %s of %s has no reasons", c.Type, kind)
			}
		}
	}
}
