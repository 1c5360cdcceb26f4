package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestFork(t *testing.T) {
	b := newBench(t)
	task := b.task("source", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	playManager(b, &v1alpha1.ForkList{}, func(f *v1alpha1.Fork) bool {
		f.Status.Source = &v1alpha1.SourceStatus{TaskUID: string(task.UID), Checkpoint: 1, Commit: "c0ffee"}
		f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ForkComplete, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonForked, LastTransitionTime: metav1.NewTime(noon)}}
		return true
	})
	out, _ := b.must("fork", "source", "--name", "branchling", "--from", "1", "--prompt", "Otherwise.", "--no-conversation")
	wantText(t, "output", "fork.clew.dev/branchling created: task.clew.dev/branchling starts from checkpoint 1 of source\n", out)
	f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "branchling"}}
	b.get(f)
	want := v1alpha1.ForkSpec{
		SourceRef:    v1alpha1.NameReference{Name: "source"},
		At:           &v1alpha1.StartPoint{CheckpointRef: &v1alpha1.NameReference{Name: "source-1"}},
		Conversation: v1alpha1.ConversationExclude,
		Variants:     []v1alpha1.ForkVariant{{Name: "branchling", Prompt: ptr.To("Otherwise.")}},
		RequestedBy:  "admin",
	}
	if diff := cmp.Diff(want, f.Spec); diff != "" {
		t.Errorf("spec of the Fork (-want +got):\n%s", diff)
	}
	_, _, err := b.clew("", "fork", "source")
	wantError(t, err, "--name")
	_, _, err = b.clew("", "fork", "source", "--name", "source")
	wantError(t, err, "--name is that of the task to fork; give the new task another name")
	_, _, err = b.clew("", "fork", "source", "--name", "Bad_Name")
	wantError(t, err, `--name is "Bad_Name": the name of a task has only lower-case letters, digits and '-'`)
}

