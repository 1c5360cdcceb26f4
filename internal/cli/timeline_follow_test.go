package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

// timelines is a fake history API whose timelines can be watched.
type timelines struct {
	mu     sync.Mutex
	events []historyv1.TimelineEvent // newest first
	more   string                    // the continue token of the list
	lists  []url.Values
	asked  []url.Values
	// watched receives the lines of each watch; a closed one is a watch that the server ends.
	watched chan chan historyv1.TimelineEvent
	// refuses is the code with which watches are refused; 0 if they are not.
	refuses int
}

func newTimelines(b *bench) *timelines {
	b.Helper()
	l := &timelines{watched: make(chan chan historyv1.TimelineEvent, 10)}
	front := httptest.NewServer(l)
	b.Cleanup(front.Close)
	b.kubeconfig = b.write(clientcmdapi.Cluster{Server: front.URL}, clientcmdapi.AuthInfo{})
	return l
}

func (l *timelines) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	l.mu.Lock()
	refuses := l.refuses
	if query.Get("watch") == "" {
		defer l.mu.Unlock()
		l.lists = append(l.lists, query)
		_ = json.NewEncoder(w).Encode(historyv1.TimelineEventList{ListMeta: metav1.ListMeta{Continue: l.more}, Items: l.events})
		return
	}
	l.asked = append(l.asked, query)
	l.mu.Unlock()
	if refuses > 0 {
		reason := map[int]metav1.StatusReason{http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable}[refuses]
		failed(w, refuses, reason, "you may not watch timelines")
		return
	}
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	lines := make(chan historyv1.TimelineEvent)
	l.watched <- lines
	for {
		select {
		case <-r.Context().Done():
			return
		case e, open := <-lines:
			if !open {
				return
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": e})
			w.(http.Flusher).Flush()
		}
	}
}

// set replaces what is listed.
func (l *timelines) set(more string, events ...historyv1.TimelineEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.more, l.events = more, events
}

// watch returns the lines of the next watch.
func (l *timelines) watch(b *bench) chan historyv1.TimelineEvent {
	b.Helper()
	select {
	case lines := <-l.watched:
		return lines
	case <-b.ctx.Done():
		b.Fatal("nobody watches the timeline")
		return nil
	}
}

// happened is an event that many minutes after noon.
func happened(id string, minute int) historyv1.TimelineEvent {
	return historyv1.TimelineEvent{
		ID: id, Time: metav1.NewMicroTime(noon.Add(time.Duration(minute) * time.Minute)), Task: "a", TaskUID: "u", Type: "task", Reason: "Reason" + id, Message: "message " + id,
	}
}

// created is the creation of a checkpoint, as an event or as the record that takes its place.
func created(id string, minute int) historyv1.TimelineEvent {
	e := happened(id, minute)
	e.Reason, e.Checkpoint = "CheckpointCreated", 7
	return e
}

// wantOnce checks that every event was printed once, in this order.
func wantOnce(t *testing.T, out string, ids ...string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(out) {
		if _, id, found := strings.Cut(strings.TrimSpace(line), "message "); found {
			got = append(got, id)
		}
	}
	wantText(t, "the events", strings.Join(ids, " "), strings.Join(got, " "))
}

func TestAFollowedTimelineHasEachEventOnceAlsoAfterALostConnection(t *testing.T) {
	b := newBench(t)
	l := newTimelines(b)
	l.set("there-is-more", happened("2", 2), happened("1", 1))
	w := b.start("timeline", "--contract", "port", "--type", "task,checkpoint", "--follow", "--limit", "2")
	lines := l.watch(b)
	lines <- happened("2", 2) // recorded between the watch and the list
	lines <- happened("3", 3)
	lines <- created("4", 4)
	lines <- happened("late", 0)
	w.waitFor("TIME", "message late")

	l.set("", happened("5", 5), created("4-again", 4), happened("3", 3), happened("2", 2), happened("1", 1), happened("0", -30))
	close(lines)
	lines = l.watch(b)
	lines <- happened("5", 5)
	lines <- happened("6", 6)
	w.waitFor("message 6")
	w.interrupt()
	wantOnce(t, w.end(), "1", "2", "3", "4", "late", "5", "6")

	wantText(t, "the watch", "map[contract:[port] type:[task,checkpoint] watch:[true]]", fmt.Sprint(l.asked[0]))
	if again := l.lists[1]; again.Get("since") != "2026-11-21T11:00:00Z" || again.Get("limit") != "500" {
		t.Errorf("after the watch has ended, it lists %v", again)
	}
}

func TestATaskIsFollowed(t *testing.T) {
	b := newBench(t)
	l := newTimelines(b)
	w := b.start("timeline", "a", "-f", "--since", "1m", "-o", "json")
	lines := l.watch(b)
	lines <- happened("old", -5)
	lines <- happened("new", 1)
	w.waitFor(`"id": "new"`)
	w.interrupt()
	if e := decode[historyv1.TimelineEvent](t, w.end()); e.Message != "message new" {
		t.Errorf("it has printed %+v", e)
	}
	wantText(t, "the task of the watch", "a", l.asked[0].Get("task"))
}

func TestWhoMayNotFollowIsTold(t *testing.T) {
	b := newBench(t)
	l := newTimelines(b)
	l.refuses = http.StatusForbidden
	_, _, err := b.clew("", "timeline", "--follow")
	wantError(t, err, "you may not watch timelines")

	l.refuses = http.StatusServiceUnavailable // at the beginning, it is not tried again
	_, _, err = b.clew("", "timeline", "--follow")
	wantError(t, err, "the history API is unavailable")
	_, _, err = b.clew("", "timeline", "--follow", "-o", "yaml")
	wantError(t, err, "leave out -o yaml")
}

// A server of an earlier version answers a watch with the list.
func TestAServerThatCannotBeFollowedIsNamed(t *testing.T) {
	b := newBench(t)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(historyv1.TimelineEventList{Items: []historyv1.TimelineEvent{happened("1", 1)}})
	}))
	defer front.Close()
	b.kubeconfig = b.write(clientcmdapi.Cluster{Server: front.URL}, clientcmdapi.AuthInfo{})
	_, _, err := b.clew("", "timeline", "--follow")
	wantError(t, err, "cannot follow timelines: upgrade it")
}
