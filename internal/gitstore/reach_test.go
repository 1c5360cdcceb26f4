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

	"github.com/clew-dev/clew/internal/podidentity"
)

func TestSourcesAreReadFromTheTaskOnce(t *testing.T) {
	task := func(name string, spec, status map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "clew.dev/v1alpha1", "kind": "Task", "spec": spec, "status": status,
			"metadata": map[string]any{"namespace": "team", "name": name, "uid": "uid-" + name},
		}}
	}
	startFrom := map[string]any{"startFrom": map[string]any{"taskRef": map[string]any{"name": "fix"}}}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{{Group: "clew.dev", Version: "v1alpha1", Resource: "tasks"}: "TaskList"},
		task("fork", startFrom, map[string]any{"source": map[string]any{"taskUID": "uid-fix"}}),
		task("early", startFrom, map[string]any{}), task("fix", map[string]any{}, map[string]any{}))
	sources := &taskSources{client: client}
	for range 2 {
		for _, test := range []struct {
			name, uid string
			want      []string
		}{
			{"fork", "uid-fork", []string{"uid-fix"}},
			{"fork", "uid-earlier", nil},
			{"early", "uid-early", nil},
			{"fix", "uid-fix", nil},
			{"gone", "uid-gone", nil},
		} {
			got, err := sources.Sources(t.Context(), "team", test.name, test.uid)
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("sources of %s (%s): %v (-want +got):\n%s", test.name, test.uid, err, diff)
			}
		}
	}
	client.PrependReactor("get", "tasks", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server is away")
	})
	for uid, name := range map[string]string{"uid-fork": "fork", "uid-earlier": "fork", "uid-gone": "gone"} {
		if _, err := sources.Sources(t.Context(), "team", name, uid); err != nil {
			t.Errorf("%s (%s): cached sources were read again: %v", name, uid, err)
		}
	}
	if _, err := sources.Sources(t.Context(), "team", "early", "uid-early"); !errors.Is(err, podidentity.ErrUnavailable) {
		t.Errorf("Sources returned %v, want ErrUnavailable", err)
	}
}
