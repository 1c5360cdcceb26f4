package podidentity_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/podidentity"
)

func TestOnlyAPodThatTheManagerCreatedIsATasks(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	attempts := []v1alpha1.Attempt{
		{Number: 3, PodName: "fix-3", PodUID: "uid-3", Outcome: v1alpha1.AttemptAgentFailed},
		{Number: 4, PodName: "fix-4", Outcome: v1alpha1.AttemptPodLost}, // it is unknown whether it had a pod
		{Number: 5, PodName: "fix-5", PodUID: "uid-5"},
	}
	left := append(attempts[:1:1], v1alpha1.Attempt{Number: 5, PodName: "fix-5", PodUID: "uid-5", Outcome: v1alpha1.AttemptNodeLost})
	reserved := append(attempts[:2:2], v1alpha1.Attempt{Number: 5, PodName: "fix-5"})
	for name, test := range map[string]struct {
		attempts  []v1alpha1.Attempt
		number    int64
		pod, uid  string
		kind, not error
	}{
		"the newest attempt's": {attempts, 5, "fix-5", "uid-5", nil, nil},
		"an ended attempt's, which ships the rest of its records": {attempts, 3, "fix-3", "uid-3", nil, nil},
		"one whose UID is not recorded yet":                       {reserved, 5, "fix-5", "uid-5", nil, nil},
		"another pod with the same name":                          {attempts, 5, "fix-5", "forged", podidentity.ErrForbidden, podidentity.ErrPodGone},
		"another pod with the same number":                        {attempts, 5, "forged", "forged", podidentity.ErrForbidden, podidentity.ErrPodGone},
		"another pod, while the UID is not recorded":              {reserved, 5, "forged", "forged", podidentity.ErrForbidden, podidentity.ErrPodGone},
		"a pod of an abandoned number":                            {attempts, 4, "fix-4", "uid-4", podidentity.ErrForbidden, podidentity.ErrPodGone},
		"one that was lost with its node, and is back":            {left, 5, "fix-5", "uid-5", podidentity.ErrPodGone, nil},
		"a pod of the next number":                                {attempts, 6, "fix-6", "uid-6", podidentity.ErrForbidden, podidentity.ErrPodGone},
		"a pod of the highest number":                             {attempts, math.MaxInt64, "forged", "forged", podidentity.ErrForbidden, podidentity.ErrPodGone},
		"a pod of a task that was never started":                  {nil, 1, "fix-1", "uid-1", podidentity.ErrForbidden, podidentity.ErrPodGone},
		"a pod of an attempt that is no longer listed":            {attempts, 2, "fix-2", "uid-2", podidentity.ErrPodGone, nil},
	} {
		t.Run(name, func(t *testing.T) {
			task := &v1alpha1.Task{
				TypeMeta:   metav1.TypeMeta{APIVersion: "clew.dev/v1alpha1", Kind: "Task"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "fix", UID: "task-uid"},
				Status:     v1alpha1.TaskStatus{Attempts: test.attempts},
			}
			checker := podidentity.NewLiveTasks(dynamicfake.NewSimpleDynamicClient(scheme, task))
			id := podidentity.Identity{Namespace: "team", TaskName: "fix", TaskUID: "task-uid", Attempt: test.number, PodName: test.pod, PodUID: test.uid}
			err := checker.CheckTask(t.Context(), id)
			if !errors.Is(err, test.kind) {
				t.Errorf("CheckTask returned %v, want %v", err, test.kind)
			}
			if test.not != nil && errors.Is(err, test.not) {
				t.Errorf("CheckTask returned %v, which must not be %v", err, test.not)
			}
			for what, other := range map[string]func(*podidentity.Identity){
				"another UID":       func(i *podidentity.Identity) { i.TaskUID = "other" },
				"another name":      func(i *podidentity.Identity) { i.TaskName = "other" },
				"another namespace": func(i *podidentity.Identity) { i.Namespace = "other" },
			} {
				changed := id
				other(&changed)
				if err := checker.CheckTask(t.Context(), changed); !errors.Is(err, podidentity.ErrForbidden) {
					t.Errorf("a Task with %s: got %v, want ErrForbidden", what, err)
				}
			}
		})
	}
}

