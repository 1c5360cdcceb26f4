package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// startAt makes the task start from a moment of the task "source".
func startAt(at v1alpha1.StartPoint) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		builders.StartFrom("source", "")(t)
		t.Spec.StartFrom.At = &at
	}
}

// threeRecorded is checkpoint 3 of a source, at message 8, as the history store has it.
func threeRecorded() *history.Checkpoint {
	return &history.Checkpoint{Number: 3, Commit: "c3", Durable: true, Position: history.Position{Position: 8}}
}

func TestMomentsThatOnlyTheHistoryKnows(t *testing.T) {
	source := builders.Task("source", builders.WithUID("u"))
	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	number, message, moment := v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](3)}, v1alpha1.StartPoint{Message: ptr.To[int64](9)}, v1alpha1.StartPoint{Time: &at}
	resolved := func(c *history.Checkpoint) Source {
		return Source{Known: true, Record: c, Found: &history.Resolved{Asked: 9, Position: history.Position{Position: 9}, Checkpoint: c}}
	}
	lost, early := threeRecorded(), threeRecorded()
	lost.Lost, lost.Durable, early.Durable = true, false, false
	nothing := Source{Known: true, Found: &history.Resolved{}}
	for name, test := range map[string]struct {
		at      v1alpha1.StartPoint
		found   Source
		reason  string
		message string
	}{
		"a number":             {at: number, found: Source{Known: true, Record: threeRecorded()}},
		"a message":            {at: message, found: resolved(threeRecorded())},
		"a time":               {at: moment, found: resolved(threeRecorded())},
		"a number, behind":     {at: number, found: Source{Known: true, Behind: true, Record: threeRecorded()}},
		"store down":           {number, Source{}, v1alpha1.ReasonHistoryUnavailable, "the task starts when it can"},
		"no such number":       {number, Source{Known: true}, v1alpha1.ReasonCheckpointNotFound, "does not have checkpoint 3"},
		"not there yet":        {number, Source{Known: true, Behind: true}, v1alpha1.ReasonHistoryStoreWentBack, "older copy"},
		"lost":                 {number, Source{Known: true, Record: lost}, v1alpha1.ReasonCheckpointLost, "checkpoint 3"},
		"not durable":          {number, Source{Known: true, Record: early}, v1alpha1.ReasonCheckpointNotReady, "not in the gitstore yet"},
		"a message, behind":    {message, func() Source { s := resolved(threeRecorded()); s.Behind = true; return s }(), v1alpha1.ReasonHistoryStoreWentBack, "older copy"},
		"no such message":      {message, Source{Known: true}, v1alpha1.ReasonPositionNotFound, "has no message 9"},
		"before the beginning": {moment, nothing, v1alpha1.ReasonPositionNotFound, "has no message at or before 2026-01-02T03:04:05Z"},
		"before checkpoints":   {message, resolved(nil), v1alpha1.ReasonCheckpointNotFound, "no checkpoint at or before message 9"},
		"a time before them":   {moment, resolved(nil), v1alpha1.ReasonCheckpointNotFound, "no checkpoint at or before 2026-01-02T03:04:05Z"},
		"damaged":              {message, Source{Known: true, Damaged: "message 4 is missing"}, v1alpha1.ReasonCorrupted, "message 4 is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, startAt(test.at))
			test.found.Task = source
			s.o.Source = test.found
			s.step()
			if test.reason != "" {
				s.wantState(test.reason)
				s.wantMessage(meta.FindStatusCondition(s.status().Conditions, v1alpha1.TaskSucceeded).Message, test.message)
				return
			}
			want := &v1alpha1.SourceStatus{TaskUID: "u", Checkpoint: 3, Commit: "c3", Position: 8}
			if diff := cmp.Diff(want, s.status().Source); diff != "" {
				t.Errorf("the resolved source (-want +got):\n%s", diff)
			}
			s.wantPod(Pod{Attempt: 1, Source: &daemonapi.Source{TaskUID: "u", TaskName: "source", Checkpoint: 3, Commit: "c3", IncludeConversation: true, Position: 8}})
		})
	}
}

