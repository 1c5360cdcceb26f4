package plan_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

func TestWhatAForkAsksForInWords(t *testing.T) {
	source := v1alpha1.NameReference{Name: "fix"}
	for want, spec := range map[string]v1alpha1.ForkSpec{
		"task fix at its latest checkpoint":               {SourceRef: source},
		"task fix with UID u at Checkpoint good":          {SourceRef: source, TaskUID: "u", CheckpointRef: &v1alpha1.NameReference{Name: "good"}},
		"task fix at checkpoint 3":                        {SourceRef: source, At: &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](3)}},
		"task fix at message 7, without its conversation": {SourceRef: source, At: &v1alpha1.StartPoint{Message: ptr.To[int64](7)}, Conversation: v1alpha1.ConversationExclude},
		"task fix at 2026-01-02T03:04:05Z":                {SourceRef: source, At: &v1alpha1.StartPoint{Time: &metav1.Time{Time: time.Date(2026, 1, 2, 5, 4, 5, 0, time.FixedZone("", 7200))}}},
	} {
		if got := plan.ForkFrom(&spec); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWhetherATaskIsOfTheSameFork(t *testing.T) {
	for _, test := range []struct {
		name, from string
		former     history.Start
		want       bool
	}{
		{"try", "task fix", history.Start{Fork: "try", From: "task fix"}, true},
		{"try", "task fix", history.Start{Fork: "try", From: "task other"}, false},
		{"try", "task fix", history.Start{Fork: "other", From: "task fix"}, false},
		{"try", "task fix", history.Start{}, false},
		{"try", "task fix", history.Start{Fork: "try"}, true}, // made by an older manager
		{"try", "", history.Start{Fork: "try", From: "task fix"}, true},
	} {
		if got := plan.SameFork(test.name, test.from, test.former); got != test.want {
			t.Errorf("%+v: got %v", test, got)
		}
	}
}