func TestATaskThatStartsFromAnotherInheritsItsConversation(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		from *v1alpha1.StartFrom
		want bool
	}{
		"from nothing":                      {nil, false},
		"with its conversation":             {&v1alpha1.StartFrom{Conversation: v1alpha1.ConversationInclude}, true},
		"with its conversation, by default": {&v1alpha1.StartFrom{}, true},
		"without it":                        {&v1alpha1.StartFrom{Conversation: v1alpha1.ConversationExclude}, false},
	} {
		task := &v1alpha1.Task{
			TypeMeta:   metav1.TypeMeta{APIVersion: "clew.dev/v1alpha1", Kind: "Task"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "fix", UID: "task-uid"},
			Spec:       v1alpha1.TaskSpec{StartFrom: test.from},
		}
		tasks := podidentity.NewLiveTasks(dynamicfake.NewSimpleDynamicClient(scheme, task))
		got, err := tasks.Inherits(t.Context(), podidentity.Identity{Namespace: "team", TaskName: "fix", TaskUID: "task-uid"})
		if err != nil || got != test.want {
			t.Errorf("%s: Inherits returned %t, %v; want %t", name, got, err, test.want)
		}
	}
}

func TestWhatATaskSaysItContinuesIsInItsStatus(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for want, adoption := range map[string]*v1alpha1.AdoptionStatus{
		"": nil, "former": {TaskUID: "former"}, "former, first": {TaskUID: "former", EarlierTaskUIDs: []string{"first"}},
	} {
		task := &v1alpha1.Task{
			TypeMeta:   metav1.TypeMeta{APIVersion: "clew.dev/v1alpha1", Kind: "Task"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "fix", UID: "task-uid"},
			Status:     v1alpha1.TaskStatus{Adoption: adoption},
		}
		tasks := podidentity.NewLiveTasks(dynamicfake.NewSimpleDynamicClient(scheme, task))
		got, err := tasks.Adopted(t.Context(), podidentity.Identity{Namespace: "team", TaskName: "fix", TaskUID: "task-uid"})
		if err != nil || strings.Join(got, ", ") != want {
			t.Errorf("Adopted returned %q, %v; want %q", got, err, want)
		}
		if _, err := tasks.Adopted(t.Context(), podidentity.Identity{Namespace: "team", TaskName: "fix", TaskUID: "other"}); err == nil {
			t.Error("another Task of the name is taken for it")
		}
	}
}

func TestTheSourceOfATaskIsThatOfItsStatus(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	task := &v1alpha1.Task{
		TypeMeta:   metav1.TypeMeta{APIVersion: "clew.dev/v1alpha1", Kind: "Task"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "fix", UID: "task-uid"},
	}
	for _, want := range []string{"", "uid-of-source"} {
		if want != "" {
			task.Status.Source = &v1alpha1.SourceStatus{TaskUID: want}
		}
		tasks := podidentity.NewLiveTasks(dynamicfake.NewSimpleDynamicClient(scheme, task))
		id := podidentity.Identity{Namespace: "team", TaskName: "fix", TaskUID: "task-uid"}
		if got, err := tasks.Source(t.Context(), id); err != nil || got != want {
			t.Errorf("Source returned %q, %v; want %q", got, err, want)
		}
		id.TaskUID = "of-a-former-task"
		if _, err := tasks.Source(t.Context(), id); !errors.Is(err, podidentity.ErrForbidden) {
			t.Errorf("of a task made anew, Source returned %v", err)
		}
	}
}