func TestForkIntoVariants(t *testing.T) {
	b := newBench(t)
	task := b.task("source", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	b.withHistory(map[string]any{"GET tasks/source/checkpoints/7": historyv1.Checkpoint{TaskUID: string(task.UID), Number: 7}})
	b.task("taken", v1alpha1.ReasonCompleted)
	names := []string{"a", "b", "c", "d"}
	for i, test := range []struct {
		at   string
		want v1alpha1.StartPoint
	}{
		{"7", v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](7)}},
		{"message:12", v1alpha1.StartPoint{Message: ptr.To[int64](12)}},
		{"30m", v1alpha1.StartPoint{Time: ptr.To(metav1.NewTime(noon.Add(-30 * time.Minute)))}},
		{"2026-11-21 08:00:05", v1alpha1.StartPoint{Time: ptr.To(metav1.NewTime(time.Date(2026, 11, 21, 8, 0, 5, 0, time.UTC)))}},
	} {
		b.must("fork", "source", "--name", names[i], "--at", test.at, "--wait=false",
			"--variant", "name=x,prompt=One way, or another=maybe.", "--variant", "name=y")
		f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: names[i]}}
		b.get(f)
		if diff := cmp.Diff(&test.want, f.Spec.At); diff != "" {
			t.Errorf("--at %s (-want +got):\n%s", test.at, diff)
		}
		if diff := cmp.Diff([]v1alpha1.ForkVariant{{Name: "x", Prompt: ptr.To("One way, or another=maybe.")}, {Name: "y"}}, f.Spec.Variants); diff != "" {
			t.Errorf("variants (-want +got):\n%s", diff)
		}
	}
	for _, test := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--at", "8"}, "no checkpoint number 8"},
		{[]string{"--at", "2026-11-22"}, `--at is "2026-11-22", which is in the future: it is 2026-11-21 12:00:00 now`},
		{[]string{"--at", "tomorrow"}, `has no checkpoint "tomorrow"`},
		{[]string{"--at", "message:no"}, "such as message:12"},
		{[]string{"--variant", "prompt=No name."}, "a variant needs a name"},
		{[]string{"--variant", "name=x,colour=red"}, `there is no key "colour"`},
		{[]string{"--variant", "name=x,size=big"}, "must be a quantity such as 2 or 4Gi"},
		{[]string{"--variant", "name=x,cpu=-1"}, `cpu is "-1"; it must be more than 0`},
		{[]string{"--variant", "name=x,size=0"}, `size is "0"; it must be more than 0`},
		{[]string{"--variant", "name=x", "--variant", "name=taken", "--dry-run"}, "a task taken exists already in namespace " + b.namespace + ": give the new task another name, or delete that one first"},
		{[]string{"--name", "taken"}, "a task taken exists already"},
		{[]string{"--variant", "name=x,env=A"}, "env is NAME=VALUE"},
		{[]string{"--variant", "name=x,agent=Nobody"}, `--variant "name=x,agent=Nobody": agent is "Nobody"; it must be one of Exec, ClaudeCode, Codex, GeminiCLI, OpenCode, QwenCode`},
		{[]string{"--variant", "name=x,branch=a b"}, "branch is \"a b\": it must contain only letters, digits and . _ / -; use a branch name such as try/oauth"},
		{[]string{"--variant", "name=source"}, "source is the name of the task to fork; give the new task another name"},
		{[]string{"--variant", "name=A"}, "the name of a task has only lower-case letters"},
		{[]string{"--variant", "name=" + strings.Repeat("a", 47)}, "the name of a task has at most 46 characters, since its pods and checkpoints carry it in their names; this has 47"},
		{[]string{"--variant", "name=x", "--name", strings.Repeat("a", 64)}, "the name of a fork has at most 63 characters"},
		{[]string{"--variant", "name=x", "--name", "a..b"}, `--name is "a..b": a name has only`},
		{[]string{"--variant", "name=x,name=y"}, "name is set twice"},
		{[]string{"--variant", "name=x,y"}, "is not KEY=VALUE"},
		{[]string{"--variant", "name="}, "name has no value"},
		{[]string{"--variant", "name=x", "--prompt", "p"}, "use only one of --variant and --prompt: each variant has a prompt of its own"},
		{[]string{"--at", "1", "--from", "1"}, "use only one of --at and --from: they are the same flag"},
	} {
		_, _, err := b.clew("", append([]string{"fork", "source", "--name", "bad"}, test.flags...)...)
		wantError(t, err, test.want)
	}
}

func TestParseVariant(t *testing.T) {
	got, err := parseVariant("name=x, agent=Codex,model=gpt-5,branch=try/x,image=i:1,env=A=1=2,env=B=,cpu=2,memory=4Gi,size=9Gi,storage-class=fast,prompt=a,b=c")
	if err != nil {
		t.Fatal(err)
	}
	both := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")}
	want := v1alpha1.ForkVariant{
		Name: "x", Prompt: ptr.To("a,b=c"), Branch: "try/x", Agent: &v1alpha1.VariantAgent{Type: v1alpha1.AgentCodex, Model: "gpt-5"},
		Template: &v1alpha1.VariantTemplate{Image: "i:1", Env: []corev1.EnvVar{{Name: "A", Value: "1=2"}, {Name: "B"}},
			Resources: &v1alpha1.VariantResources{Limits: both, Requests: both}},
		Workspace: &v1alpha1.VariantWorkspace{Size: ptr.To(resource.MustParse("9Gi")), StorageClassName: ptr.To("fast")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the variant (-want +got):\n%s", diff)
	}
}

// The types of agents are those of the API.
func TestAgentTypes(t *testing.T) {
	b := newBench(t)
	b.checkpoint(b.task("source", v1alpha1.ReasonRunning), 1)
	for _, agent := range agentTypes() {
		b.must("fork", "source", "--name", "new", "--variant", "name=x,agent="+agent, "--dry-run=server")
	}
}

func TestTheVariantsOfAForkAreLimited(t *testing.T) {
	o := &fork{variants: []string{"name=a", "name=a"}}
	_, err := o.parseVariants("source")
	wantError(t, err, "two --variant flags have name=a")
	o.variants = make([]string, 17)
	_, err = o.parseVariants("source")
	wantError(t, err, "there are 17 --variant flags; a fork creates at most 16 tasks")
}
