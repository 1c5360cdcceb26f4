package cached_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// maxSpec bounds what the cache keeps of a Task's spec, in bytes of JSON: most of it are the names of 32
// tasks that it waits for, which a rule bounds further, and the ids of 64 decisions.
const maxSpec = 28 << 10

// filled returns a value of a schema in which each text is as long, and each list has as many items, as
// can be. Templates are left empty.
func filled(t *testing.T, name string, s apiextensionsv1.JSONSchemaProps) any {
	t.Helper()
	switch {
	case name == "template":
		return map[string]any{}
	case s.XIntOrString:
		return "1Gi"
	case len(s.Enum) > 0:
		return s.Enum[0]
	case strings.HasPrefix(s.Pattern, "^[0-9]{4}-"):
		return "2026-05-01T14:30:00Z"
	}
	switch s.Type {
	case "object":
		all := map[string]any{}
		for name, of := range s.Properties {
			all[name] = filled(t, name, of)
		}
		return all
	case "array":
		if s.MaxItems == nil {
			t.Fatalf("the list %s has no maximum", name)
		}
		all := make([]any, *s.MaxItems)
		for i := range all {
			all[i] = filled(t, name, *s.Items.Schema)
		}
		return all
	case "string":
		if s.MaxLength == nil {
			t.Fatalf("the text %s has no maximum", name)
		}
		return strings.Repeat("x", int(*s.MaxLength))
	case "integer":
		return 1
	}
	return true
}

// fullTask returns a Task whose spec says as much as the schema allows.
func fullTask(t *testing.T) *v1alpha1.Task {
	t.Helper()
	text, err := os.ReadFile("../../../config/crd/bases/clew.dev_tasks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crd := apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(filled(t, "spec", crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]))
	if err != nil {
		t.Fatal(err)
	}
	task := builders.Task("work")
	task.Spec = v1alpha1.TaskSpec{}
	if err := json.Unmarshal(spec, &task.Spec); err != nil {
		t.Fatal(err)
	}
	return task
}

// dropped returns the paths of what a value has and another one has not.
func dropped(path string, from, to any) (paths []string) {
	switch from := from.(type) {
	case map[string]any:
		to, _ := to.(map[string]any)
		for name, value := range from {
			if kept, ok := to[name]; ok {
				paths = append(paths, dropped(path+"."+name, value, kept)...)
			} else {
				paths = append(paths, path+"."+name)
			}
		}
	case []any:
		if to, _ := to.([]any); len(from) > 0 && len(to) > 0 {
			paths = dropped(path, from[0], to[0])
		}
	}
	slices.Sort(paths)
	return paths
}

// asJSON returns a value as JSON has it.
func asJSON(t *testing.T, value any) (decoded any) {
	t.Helper()
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, &decoded)
	}
	if err != nil {
		t.Fatal(err)
	}
	return decoded
}

// TestOfASpecTheCacheKeepsWhatDecisionsRead: whoever adds a field says whether they do.
func TestOfASpecTheCacheKeepsWhatDecisionsRead(t *testing.T) {
	task := fullTask(t)
	kept := transformed(t, task)
	if n := size(t, kept.Spec); n > maxSpec {
		t.Errorf("the cache keeps %d bytes of a spec of %d", n, size(t, task.Spec))
	}
	want := []string{
		"spec.agent.idleSeconds", "spec.agent.model", "spec.agent.statePaths",
		"spec.checkpointPolicy.beforeRiskyTools.input", "spec.checkpointPolicy.beforeRiskyTools.message", "spec.checkpointPolicy.beforeRiskyTools.tool",
		"spec.checkpointPolicy.beforeRun",
		"spec.checkpointPolicy.everySeconds", "spec.checkpointPolicy.everyToolCalls", "spec.checkpointPolicy.leastIntervalSeconds",
		"spec.checkpointPolicy.maxFileBytes", "spec.children.template", "spec.decisions.decidedBy", "spec.decisions.reason",
		"spec.prompt", "spec.promptFrom", "spec.repository.credentialsSecretRef", "spec.repository.ref", "spec.requestedBy",
		"spec.startFrom.fork.fieldManager", "spec.tools", "spec.workspace.accessMode", "spec.workspace.storageClassName",
	}
	if diff := cmp.Diff(want, dropped("spec", asJSON(t, task.Spec), asJSON(t, kept.Spec))); diff != "" {
		t.Errorf("dropped from the spec (-want +got):\n%s", diff)
	}
}

// TestAChangeOfWhatIsLongIsSeen: decisions compare what is published with what was asked for before.
func TestAChangeOfWhatIsLongIsSeen(t *testing.T) {
	of := func(paths ...string) *v1alpha1.Publish {
		task := builders.Task("work", func(t *v1alpha1.Task) { t.Spec.Publish = &v1alpha1.Publish{Branch: "work", ProtectedPaths: paths} })
		return transformed(t, task).Spec.Publish
	}
	long := strings.Repeat("x", 300)
	for _, other := range []*v1alpha1.Publish{of(), of("ci/"), of("y", long)} {
		if cmp.Equal(of(long), other) {
			t.Errorf("the cache keeps the same of other paths: %+v", other)
		}
	}
	if got := of("ci/", "deploy/"); !slices.Equal(got.ProtectedPaths, []string{"ci/", "deploy/"}) || of().ProtectedPaths != nil || of([]string{}...).ProtectedPaths == nil {
		t.Errorf("the cache keeps %+v", got)
	}
}

func TestTheCacheKeepsFewOfThePathsOfAnOperation(t *testing.T) {
	task := builders.Task("work", func(t *v1alpha1.Task) {
		t.Status.Rewind = &v1alpha1.OperationStatus{ID: "r", Paths: slices.Repeat([]string{strings.Repeat("x", 1000)}, 100)}
	})
	if kept := transformed(t, task).Status.Rewind; len(kept.Paths) != 1 || size(t, kept) > 1<<10 || kept.ID != "r" {
		t.Errorf("the cache keeps %d bytes of a rewind", size(t, kept))
	}
}
