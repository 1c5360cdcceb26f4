package plan

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func (s *scene) wantState(reason string) {
	s.Helper()
	if c := s.wantCondition(v1alpha1.TaskSucceeded); c.Reason != reason {
		s.Errorf("the task is %s (%s), want %s", c.Reason, c.Message, reason)
	}
}

func (s *scene) wantCondition(kind string) metav1.Condition {
	s.Helper()
	c := meta.FindStatusCondition(s.status().Conditions, kind)
	if c == nil {
		s.Fatalf("there is no condition %s", kind)
	}
	return *c
}

func (s *scene) wantOutcomes(outcomes ...v1alpha1.AttemptOutcome) {
	s.Helper()
	var got []v1alpha1.AttemptOutcome
	for _, a := range s.status().Attempts {
		got = append(got, a.Outcome)
	}
	if !slices.Equal(got, outcomes) {
		s.Errorf("the attempts ended %q, want %q", got, outcomes)
	}
}

func (s *scene) wantEntries(reasons ...string) {
	s.Helper()
	var got []string
	for i, e := range s.status().History {
		got = append(got, e.Reason)
		if i > 0 && e.Sequence != s.status().History[i-1].Sequence+1 {
			s.Errorf("the entries have a gap before %d", e.Sequence)
		}
	}
	if !slices.Equal(got, reasons) {
		s.Errorf("history is\n  %q, want\n  %q", got, reasons)
	}
}
