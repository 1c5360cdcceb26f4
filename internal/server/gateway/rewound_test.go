package gateway

import (
	"slices"
	"strings"
	"testing"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

func TestWhatARewindSaysItHasDoneIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		rewound *daemonv1.Rewound
		fault   string
	}{
		"a long scope":   {&daemonv1.Rewound{Scope: strings.Repeat("x", 5000)}, "has a scope of more than"},
		"too many paths": {&daemonv1.Rewound{Paths: slices.Repeat([]string{"a"}, 101)}, "names 101 paths; at most 100"},
		"a long path":    {&daemonv1.Rewound{Paths: []string{strings.Repeat("x", 1025)}}, "names a path of 1025 bytes; at most 1024"},
		"what is usual":  {&daemonv1.Rewound{Scope: "Code", Paths: []string{"src"}, FromCheckpoint: 2}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := recordsOf([]*daemonv1.Record{{Sequence: 1, Body: &daemonv1.Record_Move{Move: &daemonv1.Move{OperationId: "Rewind/r/done", Rewound: c.rewound}}}})
			if got := err == nil; got != (c.fault == "") {
				t.Fatalf("the error is %v, want %q", err, c.fault)
			}
			if err != nil && !strings.Contains(err.Error(), c.fault) {
				t.Errorf("the error is %v, want %q", err, c.fault)
			}
		})
	}
}
