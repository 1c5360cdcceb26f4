package history_test

import (
	"errors"
	"testing"

	"github.com/clew-dev/clew/internal/history"
)

// TestEventIDsStayAsTheyAre pins ids that are stored in databases: they must never
// change.
func TestEventIDsStayAsTheyAre(t *testing.T) {
	const uid = "7e0d0a52-6f4e-4b0e-9d83-1f0c5f3f2a10"
	tests := map[string]struct{ got, want string }{
		"transition": {history.EventID(uid, 7), "e9910215-a2d1-511a-94bd-aeea681e30fa"},
		"record":     {history.RecordEventID(uid, 7), "2ef9679e-d0b8-5805-a9a6-b9875ad3d88b"},
		"operation":  {history.OperationEventID(uid, "7"), "01d22d93-532c-5e11-a8de-587c18f13d58"},
	}
	seen := map[string]string{}
	for name, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", name, tt.got, tt.want)
		}
		if other, ok := seen[tt.got]; ok {
			t.Errorf("%s and %s have the same id", name, other)
		}
		seen[tt.got] = name
	}
	if history.EventID(uid, 7) == history.EventID(uid, 8) || history.EventID("a", 7) == history.EventID("b", 7) {
		t.Error("two events have the same id")
	}
}

func TestGapErrorSaysWhatIsMissing(t *testing.T) {
	err := error(&history.GapError{Last: 3, First: 6})
	if !errors.Is(err, history.ErrGap) {
		t.Error("GapError does not match ErrGap")
	}
	const want = "records 4 to 5 are missing: the last stored one is 3 and the first given is 6; send them from 4 on"
	if err.Error() != want {
		t.Errorf("message is %q, want %q", err, want)
	}
}
