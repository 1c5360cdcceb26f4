package fork

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func list(text ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(text); i += 2 {
		l[corev1.ResourceName(text[i])] = resource.MustParse(text[i+1])
	}
	return l
}

// TestATaskOfAForkIsFoundByItsParentAtOnce: servers watch the tasks that have the label.
func TestATaskOfAForkIsFoundByItsParentAtOnce(t *testing.T) {
	f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: "ways"}, Status: v1alpha1.ForkStatus{Source: &v1alpha1.SourceStatus{Checkpoint: 7}}}
	child := builders.Task("lead-a", func(t *v1alpha1.Task) { t.Spec.ParentRef = &v1alpha1.NameReference{Name: "lead"} })
	for want, source := range map[string]*v1alpha1.Task{"lead": child, "": builders.Task("a")} {
		if got := newTask(f, source, v1alpha1.ForkVariant{Name: "new"}, false).Labels[v1alpha1.LabelParent]; got != want {
			t.Errorf("the label of a fork of %s is %q, want %q", source.Name, got, want)
		}
	}
}

// TestWhatAVariantChanges: everything that a variant does not name stays as in the source, which has
// waited for those that it depends on.
func TestWhatAVariantChanges(t *testing.T) {
	source := builders.Task("source", builders.WithUID("uid-of-source"), func(t *v1alpha1.Task) {
		builders.DependsOn("earlier")(t)
		builders.Priority(7)(t)
		t.Spec.Agent = v1alpha1.Agent{Type: v1alpha1.AgentClaudeCode, Model: "sonnet", StatePaths: []string{".x"}}
		t.Spec.Workspace = v1alpha1.Workspace{Size: resource.MustParse("5Gi"), Retention: v1alpha1.WorkspaceRetain}
		t.Spec.Template.Spec.Containers = append([]corev1.Container{{Name: "database", Image: "db"}}, corev1.Container{
			Name: v1alpha1.AgentContainer, Image: "claude", Command: []string{"wrapper"}, Args: []string{"--fast"},
			Env:       []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}},
			Resources: corev1.ResourceRequirements{Limits: list("memory", "1Gi", "cpu", "1")},
		})
	})
	before := source.DeepCopy()
	f := &v1alpha1.Fork{Spec: v1alpha1.ForkSpec{SourceRef: v1alpha1.NameReference{Name: "source"}, Conversation: v1alpha1.ConversationInclude}, Status: v1alpha1.ForkStatus{Source: &v1alpha1.SourceStatus{Checkpoint: 7}}}
	for name, test := range map[string]struct {
		variant v1alpha1.ForkVariant
		want    func(*v1alpha1.TaskSpec, *corev1.Container)
	}{
		"nothing":        {v1alpha1.ForkVariant{}, func(*v1alpha1.TaskSpec, *corev1.Container) {}},
		"prompt":         {v1alpha1.ForkVariant{Prompt: ptr.To("Otherwise.")}, func(s *v1alpha1.TaskSpec, _ *corev1.Container) { s.Prompt = ptr.To("Otherwise.") }},
		"branch":         {v1alpha1.ForkVariant{Branch: "try/it"}, func(s *v1alpha1.TaskSpec, _ *corev1.Container) { s.StartFrom.Branch = "try/it" }},
		"model":          {v1alpha1.ForkVariant{Agent: &v1alpha1.VariantAgent{Model: "opus"}}, func(s *v1alpha1.TaskSpec, _ *corev1.Container) { s.Agent.Model = "opus" }},
		"the same agent": {v1alpha1.ForkVariant{Agent: &v1alpha1.VariantAgent{Type: v1alpha1.AgentClaudeCode}}, func(*v1alpha1.TaskSpec, *corev1.Container) {}},
		"another agent": {v1alpha1.ForkVariant{Agent: &v1alpha1.VariantAgent{Type: v1alpha1.AgentCodex}}, func(s *v1alpha1.TaskSpec, c *corev1.Container) {
			s.Agent.Type, s.Agent.Model, c.Command, c.Args = v1alpha1.AgentCodex, "", nil, nil
		}},
		"container": {v1alpha1.ForkVariant{Template: &v1alpha1.VariantTemplate{
			Image: "other", Env: []corev1.EnvVar{{Name: "B", Value: "3"}, {Name: "C", Value: "4"}},
			Resources: &v1alpha1.VariantResources{Limits: list("memory", "2Gi"), Requests: list("memory", "2Gi")},
		}}, func(_ *v1alpha1.TaskSpec, c *corev1.Container) {
			c.Image, c.Env = "other", []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "3"}, {Name: "C", Value: "4"}}
			c.Resources = corev1.ResourceRequirements{Limits: list("memory", "2Gi", "cpu", "1"), Requests: list("memory", "2Gi")}
		}},
		"volume": {v1alpha1.ForkVariant{Workspace: &v1alpha1.VariantWorkspace{Size: ptr.To(resource.MustParse("9Gi")), StorageClassName: ptr.To("fast")}},
			func(s *v1alpha1.TaskSpec, _ *corev1.Container) {
				s.Workspace.Size, s.Workspace.StorageClassName = resource.MustParse("9Gi"), ptr.To("fast")
			}},
	} {
		t.Run(name, func(t *testing.T) {
			test.variant.Name = "new"
			want := source.Spec.DeepCopy()
			want.OperatingMode, want.DependsOn = v1alpha1.OperatingModeRunning, nil
			want.StartFrom = &v1alpha1.StartFrom{
				TaskRef: v1alpha1.NameReference{Name: "source"}, TaskUID: "uid-of-source", At: &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](7)},
				Conversation: v1alpha1.ConversationInclude, Branch: "clew/new", Fork: &v1alpha1.ForkOrigin{From: "task source at its latest checkpoint"},
			}
			container := len(want.Template.Spec.Containers) - 1
			test.want(want, &want.Template.Spec.Containers[container])
			got := newTask(f, source, test.variant, false)
			if diff := cmp.Diff(*want, got.Spec); diff != "" {
				t.Errorf("the new task's spec (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, source); diff != "" {
				t.Errorf("the source was changed (-want +got):\n%s", diff)
			}
			adopting := f.DeepCopy()
			adopting.Status.Adoption, want.Adopt = &v1alpha1.ForkAdoptionStatus{Tasks: []v1alpha1.AdoptedTask{{Name: test.variant.Name}}}, v1alpha1.AdoptLatest
			want.OperatingMode = v1alpha1.OperatingModeSuspended // an older manager did not write the former one's mode
			if diff := cmp.Diff(*want, newTask(adopting, source, test.variant, false).Spec); diff != "" {
				t.Errorf("the new task's spec, of a Fork that adopts (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAForkThatWaitsIsTriedLessAndLessOften: something that is not watched, such as a quota, may
// let it go on.
func TestAForkThatWaitsIsTriedLessAndLessOften(t *testing.T) {
	since := time.Now()
	f := &v1alpha1.Fork{Status: v1alpha1.ForkStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ForkComplete, LastTransitionTime: metav1.NewTime(since)}}}}
	for waited, want := range map[time.Duration]time.Duration{
		0: time.Second, 8 * time.Second: 8 * time.Second, 5 * time.Minute: 5 * time.Minute, 24 * time.Hour: 10 * time.Minute,
	} {
		if got := pause(f, since.Add(waited)); got != want {
			t.Errorf("after %s the pause is %s, want %s", waited, got, want)
		}
	}
}

// A Fork that is applied again with adopt: Latest continues its tasks, which must be there.
func TestTasksOfAForkAreReleasedAndNotDeleted(t *testing.T) {
	source := builders.Task("source", func(t *v1alpha1.Task) {
		t.Spec.OnFinish = &v1alpha1.OnFinish{AfterSeconds: 60, Action: v1alpha1.FinishDelete}
	})
	f := &v1alpha1.Fork{Status: v1alpha1.ForkStatus{Source: &v1alpha1.SourceStatus{Checkpoint: 7}}}
	made := newTask(f, source, v1alpha1.ForkVariant{Name: "new"}, true)
	if diff := cmp.Diff(&v1alpha1.OnFinish{AfterSeconds: 60, Action: v1alpha1.FinishRelease}, made.Spec.OnFinish); diff != "" {
		t.Error(diff)
	}
	if source.Spec.OnFinish.Action != v1alpha1.FinishDelete {
		t.Error("the source was changed")
	}
}
