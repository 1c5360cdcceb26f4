package resources_test

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// TestWhatAPodIsMadeOf: of each field of the spec it is known whether a pod that waits in a queue would be
// another one if it were changed.
func TestWhatAPodIsMadeOf(t *testing.T) {
	type change struct {
		to      func(*v1alpha1.TaskSpec)
		another bool
	}
	changes := map[string]change{
		"Repository": {func(s *v1alpha1.TaskSpec) { s.Repository = &v1alpha1.Repository{URL: "https://example.org/x.git"} }, true},
		"Prompt":     {func(s *v1alpha1.TaskSpec) { s.Prompt = ptr.To("Otherwise.") }, true},
		"PromptFrom": {func(s *v1alpha1.TaskSpec) {
			s.Prompt, s.PromptFrom = nil, &v1alpha1.PromptSource{ConfigMapKeyRef: &v1alpha1.KeyReference{Name: "a", Key: "b"}}
		}, true},
		"Agent":            {func(s *v1alpha1.TaskSpec) { s.Agent.IdleSeconds = ptr.To[int32](77) }, true},
		"Tools":            {func(s *v1alpha1.TaskSpec) { s.Tools = []v1alpha1.AgentTool{v1alpha1.ToolDiff} }, true},
		"Template":         {func(s *v1alpha1.TaskSpec) { s.Template.Labels = map[string]string{"queue": "another"} }, true},
		"Workspace":        {func(s *v1alpha1.TaskSpec) { s.Workspace.Size = resource.MustParse("9Gi") }, false},
		"OperatingMode":    {func(s *v1alpha1.TaskSpec) { s.OperatingMode = v1alpha1.OperatingModeSuspended }, false},
		"CheckpointPolicy": {func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.EverySeconds = ptr.To[int32](77) }, true},
		"Conversation":     {func(s *v1alpha1.TaskSpec) { s.Conversation.SnapshotEveryMessages = ptr.To[int32](77) }, true},
		"StartFrom":        {func(s *v1alpha1.TaskSpec) { s.StartFrom = &v1alpha1.StartFrom{} }, true},
		"DependsOn":        {func(s *v1alpha1.TaskSpec) { s.DependsOn = []v1alpha1.Dependency{{}} }, false},
		"Priority":         {func(s *v1alpha1.TaskSpec) { s.Priority = 7 }, false},
		"Adopt":            {func(s *v1alpha1.TaskSpec) { s.Adopt = v1alpha1.AdoptLatest }, false},
		"Resume":           {func(s *v1alpha1.TaskSpec) { s.Resume = &v1alpha1.Resume{ID: "on", Prompt: "More."} }, false},
		"Rewind":           {func(s *v1alpha1.TaskSpec) { s.Rewind = &v1alpha1.Rewind{ID: "back"} }, false},
		"Publish":          {func(s *v1alpha1.TaskSpec) { s.Publish = &v1alpha1.Publish{ID: "again"} }, false},
		"Contract":         {func(s *v1alpha1.TaskSpec) { s.Contract = &v1alpha1.Contract{Name: "port"} }, false},
		"Role":             {func(s *v1alpha1.TaskSpec) { s.Role = v1alpha1.RoleSupervisor }, true},
		"ParentRef":        {func(s *v1alpha1.TaskSpec) { s.ParentRef = &v1alpha1.NameReference{Name: "lead"} }, false},
		"Children":         {func(s *v1alpha1.TaskSpec) { s.Children = &v1alpha1.Children{} }, false},
		"OnFinish":         {func(s *v1alpha1.TaskSpec) { s.OnFinish = &v1alpha1.OnFinish{} }, false},
		"NodeLoss":         {func(s *v1alpha1.TaskSpec) { s.NodeLoss.AfterSeconds = 77 }, false},
		"Acknowledge":      {func(s *v1alpha1.TaskSpec) { s.Acknowledge = &v1alpha1.Acknowledgement{LostRecords: 1} }, false},
		"RequestedBy":      {func(s *v1alpha1.TaskSpec) { s.RequestedBy = &v1alpha1.TaskRequesters{Publish: "jo"} }, false},
		"BackoffLimit":     {func(s *v1alpha1.TaskSpec) { s.BackoffLimit = ptr.To[int32](9) }, false},
		"RetryOn":          {func(s *v1alpha1.TaskSpec) { s.RetryOn = &v1alpha1.FailureMatcher{ExitCodes: []int32{3}} }, false},
		"FailOn":           {func(s *v1alpha1.TaskSpec) { s.FailOn = &v1alpha1.FailureMatcher{ExitCodes: []int32{3}} }, false},
		"Budget":           {func(s *v1alpha1.TaskSpec) { s.Budget = &v1alpha1.Budget{ToolCalls: ptr.To[int64](7)} }, false},
		"Decisions":        {func(s *v1alpha1.TaskSpec) { s.Decisions = []v1alpha1.Decision{{RequestID: "1-a"}} }, false},
		"DeadlineSeconds":  {func(s *v1alpha1.TaskSpec) { s.DeadlineSeconds = ptr.To[int64](3600) }, false},
	}
	digest := func(task *v1alpha1.Task) string {
		t.Helper()
		d, err := resources.PodDigest(task)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	made := digest(builders.Task("work"))
	for _, field := range reflect.VisibleFields(reflect.TypeFor[v1alpha1.TaskSpec]()) {
		c, known := changes[field.Name]
		if !known {
			t.Errorf("nobody has said whether spec.%s is in a pod", field.Name)
			continue
		}
		task := builders.Task("work")
		c.to(&task.Spec)
		if got := digest(task) != made; got != c.another {
			t.Errorf("with another spec.%s the pod is another one: %t, want %t", field.Name, got, c.another)
		}
	}
	task := builders.Task("work")
	task.Generation, task.Status.RecordSequence = 9, 9
	if digest(task) != made {
		t.Error("the pod is another one without a change of the spec")
	}
	if got := newPod(t, resources.PodRequest{Task: task, Attempt: 3}).Annotations[v1alpha1.AnnotationPodDigest]; got != made {
		t.Errorf("a pod has the digest %q, want %q", got, made)
	}
}
