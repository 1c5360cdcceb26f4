package resources_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/testing/filled"
)

// publisherOf returns the pod that publishes checkpoint 7 of a task.
func publisherOf(t *testing.T, change func(*v1alpha1.Task)) *corev1.Pod {
	t.Helper()
	task := builders.Task("fix", builders.WithUID("uid"))
	task.Spec.Repository = &v1alpha1.Repository{URL: "https://git.example.com/p.git", CredentialsSecretRef: &v1alpha1.NameReference{Name: "git"}}
	task.Spec.Publish = &v1alpha1.Publish{Branch: "clew/fix"}
	change(task)
	pod, err := resources.NewPublisher(resources.PublisherRequest{Task: task, Number: 2, Checkpoint: 7, Replaces: "c1", Onto: "c0"}, options())
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func publishConfig(t *testing.T, pod *corev1.Pod) daemonapi.PublishConfig {
	t.Helper()
	config, err := daemonapi.DecodePublishConfig(strings.ReplaceAll(pod.Spec.Containers[0].Env[0].Value, "$$", "$"))
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestAPublisherHoldsNothingOfTheTask(t *testing.T) {
	pod := publisherOf(t, func(task *v1alpha1.Task) {
		s := &task.Spec.Template.Spec
		s.InitContainers = []corev1.Container{{Name: "init", Image: "i"}}
		s.Containers = append(s.Containers, corev1.Container{Name: "database", Image: "db"})
		s.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}}}}
		s.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys"}}}}
		s.HostAliases = []corev1.HostAlias{{IP: "10.0.0.1", Hostnames: []string{"git.example.com"}}}
		s.DNSConfig = &corev1.PodDNSConfig{Searches: []string{"example.com"}}
		s.NodeSelector = map[string]string{"zone": "a"}
		s.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/queue"}}
	})
	if len(pod.Spec.SchedulingGates) != 0 {
		t.Errorf("the pod waits for %v, which nobody lifts without the labels of the template", pod.Spec.SchedulingGates)
	}
	if pod.Name != "fix-2-publish" || len(pod.Spec.InitContainers) != 0 || len(pod.Spec.Containers) != 1 {
		t.Fatalf("the pod %s has %d and %d containers", pod.Name, len(pod.Spec.InitContainers), len(pod.Spec.Containers))
	}
	c := pod.Spec.Containers[0]
	wantMounts(t, c, map[string]corev1.VolumeMount{
		"/tmp":                   {Name: "clew-tmp"},
		daemonapi.TokenPath:      {Name: "clew-token", ReadOnly: true},
		daemonapi.RepositoryPath: {Name: "clew-repository", ReadOnly: true},
	})
	var names, audiences []string
	for _, v := range pod.Spec.Volumes {
		names = append(names, v.Name)
		if v.Secret != nil && *v.Secret.DefaultMode != 0o400 {
			t.Errorf("the files of the credentials have the mode %o", *v.Secret.DefaultMode)
		}
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				audiences = append(audiences, s.ServiceAccountToken.Audience)
			}
		}
	}
	if diff := cmp.Diff([]string{"clew-tmp", "clew-token", "clew-repository"}, names); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{daemonapi.GitStoreAudience}, audiences); diff != "" {
		t.Errorf("audiences of its token (-want +got):\n%s", diff)
	}
	if len(c.Env) != 1 || len(c.EnvFrom) != 0 {
		t.Errorf("its environment is %v, %v", c.Env, c.EnvFrom)
	}
	if s := pod.Spec; len(s.HostAliases) != 1 || s.DNSConfig == nil || s.NodeSelector["zone"] != "a" || *s.AutomountServiceAccountToken || s.ActiveDeadlineSeconds == nil {
		t.Errorf("the pod is scheduled and connected otherwise than the template says: %+v", s)
	}
	if pod.Labels[v1alpha1.LabelAttempt] != "" || pod.Labels[v1alpha1.LabelPublication] != "2" || pod.Labels[v1alpha1.LabelTaskUID] != "uid" {
		t.Errorf("its labels are %v", pod.Labels)
	}
}

func TestAPublisherIsRestricted(t *testing.T) {
	pod := publisherOf(t, func(*v1alpha1.Task) {})
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	result := policy.AggregateCheckResults(evaluator.EvaluatePod(psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}, &pod.ObjectMeta, &pod.Spec))
	if !result.Allowed {
		t.Error(result.ForbiddenDetail())
	}
	if s := pod.Spec.Containers[0].SecurityContext; s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		t.Error("it can write to its image")
	}
}

