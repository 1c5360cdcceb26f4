package v1alpha1_test

import (
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func TestDefaults(t *testing.T) {
	task := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "clew.dev/v1alpha1", "kind": "Task", "metadata": map[string]any{"namespace": "default", "name": "defaults"},
		"spec": map[string]any{"prompt": "p", "template": map[string]any{"spec": map[string]any{"containers": []any{
			map[string]any{"name": "agent", "image": "i", "command": []any{"c"}},
		}}}},
	}}
	if err := server.Client.Create(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	read := &v1alpha1.Task{}
	if err := server.Client.Get(t.Context(), client.ObjectKeyFromObject(task), read); err != nil {
		t.Fatal(err)
	}
	conversation := v1alpha1.ConversationPolicy{
		SnapshotEveryMessages: ptr.To[int32](50),
		Context: v1alpha1.ContextLimits{
			Messages: ptr.To[int32](200), ToolCalls: ptr.To[int32](100), ToolResultBytes: ptr.To[int32](2000),
			Summary: v1alpha1.ConversationInclude, Bytes: ptr.To[int32](200000),
		},
	}
	if diff := cmp.Diff(conversation, read.Spec.Conversation); diff != "" {
		t.Errorf("spec.conversation (-want +got):\n%s", diff)
	}
	kept := v1alpha1.CheckpointRetention{KeepLast: ptr.To[int32](200), KeepForSeconds: ptr.To[int32](0)}
	if diff := cmp.Diff(kept, read.Spec.CheckpointPolicy.Retention); diff != "" {
		t.Errorf("spec.checkpointPolicy.retention (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(v1alpha1.NodeLoss{AfterSeconds: 300, Policy: v1alpha1.NodeLossReplace}, read.Spec.NodeLoss); diff != "" {
		t.Errorf("spec.nodeLoss (-want +got):\n%s", diff)
	}
	if got := read.Spec.CheckpointPolicy.BeforeRiskyTools; got != nil {
		t.Errorf("the schema gives the task the patterns of today: %+v", got)
	}
	patterns := v1alpha1.DefaultRiskyTools()
	for command, risky := range map[string]bool{
		`{"command":"rm -rf src"}`: true, `{"command":"cd a && rm -r b"}`: true, `{"command":"cd a\nrm --force b"}`: true,
		`{"command":"git reset --hard HEAD~1"}`: true, `{"command":"git -C a clean -fdx"}`: true, `{"command":"git push --force"}`: true,
		`{"command":"find . -name '*.o' -delete"}`: true, `{"command":"psql -c 'DROP TABLE users'"}`: true, `{"command":["bash","-lc","rm -rf /tmp/x"]}`: true,
		`{"command":"ls -la"}`: false, `{"command":"git status"}`: false, `{"command":"git push"}`: false, `{"command":"go test ./..."}`: false,
		`{"command":"npm run format"}`: false, `{"command":"git log --oneline"}`: false, `{"command":"grep -rf patterns ."}`: false,
	} {
		found := slices.ContainsFunc(patterns, func(p v1alpha1.RiskyToolPattern) bool {
			return regexp.MustCompile(p.Tool).MatchString("Bash") && regexp.MustCompile(p.Input).MatchString(command)
		})
		if found != risky {
			t.Errorf("%s is risky: %v", command, found)
		}
	}
	for tool, shell := range map[string]bool{
		"Bash": true, "bash": true, "shell": true, "exec_command": true, "command_execution": true, "run_shell_command": true,
		"Read": false, "Edit": false, "web_search": false,
	} {
		if regexp.MustCompile(patterns[0].Tool).MatchString(tool) != shell {
			t.Errorf("%s is a shell: %v", tool, !shell)
		}
	}
}

func TestEmptyListsOfToolsRiskyToolsAndProtectedPathsAreKept(t *testing.T) {
	task := created(t, builders.Task("no-risk", publish(func(p *v1alpha1.Publish) { p.ProtectedPaths = []string{} }),
		spec(func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.BeforeRiskyTools = []v1alpha1.RiskyToolPattern{} }), tools()))
	task.Labels = map[string]string{"touched": "by-a-client"}
	if err := server.Client.Update(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if got := task.Spec.CheckpointPolicy.BeforeRiskyTools; got == nil || len(got) != 0 {
		t.Errorf("a client that writes the task back sets the default: %+v", got)
	}
	if got := task.Spec.Tools; got == nil || len(got) != 0 {
		t.Errorf("a client that writes the task back sets the default: %q", got)
	}
	if got := task.Spec.Publish.ProtectedPaths; got == nil || len(got) != 0 {
		t.Errorf("a client that writes the task back sets the default: %q", got)
	}
}
