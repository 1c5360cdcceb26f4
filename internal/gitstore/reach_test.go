package gitstore

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/podidentity"
)

func TestTheReachOfAPodIsReadFromItsTaskOnce(t *testing.T) {
	task := func(name string, spec, status map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "clew.dev/v1alpha1", "kind": "Task", "spec": spec, "status": status,
			"metadata": map[string]any{"namespace": "team", "name": name, "uid": "uid-" + name},
		}}
	}
	const origin = "https://git.example.com/app.git"
	startFrom := map[string]any{"startFrom": map[string]any{"taskRef": map[string]any{"name": "fix"}}}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{{Group: "clew.dev", Version: "v1alpha1", Resource: "tasks"}: "TaskList"},
		task("fork", startFrom, map[string]any{"source": map[string]any{"taskUID": "uid-fix"}}),
		task("again", startFrom, map[string]any{
			"source": map[string]any{"taskUID": "uid-third"}, "adoption": map[string]any{"taskUID": "uid-former"}, "latestCheckpoint": map[string]any{"number": int64(3)},
		}),
		task("unsaved", startFrom, map[string]any{
			"source": map[string]any{"taskUID": "uid-fix"}, "adoption": map[string]any{"taskUID": "uid-former"},
		}),
		task("early", startFrom, map[string]any{}), task("fix", map[string]any{"repository": map[string]any{"url": origin}}, map[string]any{}))
	tasks := NewLiveTasks(client)
	reach := func(name, uid string) (Reach, error) {
		return tasks.Reach(t.Context(), podidentity.Identity{Namespace: "team", TaskName: name, TaskUID: uid, PodUID: "uid-of-pod-of-" + name + "-" + uid})
	}
	for range 2 {
		for _, test := range []struct {
			name, uid string
			want      Reach
		}{
			{"fork", "uid-fork", Reach{Repository: "r-empty", Sources: []string{"uid-fix"}}},
			{"fork", "uid-earlier", Reach{}},
			{"again", "uid-again", Reach{Repository: "r-empty", Sources: []string{"uid-third"}, Continues: true}},
			{"unsaved", "uid-unsaved", Reach{Repository: "r-empty", Sources: []string{"uid-fix"}}},
			{"early", "uid-early", Reach{Repository: "r-empty"}},
			{"fix", "uid-fix", Reach{Repository: daemonapi.RepositoryKey(origin)}},
			{"gone", "uid-gone", Reach{}},
		} {
			got, err := reach(test.name, test.uid)
			if gone := test.want.Repository == ""; gone != errors.Is(err, errTaskGone) || gone && refuseAuthentication(err, "team").Reason != gitstoreapi.PodGone {
				t.Errorf("the reach of %s (%s): %v", test.name, test.uid, err)
			}
			if diff := cmp.Diff(test.want, got); err != nil && !errors.Is(err, errTaskGone) || diff != "" {
				t.Errorf("the reach of %s (%s): %v (-want +got):\n%s", test.name, test.uid, err, diff)
			}
		}
	}
	client.PrependReactor("get", "tasks", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server is away")
	})
	for uid, name := range map[string]string{"uid-fork": "fork", "uid-earlier": "fork", "uid-gone": "gone"} {
		if _, err := reach(name, uid); err != nil && !errors.Is(err, errTaskGone) {
			t.Errorf("%s (%s): what was cached is read again: %v", name, uid, err)
		}
	}
	if _, err := reach("early", "uid-early"); !errors.Is(err, podidentity.ErrUnavailable) {
		t.Errorf("the reach of a task whose source is not resolved: %v, want ErrUnavailable", err)
	}
	other := podidentity.Identity{Namespace: "team", TaskName: "fix", TaskUID: "uid-fix", PodUID: "uid-of-next-pod"}
	if _, err := tasks.Reach(t.Context(), other); !errors.Is(err, podidentity.ErrUnavailable) {
		t.Errorf("the reach of the next pod, before which the origin may have been corrected: %v, want ErrUnavailable", err)
	}
}