func TestWhatAPublisherIsTold(t *testing.T) {
	got := publishConfig(t, publisherOf(t, func(task *v1alpha1.Task) {
		task.Spec.Publish.Message = "It costs $(HOME)"
		task.Spec.Publish.ProtectedPaths, task.Spec.Publish.ApprovedCommit = []string{"ci/"}, "c2"
	}))
	want := daemonapi.PublishConfig{
		Namespace: got.Namespace, Task: "fix", TaskUID: "uid", Checkpoint: 7, GitStoreURL: got.GitStoreURL, CABundle: "PEM",
		Repository: daemonapi.Repository{URL: "https://git.example.com/p.git", CredentialsSecret: "git"},
		Ref:        "refs/heads/clew/fix", Uncommitted: true, Message: "It costs $(HOME)", AuthorName: "Clew", AuthorEmail: "noreply@clew.dev",
		Replaces: "c1", Onto: "c0", Announce: true, ProtectedPaths: []string{"ci/"}, ApprovedCommit: "c2", Setting: "publish",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	review := publishConfig(t, publisherOf(t, func(task *v1alpha1.Task) { task.Spec.Publish.Branch = "refs/for/main" }))
	if review.Ref != "refs/for/main" {
		t.Errorf("the ref is %s", review.Ref)
	}
}

func TestAPublisherProtectsWhatThisVersionKnowsUnlessTheTaskSays(t *testing.T) {
	for name, c := range map[string]struct{ spec, want []string }{
		"left out": {nil, v1alpha1.DefaultProtectedPaths()},
		"none":     {[]string{}, nil},
		"listed":   {[]string{"ci/"}, []string{"ci/"}},
	} {
		got := publishConfig(t, publisherOf(t, func(task *v1alpha1.Task) { task.Spec.Publish.ProtectedPaths = c.spec }))
		if diff := cmp.Diff(c.want, got.ProtectedPaths); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A field that is new in its configuration is filled where the configuration is made.
// TestABranchOfAChildIsPushedAsItsParentSays, unless it says how itself; which branch it is, its entry says.
func TestABranchOfAChildIsPushedAsItsParentSays(t *testing.T) {
	parents := &v1alpha1.Publish{Branch: "elsewhere", ProtectedPaths: []string{"deploy/"}, PushOptions: []string{"merge_request.create"}, Message: "Of the team"}
	for name, test := range map[string]struct {
		own       *v1alpha1.Publish
		protected string
		message   string
	}{
		"it says nothing": {nil, "deploy/", "Of the team"},
		"it says how":     {&v1alpha1.Publish{Branch: "mine", ProtectedPaths: []string{"ci/"}}, "ci/", "Work of the Clew task fix"},
	} {
		t.Run(name, func(t *testing.T) {
			task := builders.Task("fix", builders.WithUID("uid"))
			task.Spec.Publish = test.own
			c := &v1alpha1.Checkpoint{}
			c.Namespace, c.Name = "default", "fix-7"
			pod, err := resources.NewPublisher(resources.PublisherRequest{
				Task: task, Otherwise: parents, Checkpoint: 7, Branch: &resources.BranchRequest{Checkpoint: c, Branch: v1alpha1.CheckpointBranch{Name: "work"}},
			}, options())
			if err != nil {
				t.Fatal(err)
			}
			config := publishConfig(t, pod)
			if config.Ref != "refs/heads/work" || config.Message != test.message || len(config.ProtectedPaths) != 1 || config.ProtectedPaths[0] != test.protected {
				t.Errorf("the pod is told %+v", config)
			}
		})
	}
}

func TestAPublisherGetsEveryFieldOfItsConfiguration(t *testing.T) {
	var request resources.PublisherRequest
	var options resources.Options
	filled.In(&request)
	filled.In(&options)
	request.Task.Spec.Publish.OnDiverged = v1alpha1.DivergedForceWithLease
	request.Branch = nil
	pod, err := resources.NewPublisher(request, options)
	if err != nil {
		t.Fatal(err)
	}
	if empty := filled.Empty(publishConfig(t, pod)); empty != nil {
		t.Errorf("these fields are empty: %v", empty)
	}
}