func TestATaskGivesTheToolsOfASupervisorThatItsSpecSays(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	all := v1alpha1.SupervisorTools()
	for name, test := range map[string]struct {
		spec       v1alpha1.TaskSpec
		want       []v1alpha1.AgentTool
		supervisor bool
	}{
		"a worker's": {v1alpha1.TaskSpec{Role: v1alpha1.RoleWorker}, nil, false},
		"one of an earlier version, which has no role": {v1alpha1.TaskSpec{}, nil, false},
		"a worker's that lists one":                    {v1alpha1.TaskSpec{Role: v1alpha1.RoleWorker, Tools: all}, nil, false},
		"a supervisor's, which lists none":             {v1alpha1.TaskSpec{Role: v1alpha1.RoleSupervisor}, all[:len(all)-1], true},
		"one that publishes":                           {v1alpha1.TaskSpec{Role: v1alpha1.RoleSupervisor, Publish: &v1alpha1.Publish{}}, all, true},
		"one that lists an empty list":                 {v1alpha1.TaskSpec{Role: v1alpha1.RoleSupervisor, Tools: []v1alpha1.AgentTool{}}, nil, true},
		"one that lists some": {
			v1alpha1.TaskSpec{Role: v1alpha1.RoleSupervisor, Tools: []v1alpha1.AgentTool{v1alpha1.ToolDiff, v1alpha1.ToolPublish, v1alpha1.ToolTaskList}},
			[]v1alpha1.AgentTool{v1alpha1.ToolTaskList}, true,
		},
	} {
		task := &v1alpha1.Task{
			TypeMeta:   metav1.TypeMeta{APIVersion: "clew.dev/v1alpha1", Kind: "Task"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "fix", UID: "task-uid"},
			Spec:       test.spec,
		}
		tasks := podidentity.NewLiveTasks(dynamicfake.NewSimpleDynamicClient(scheme, task))
		id := podidentity.Identity{Namespace: "team", TaskName: "fix", TaskUID: "task-uid"}
		got, supervisor, err := tasks.SupervisorTools(t.Context(), id)
		if err != nil || supervisor != test.supervisor || !slices.Equal(got, test.want) {
			t.Errorf("%s: SupervisorTools returned %v, %t, %v; want %v, %t", name, got, supervisor, err, test.want, test.supervisor)
		}
		id.TaskUID = "other"
		if _, _, err := tasks.SupervisorTools(t.Context(), id); !errors.Is(err, podidentity.ErrForbidden) {
			t.Errorf("another Task of the name is taken for it: %v", err)
		}
	}
}

func TestOnlyThePodThatPublishesNowIsOne(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		status *v1alpha1.PublishStatus
		pod    string
		uid    string
		kind   error
	}{
		"the one":                      {&v1alpha1.PublishStatus{PodName: "fix-2-publish", PodUID: "uid-2"}, "fix-2-publish", "uid-2", nil},
		"its UID is not recorded yet":  {&v1alpha1.PublishStatus{PodName: "fix-2-publish"}, "fix-2-publish", "uid-2", nil},
		"another of its name":          {&v1alpha1.PublishStatus{PodName: "fix-2-publish", PodUID: "uid-2"}, "fix-2-publish", "forged", podidentity.ErrPodGone},
		"an earlier one":               {&v1alpha1.PublishStatus{PodName: "fix-2-publish"}, "fix-1-publish", "uid-1", podidentity.ErrPodGone},
		"none publishes":               {&v1alpha1.PublishStatus{Number: 2}, "fix-2-publish", "uid-2", podidentity.ErrPodGone},
		"the task never published":     {nil, "fix-1-publish", "uid-1", podidentity.ErrPodGone},
		"the agent's pod with a label": {&v1alpha1.PublishStatus{PodName: "fix-2-publish"}, "fix-5", "uid-5", podidentity.ErrPodGone},
	} {
		t.Run(name, func(t *testing.T) {
			task := &v1alpha1.Task{
				TypeMeta:   metav1.TypeMeta{APIVersion: "clew.dev/v1alpha1", Kind: "Task"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "fix", UID: "task-uid"},
				Status:     v1alpha1.TaskStatus{Publish: test.status, Attempts: []v1alpha1.Attempt{{Number: 5, PodName: "fix-5", PodUID: "uid-5"}}},
			}
			checker := podidentity.NewLiveTasks(dynamicfake.NewSimpleDynamicClient(scheme, task))
			id := podidentity.Identity{Namespace: "team", TaskName: "fix", TaskUID: "task-uid", Publishes: true, PodName: test.pod, PodUID: test.uid}
			if err := checker.CheckTask(t.Context(), id); !errors.Is(err, test.kind) {
				t.Errorf("CheckTask returned %v, want %v", err, test.kind)
			}
		})
	}
}

