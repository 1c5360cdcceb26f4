package toolcall

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func TestWhatCallsMakeIsRememberedUntilItIsShown(t *testing.T) {
	m := &made{}
	want := func(lead string, want map[string]bool) {
		t.Helper()
		if diff := cmp.Diff(want, m.of(types.UID(lead))); diff != "" {
			t.Errorf("of %s (-want +got):\n%s", lead, diff)
		}
	}
	want("lead", map[string]bool{})
	m.add("lead", "one", "lead-a")
	m.add("lead", "two", "lead-x", "lead-y")
	m.add("other", "one", "other-a")
	want("lead", map[string]bool{"lead-a": true, "lead-x": true, "lead-y": true})
	m.answered("lead", "one")
	m.answered("lead", "unknown")
	want("lead", map[string]bool{"lead-a": false, "lead-x": true, "lead-y": true})
	want("other", map[string]bool{"other-a": true})
	m.drop("lead", "lead-a", "lead-x")
	want("lead", map[string]bool{"lead-y": true})
	m.drop("lead", "lead-y")
	m.gone("other")
	m.gone("other")
	if len(m.by) > 0 {
		t.Errorf("still remembered: %v", m.by)
	}
}
