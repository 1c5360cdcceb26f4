package server

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

// watched: an entry that another process records reaches who watches timelines through the API server.
func watched(t *testing.T, r *running, ann *rest.Config, task *clewv1alpha1.Task) {
	store, err := postgres.Open(t.Context(), r.dsn, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	state, err := store.TaskState(t.Context(), string(task.UID))
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(ann)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := clients.RESTClient().Get().AbsPath("/apis/history.clew.dev/v1alpha1/namespaces/team/timelines").
		Param("watch", "true").Param("task", task.Name).Param("type", history.EventTypeRewind).Stream(t.Context())
	if err != nil {
		t.Fatalf("watch the timeline: %v", err)
	}
	defer stream.Close()
	event := history.Event{ID: "watched", Task: state.Task, Time: time.Now(), Type: history.EventTypeRewind, Reason: "TaskRewound", Message: "it is watched"}
	if err := store.RecordEvents(t.Context(), []history.Event{event}); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stream)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), `{"type":"ADDED","object":{"id":"watched"`) {
		t.Errorf("the watch has %q, and ended with %v", lines.Text(), lines.Err())
	}
}