func TestOnlyThePodThatPublishesABranchNowIsOne(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		status   *v1alpha1.OriginBranchStatus
		pod, uid string
		change   func(*podidentity.Identity)
		kind     error
	}{
		"the one":                     {&v1alpha1.OriginBranchStatus{PodName: "fix-b-publish", PodUID: "uid-2"}, "fix-b-publish", "uid-2", nil, nil},
		"its UID is not recorded yet": {&v1alpha1.OriginBranchStatus{PodName: "fix-b-publish"}, "fix-b-publish", "uid-2", nil, nil},
		"another of its name":         {&v1alpha1.OriginBranchStatus{PodName: "fix-b-publish", PodUID: "uid-2"}, "fix-b-publish", "forged", nil, podidentity.ErrPodGone},
		"none publishes":              {&v1alpha1.OriginBranchStatus{}, "fix-b-publish", "uid-2", nil, podidentity.ErrPodGone},
		"no branch is pushed":         {nil, "fix-b-publish", "uid-2", nil, podidentity.ErrPodGone},
		"another task's": {&v1alpha1.OriginBranchStatus{PodName: "fix-b-publish"}, "fix-b-publish", "uid-2", func(id *podidentity.Identity) {
			id.TaskName, id.TaskUID = "other", "other-uid"
		}, podidentity.ErrForbidden},
		"a Checkpoint made anew": {&v1alpha1.OriginBranchStatus{PodName: "fix-b-publish"}, "fix-b-publish", "uid-2", func(id *podidentity.Identity) {
			id.CheckpointUID = "former"
		}, podidentity.ErrPodGone},
		"no such Checkpoint": {&v1alpha1.OriginBranchStatus{PodName: "fix-b-publish"}, "fix-b-publish", "uid-2", func(id *podidentity.Identity) {
			id.Checkpoint = "none"
		}, podidentity.ErrPodGone},
	} {
		t.Run(name, func(t *testing.T) {
			kind := metav1.TypeMeta{APIVersion: "clew.dev/v1alpha1", Kind: "Task"}
			task := &v1alpha1.Task{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "fix", UID: "task-uid"}}
			other := &v1alpha1.Task{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "other", UID: "other-uid"}}
			c := &v1alpha1.Checkpoint{
				TypeMeta:   metav1.TypeMeta{APIVersion: "clew.dev/v1alpha1", Kind: "Checkpoint"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "fix-1", UID: "c1"},
				Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "fix"}},
				Status:     v1alpha1.CheckpointStatus{TaskUID: "task-uid", Branches: []v1alpha1.CheckpointBranchStatus{{Name: "b", Origin: test.status}}},
			}
			checker := podidentity.NewLiveTasks(dynamicfake.NewSimpleDynamicClient(scheme, task, other, c))
			id := podidentity.Identity{
				Namespace: "team", TaskName: "fix", TaskUID: "task-uid", Publishes: true, PodName: test.pod, PodUID: test.uid,
				Checkpoint: "fix-1", CheckpointUID: "c1",
			}
			if test.change != nil {
				test.change(&id)
			}
			if err := checker.CheckTask(t.Context(), id); !errors.Is(err, test.kind) {
				t.Errorf("CheckTask returned %v, want %v", err, test.kind)
			}
		})
	}
}
