package entries

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/history"
)

func added(namespace, id string) history.NewEntry {
	return history.NewEntry{Task: history.Key{Namespace: namespace, UID: "u"}, Event: id}
}

func TestWhoFollowsIsToldOfTheEntriesOfTheNamespace(t *testing.T) {
	f := New()
	f.Handle(added("team", "before"))
	next, leave := f.Follow("team")
	defer leave()
	for _, n := range []history.NewEntry{added("team", "1"), added("other", "x"), added("team", "2"), added("team", "3")} {
		f.Handle(n)
	}
	want(t, next, added("team", "1"), added("team", "2"))
	want(t, next, added("team", "3"))

	told := make(chan []history.NewEntry, 1)
	go func() { told <- next(t.Context(), 2) }()
	f.Handle(added("team", "4"))
	if diff := cmp.Diff([]history.NewEntry{added("team", "4")}, <-told); diff != "" {
		t.Errorf("after a wait (-want +got):\n%s", diff)
	}
}

func TestWhoMayHaveMissedEntriesComesToAnEnd(t *testing.T) {
	for name, end := range map[string]func(*Feed){
		"the store may have lost some": func(f *Feed) { f.Handle(history.NewEntry{}) },
		"too many wait": func(f *Feed) {
			for range maxWaiting {
				f.Handle(added("team", "again"))
			}
		},
		"the server ends": (*Feed).Close,
	} {
		t.Run(name, func(t *testing.T) {
			f := New()
			next, leave := f.Follow("team")
			defer leave()
			f.Handle(added("team", "1"))
			end(f)
			f.Handle(added("team", "2"))
			want(t, next)
			want(t, next)
		})
	}
	f := New()
	f.Close()
	next, leave := f.Follow("team")
	defer leave()
	want(t, next)
}

func TestWhoLeavesIsForgotten(t *testing.T) {
	f := New()
	next, leave := f.Follow("team")
	leave()
	f.Handle(added("team", "1"))
	if len(f.followers) != 0 {
		t.Error("it is still told of entries")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := next(ctx, 2); got != nil {
		t.Errorf("it was told of %v", got)
	}
}

// want compares what one who follows is told of next, up to two entries.
func want(t *testing.T, next func(context.Context, int) []history.NewEntry, want ...history.NewEntry) {
	t.Helper()
	if diff := cmp.Diff(want, append([]history.NewEntry(nil), next(t.Context(), 2)...)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