// TestSourcesThatAreGone: what only the history store knows of is started from as well, unless
// it is unclear which task is meant.
func TestSourcesThatAreGone(t *testing.T) {
	kept := func(c *history.Checkpoint) Source { return Source{Known: true, Kept: []string{"u"}, Record: c} }
	lost, early := threeRecorded(), threeRecorded()
	lost.Lost, lost.Durable, early.Durable = true, false, false
	number, object := &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](3)}, &v1alpha1.StartPoint{CheckpointRef: &v1alpha1.NameReference{Name: "source-3"}}
	for name, test := range map[string]struct {
		at      *v1alpha1.StartPoint
		uid     string
		found   Source
		reason  string
		message string
	}{
		"its latest":       {found: kept(threeRecorded())},
		"a number":         {at: number, found: kept(threeRecorded())},
		"a kept object":    {at: object, found: kept(threeRecorded())},
		"by its UID":       {at: number, uid: "u", found: kept(threeRecorded())},
		"store down":       {nil, "", Source{}, v1alpha1.ReasonHistoryUnavailable, "whether the history of one is kept"},
		"nothing kept":     {nil, "", Source{Known: true}, v1alpha1.ReasonSourceNotFound, "no history of one is kept"},
		"another UID":      {nil, "u", Source{Known: true}, v1alpha1.ReasonSourceNotFound, "with the UID u"},
		"not granted":      {nil, "", Source{Known: true, Elsewhere: true}, v1alpha1.ReasonHistoryNotGranted, "an earlier namespace"},
		"deleted":          {nil, "u", Source{Known: true, Deleted: true}, v1alpha1.ReasonSourceNotFound, "was deleted"},
		"several":          {nil, "", Source{Known: true, Kept: []string{"u2", "u1"}}, v1alpha1.ReasonSourceAmbiguous, "newest first: u2, u1"},
		"no checkpoint":    {nil, "", kept(nil), v1alpha1.ReasonCheckpointNotFound, "nothing is left to start from"},
		"no such number":   {number, "", kept(nil), v1alpha1.ReasonCheckpointNotFound, "does not have checkpoint 3"},
		"object gone":      {object, "", kept(nil), v1alpha1.ReasonCheckpointNotFound, "by its number"},
		"lost":             {number, "", kept(lost), v1alpha1.ReasonCheckpointLost, "is lost"},
		"never pushed":     {number, "", kept(early), v1alpha1.ReasonCheckpointLost, "never reached the gitstore"},
		"damaged messages": {&v1alpha1.StartPoint{Message: ptr.To[int64](9)}, "", Source{Known: true, Kept: []string{"u"}, Damaged: "message 4 is missing"}, v1alpha1.ReasonCorrupted, "message 4 is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, builders.StartFrom("source", ""), func(t *v1alpha1.Task) { t.Spec.StartFrom.At, t.Spec.StartFrom.TaskUID = test.at, test.uid })
			s.o.Source = test.found
			s.step()
			if test.reason != "" {
				s.wantState(test.reason)
				s.wantMessage(meta.FindStatusCondition(s.status().Conditions, v1alpha1.TaskSucceeded).Message, test.message)
				return
			}
			want := &v1alpha1.SourceStatus{TaskUID: "u", Checkpoint: 3, Commit: "c3", Position: 8}
			if diff := cmp.Diff(want, s.status().Source); diff != "" {
				t.Errorf("the resolved source (-want +got):\n%s", diff)
			}
		})
	}
}

// TestATaskLooksLessOftenForItsSourceTheLongerItWaits: what is watched of the source wakes it.
func TestATaskLooksLessOftenForItsSourceTheLongerItWaits(t *testing.T) {
	for waited, pause := range map[time.Duration]time.Duration{
		0: DefaultLimits().ProblemGrace, time.Minute: time.Minute, time.Hour: maxPatience,
	} {
		s := newScene(t, builders.StartFrom("source", ""))
		s.o.Source.Known = true
		s.o.Task.CreationTimestamp = metav1.NewTime(s.now)
		s.after(waited).step().wantState(v1alpha1.ReasonSourceNotFound)
		if got := s.plans[len(s.plans)-1].RequeueAfter; got != pause {
			t.Errorf("after %s, it looks again after %s, want %s", waited, got, pause)
		}
	}
}
