package resources_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func options() resources.Options {
	return resources.Options{
		DaemonImage: "clew:1", PullPolicy: corev1.PullIfNotPresent,
		ServerURL: "https://server:8443", GitStoreURL: "https://gitstore:8443/", CABundle: "PEM",
	}
}

func newPod(t *testing.T, request resources.PodRequest) *corev1.Pod {
	t.Helper()
	if request.Attempt == 0 {
		request.Attempt = 1
	}
	pod, err := resources.NewPod(request, options())
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func named(t *testing.T, containers []corev1.Container, name string) corev1.Container {
	t.Helper()
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no container %q", name)
	}
	return containers[i]
}

func mounts(c corev1.Container) map[string]corev1.VolumeMount {
	m := map[string]corev1.VolumeMount{}
	for _, v := range c.VolumeMounts {
		m[v.MountPath] = v
	}
	return m
}

// wantMounts compares all mounts of a container, by their paths.
func wantMounts(t *testing.T, c corev1.Container, want map[string]corev1.VolumeMount) {
	t.Helper()
	for path, mount := range want {
		mount.MountPath = path
		want[path] = mount
	}
	if diff := cmp.Diff(want, mounts(c)); diff != "" {
		t.Errorf("mounts of the container %s (-want +got):\n%s", c.Name, diff)
	}
}

// wantNumber returns a check of the task and number that are read from an object.
func wantNumber(t *testing.T, wantUID string, want int64) func(uid string, number int64, ok bool) {
	t.Helper()
	return func(uid string, number int64, ok bool) {
		t.Helper()
		if !ok {
			t.Fatal("the object is not taken for one of the manager's")
		}
		if uid != wantUID || number != want {
			t.Errorf("the object is number %d of task %s, want number %d of task %s", number, uid, want, wantUID)
		}
	}
}

func env(c corev1.Container, name string) corev1.EnvVar {
	i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name })
	if i < 0 {
		return corev1.EnvVar{}
	}
	return c.Env[i]
}

func task(options ...builders.TaskOption) *v1alpha1.Task {
	return builders.Task("tidy-up", append([]builders.TaskOption{builders.WithUID("uid-1"), builders.InNamespace("team")}, options...)...)
}

func TestPodIsTheTasks(t *testing.T) {
	pod := newPod(t, resources.PodRequest{Task: task(), Attempt: 3})
	if pod.Name != "tidy-up-3" || pod.Namespace != "team" {
		t.Errorf("pod is %s/%s", pod.Namespace, pod.Name)
	}
	for label, want := range map[string]string{
		v1alpha1.LabelTask: "tidy-up", v1alpha1.LabelTaskUID: "uid-1", v1alpha1.LabelAttempt: "3", v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
	} {
		if pod.Labels[label] != want {
			t.Errorf("label %s is %q, want %q", label, pod.Labels[label], want)
		}
	}
	owner := pod.OwnerReferences[0]
	wantOwner := metav1.OwnerReference{
		APIVersion: "clew.dev/v1alpha1", Kind: "Task", Name: "tidy-up", UID: "uid-1", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}
	if diff := cmp.Diff(wantOwner, owner); diff != "" {
		t.Errorf("owner (-want +got):\n%s", diff)
	}
	if got := resources.Attempt(pod); got != 3 || !resources.IsOf(pod, task()) {
		t.Errorf("the labels read back as attempt %d, of the task: %v", got, resources.IsOf(pod, task()))
	}
}

func TestAgentIsStartedByTheShim(t *testing.T) {
	pod := newPod(t, resources.PodRequest{Task: task()})
	agent := named(t, pod.Spec.Containers, "agent")
	if got := strings.Join(append(agent.Command, agent.Args...), " "); got != "/run/clew/bin/clew-daemon agent --program-words=1 -- /bin/agent --work" {
		t.Errorf("command %q", got)
	}
	if agent.WorkingDir != "/workspace" {
		t.Errorf("workingDir %q", agent.WorkingDir)
	}
	for name, want := range map[string]string{
		"CLEW_PROMPT": "Tidy up.", "CLEW_TASK": "tidy-up", "CLEW_ATTEMPT": "1", "CLEW_RESUMED": "false",
		"CLEW_CONVERSATION": "/run/clew/context/conversation.jsonl", "HOME": "/home/agent",
	} {
		if got := env(agent, name).Value; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if *pod.Spec.TerminationGracePeriodSeconds != 120 || pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Error("grace period or restart policy")
	}
}

func TestAgentReachesNothingOfTheDaemons(t *testing.T) {
	pod := newPod(t, resources.PodRequest{Task: task(func(t *v1alpha1.Task) {
		t.Spec.Repository.CredentialsSecretRef = &v1alpha1.NameReference{Name: "credentials"}
		t.Spec.Template.Spec.Containers = append(t.Spec.Template.Spec.Containers, corev1.Container{Name: "database", Image: "db"})
	})})
	for _, name := range []string{"agent", "database"} {
		c := named(t, pod.Spec.Containers, name)
		for _, m := range c.VolumeMounts {
			if private := []string{"clew-token", "clew-repository"}; slices.Contains(private, m.Name) {
				t.Errorf("container %s mounts the volume %s", name, m.Name)
			}
			if m.SubPath == "clew" || (m.Name == "clew-workspace" && m.SubPath == "") {
				t.Errorf("container %s mounts the daemon's folder: %+v", name, m)
			}
		}
		if env(c, daemonapi.ConfigEnv).Name != "" {
			t.Errorf("container %s has the daemon's configuration", name)
		}
	}
	wantMounts(t, named(t, pod.Spec.Containers, "agent"), map[string]corev1.VolumeMount{
		"/workspace":  {Name: "clew-workspace", SubPath: "worktree"},
		"/home/agent": {Name: "clew-workspace", SubPath: "home"},
		"/run/clew":   {Name: "clew-run", ReadOnly: true},
	})
	if *pod.Spec.AutomountServiceAccountToken || pod.Spec.ServiceAccountName != "clew-task" {
		t.Error("the pod's service account gives access to the Kubernetes API")
	}
}

func TestPrepareAndDaemon(t *testing.T) {
	pod := newPod(t, resources.PodRequest{Task: task(func(t *v1alpha1.Task) {
		t.Spec.Repository.CredentialsSecretRef = &v1alpha1.NameReference{Name: "credentials"}
		t.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "mine", Image: "i"}}
	})})
	var order []string
	for _, c := range pod.Spec.InitContainers {
		order = append(order, c.Name)
	}
	if !slices.Equal(order, []string{"mine", "prepare", "daemon"}) {
		t.Errorf("init containers %q", order)
	}
	wantMounts(t, named(t, pod.Spec.InitContainers, "prepare"), map[string]corev1.VolumeMount{
		"/volume":                          {Name: "clew-workspace"},
		"/run/clew":                        {Name: "clew-run"},
		"/tmp":                             {Name: "clew-tmp", SubPath: "prepare"},
		"/var/run/secrets/clew":            {Name: "clew-token", ReadOnly: true},
		"/var/run/secrets/clew-repository": {Name: "clew-repository", ReadOnly: true},
	})
	wantMounts(t, named(t, pod.Spec.InitContainers, "daemon"), map[string]corev1.VolumeMount{
		"/workspace":            {Name: "clew-workspace", SubPath: "worktree"},
		"/home/agent":           {Name: "clew-workspace", SubPath: "home"},
		"/var/lib/clew":         {Name: "clew-workspace", SubPath: "clew"},
		"/run/clew":             {Name: "clew-run"},
		"/tmp":                  {Name: "clew-tmp", SubPath: "daemon"},
		"/var/run/secrets/clew": {Name: "clew-token", ReadOnly: true},
	})
	d := named(t, pod.Spec.InitContainers, "daemon")
	if *d.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Error("the daemon is not a native sidecar")
	}
	if want := []string{"/run/clew/bin/clew-daemon", "ready", "--wait=2m0s"}; !slices.Equal(d.Lifecycle.PostStart.Exec.Command, want) {
		t.Errorf("the agent is gated by %q, want %q", d.Lifecycle.PostStart.Exec.Command, want)
	}
	for _, v := range pod.Spec.Volumes {
		if v.Name == "clew-repository" && !*v.Secret.Optional {
			t.Error("a missing Secret would block the pod instead of being reported")
		}
		if v.Name == "clew-token" {
			audiences := map[string]string{}
			for _, s := range v.Projected.Sources {
				audiences[s.ServiceAccountToken.Path] = s.ServiceAccountToken.Audience
			}
			want := map[string]string{"token": "server.clew.dev", "gitstore-token": "gitstore.clew.dev"}
			if d := cmp.Diff(want, audiences); d != "" {
				t.Errorf("audiences of the tokens (-want +got):\n%s", d)
			}
		}
	}
}

func TestThePodGetsItsConfiguration(t *testing.T) {
	operation := &daemonapi.Operation{Kind: daemonapi.OperationRewind, ID: "back", Checkpoint: 2}
	source := &daemonapi.Source{TaskUID: "uid-0", Checkpoint: 7}
	private := func(t *v1alpha1.Task) {
		t.Spec.Repository.CredentialsSecretRef = &v1alpha1.NameReference{Name: "credentials"}
		t.Spec.CheckpointPolicy.BeforeRun = v1alpha1.BeforeRunAlways
	}
	pod := newPod(t, resources.PodRequest{Task: task(private), Attempt: 2, Operation: operation, Source: source})
	for _, name := range []string{"prepare", "daemon"} {
		c, err := daemonapi.DecodeConfig(env(named(t, pod.Spec.InitContainers, name), daemonapi.ConfigEnv).Value)
		if err != nil {
			t.Fatal(err)
		}
		if uid := env(named(t, pod.Spec.InitContainers, name), daemonapi.PodUIDEnv).ValueFrom; uid == nil || uid.FieldRef.FieldPath != "metadata.uid" {
			t.Errorf("%s does not know its pod's UID: %+v", name, uid)
		}
		want := daemonapi.Config{
			Namespace: "team", Task: "tidy-up", TaskUID: "uid-1", Attempt: 2, ServerURL: "https://server:8443", CABundle: "PEM",
			GitStoreURL: "https://gitstore:8443/team/" + daemonapi.RepositoryKey("https://git.example.com/team/project.git") + ".git",
			AgentType:   v1alpha1.AgentExec, Tools: v1alpha1.DefaultTools(),
			Operation: operation, Source: source,
			Repository: &daemonapi.Repository{URL: "https://git.example.com/team/project.git", Ref: "main", CredentialsSecret: "credentials"},
			Context:    daemonapi.ContextLimits{Messages: 200, ToolCalls: 100, ToolResultBytes: 2000, Summary: true, Bytes: 200000},
			Policy: daemonapi.Policy{
				EveryToolCalls: 10, EverySeconds: 300, LeastIntervalSeconds: 10, MaxFileBytes: 100 << 20, SnapshotEveryMessages: 50,
				RiskyTools: riskyByDefault(), ApprovalDeadlineSeconds: 86400, BeforeRun: true,
			},
		}
		if diff := cmp.Diff(want, c); diff != "" {
			t.Errorf("configuration of %s (-want +got):\n%s", name, diff)
		}
	}
}

func TestAPodThatOnlyPrepares(t *testing.T) {
	pod := newPod(t, resources.PodRequest{PrepareOnly: true, Task: task(func(t *v1alpha1.Task) {
		t.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "gone", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "gone"}},
		}}}
	})})
	var names []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		names = append(names, c.Name)
	}
	if !slices.Equal(names, []string{"prepare"}) || len(pod.Spec.InitContainers) != 0 {
		t.Errorf("the pod has the containers %q, of which %d are init containers; want only prepare, as its main one", names, len(pod.Spec.InitContainers))
	}
	for _, v := range pod.Spec.Volumes {
		if v.Name == "gone" {
			t.Error("it waits for a volume that only the agent needs")
		}
	}
}

func TestPrompts(t *testing.T) {
	fromSecret := func(t *v1alpha1.Task) {
		t.Spec.Prompt = nil
		t.Spec.PromptFrom = &v1alpha1.PromptSource{SecretKeyRef: &v1alpha1.KeyReference{Name: "s", Key: "k"}}
	}
	t.Run("are not expanded", func(t *testing.T) {
		pod := newPod(t, resources.PodRequest{Task: task(func(t *v1alpha1.Task) { t.Spec.Prompt = ptr.To("cost: $(HOME) $$5") })})
		if got := env(named(t, pod.Spec.Containers, "agent"), "CLEW_PROMPT").Value; got != "cost: $$(HOME) $$$$5" {
			t.Errorf("the kubelet would expand %q", got)
		}
	})
	t.Run("come from a Secret", func(t *testing.T) {
		pod := newPod(t, resources.PodRequest{Task: task(fromSecret)})
		for _, c := range []corev1.Container{
			named(t, pod.Spec.Containers, "agent"), named(t, pod.Spec.InitContainers, "prepare"),
		} {
			want := &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "k",
			}}
			if diff := cmp.Diff(want, env(c, "CLEW_PROMPT").ValueFrom); diff != "" {
				t.Errorf("prompt of the container %s (-want +got):\n%s", c.Name, diff)
			}
		}
	})
	t.Run("of a resume are only for the agent", func(t *testing.T) {
		pod := newPod(t, resources.PodRequest{Task: task(), Attempt: 2, Prompt: "go on"})
		if got := env(named(t, pod.Spec.Containers, "agent"), "CLEW_PROMPT").Value; got != "go on" {
			t.Errorf("the agent's prompt is %q", got)
		}
		if got := env(named(t, pod.Spec.InitContainers, "prepare"), "CLEW_PROMPT").Value; got != "Tidy up." {
			t.Errorf("prepare's prompt is %q", got)
		}
	})
}

func TestTheUsersTemplateIsKept(t *testing.T) {
	pod := newPod(t, resources.PodRequest{Task: task(func(t *v1alpha1.Task) {
		s := &t.Spec.Template.Spec
		t.Spec.Template.Labels = map[string]string{"team": "a"}
		s.NodeSelector = map[string]string{"disk": "fast"}
		s.TerminationGracePeriodSeconds = ptr.To[int64](30)
		s.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1234)}
		s.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		s.Containers[0].WorkingDir = "/workspace/sub"
		s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "cache", MountPath: "/home/agent/.cache"}}
		s.Containers[0].Env = []corev1.EnvVar{{Name: "COLOUR", Value: "blue"}}
	})})
	agent := named(t, pod.Spec.Containers, "agent")
	for field, c := range map[string]struct{ got, want string }{
		"label":         {pod.Labels["team"], "a"},
		"node selector": {pod.Spec.NodeSelector["disk"], "fast"},
		"working dir":   {agent.WorkingDir, "/workspace/sub"},
		"mount":         {mounts(agent)["/home/agent/.cache"].Name, "cache"},
		"variable":      {env(agent, "COLOUR").Value, "blue"},
	} {
		if c.got != c.want {
			t.Errorf("the %s of the template is %q, want %q", field, c.got, c.want)
		}
	}
	if got := *pod.Spec.TerminationGracePeriodSeconds; got != 30 {
		t.Errorf("the grace period is %d s, want 30", got)
	}
	s := pod.Spec.SecurityContext
	if diff := cmp.Diff([]int64{1234, 1234, 1234}, []int64{*s.RunAsUser, *s.RunAsGroup, *s.FSGroup}); diff != "" {
		t.Errorf("user, group and group of files (-want +got):\n%s", diff)
	}
}

func TestBuildersChangeNothingOfTheTask(t *testing.T) {
	given := task()
	before := given.DeepCopy()
	newPod(t, resources.PodRequest{Task: given})
	if len(given.Spec.Template.Spec.Containers[0].Command) != len(before.Spec.Template.Spec.Containers[0].Command) ||
		given.Spec.Template.Spec.SecurityContext != nil {
		t.Error("the task's template was changed")
	}
}

func TestEveryPodPassesTheRestrictedStandard(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	plain := task()
	rich := task(func(t *v1alpha1.Task) {
		t.Spec.Repository.CredentialsSecretRef = &v1alpha1.NameReference{Name: "c"}
		s := &t.Spec.Template.Spec
		s.InitContainers = []corev1.Container{{Name: "fetch", Image: "i"}}
		s.Containers = append(s.Containers, corev1.Container{Name: "database", Image: "db", SecurityContext: &corev1.SecurityContext{
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"NET_RAW"}},
		}})
		s.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	})
	secrets := task(secretive)
	for _, request := range []resources.PodRequest{{Task: plain}, {Task: rich}, {Task: rich, PrepareOnly: true}, {Task: secrets}, {Task: secrets, PrepareOnly: true}} {
		pod := newPod(t, request)
		results := evaluator.EvaluatePod(psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}, &pod.ObjectMeta, &pod.Spec)
		if r := policy.AggregateCheckResults(results); !r.Allowed {
			t.Errorf("the pod is forbidden: %s", r.ForbiddenDetail())
		}
	}
}

func TestTemplatesThatCannotBeUsed(t *testing.T) {
	if err := resources.ValidateTemplate(task()); err != nil {
		t.Errorf("a good template is refused: %v", err)
	}
	for _, c := range builders.RefusedTemplates() {
		t.Run(c.Name, func(t *testing.T) {
			err := resources.ValidateTemplate(task(c.Break))
			if err == nil || !strings.HasPrefix(err.Error(), c.Sentence) {
				t.Errorf("the template is refused with %v, want %q", err, c.Sentence)
			}
		})
	}
}

func TestKubernetesOwnChecksRefuseWhatNoRuleCovers(t *testing.T) {
	err := resources.ValidateTemplate(task(func(t *v1alpha1.Task) {
		t.Spec.Template.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: "Relaxed"}}
	}))
	if err == nil {
		t.Fatal("the template is accepted")
	}
	for _, part := range []string{"violates the restricted Pod Security Standard", "seccompProfile"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error %q does not contain %q", err, part)
		}
	}
}

func TestThePolicySaysTheSame(t *testing.T) {
	text, err := os.ReadFile("../../config/admission/task-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range builders.RefusedTemplates() {
		sentence := resources.ValidateTemplate(task(c.Break)).Error()
		if !strings.Contains(string(text), "'"+strings.ReplaceAll(sentence, "'", "''")+"'") {
			t.Errorf("the admission policy does not have the sentence %q", sentence)
		}
	}
}

func TestSnapshotObjects(t *testing.T) {
	s := resources.NewSnapshot(task(), history.Snapshot{Ordinal: 7, Position: history.Position{Position: 350}})
	if s.Name != "tidy-up-snapshot-7" || *s.Spec.Position != 350 {
		t.Errorf("the object is %s, of position %d; want tidy-up-snapshot-7, of position 350", s.Name, *s.Spec.Position)
	}
	wantNumber(t, "uid-1", 7)(resources.SnapshotOrdinal(s))
	s.Labels[v1alpha1.LabelTaskUID] = "other"
	if _, _, ok := resources.SnapshotOrdinal(s); ok {
		t.Error("an object with another task's label is taken for one of the manager's")
	}
}

func TestClaim(t *testing.T) {
	claim := resources.NewClaim(task(), "")
	if size := claim.Spec.Resources.Requests.Storage().String(); claim.Name != "tidy-up-workspace" || size != "5Gi" {
		t.Errorf("the claim is %s, of %s; want tidy-up-workspace, of 5Gi", claim.Name, size)
	}
	if len(claim.OwnerReferences) != 1 {
		t.Errorf("the claim has %d owners, want the task", len(claim.OwnerReferences))
	}
	kept := resources.NewClaim(task(func(t *v1alpha1.Task) { t.Spec.Workspace.Retention = v1alpha1.WorkspaceRetain }), "")
	if len(kept.OwnerReferences) != 0 {
		t.Error("a claim with retention Retain is deleted with its task")
	}
}

func TestTheAccessModeOfAClaim(t *testing.T) {
	for name, test := range map[string]struct {
		ofTask         v1alpha1.WorkspaceAccessMode
		fallback, want corev1.PersistentVolumeAccessMode
	}{
		"set nowhere":             {want: corev1.ReadWriteOnce},
		"set by the installation": {fallback: corev1.ReadWriteOncePod, want: corev1.ReadWriteOncePod},
		"set by the task":         {ofTask: v1alpha1.WorkspaceReadWriteOncePod, want: corev1.ReadWriteOncePod},
		"set by both":             {ofTask: v1alpha1.WorkspaceReadWriteOnce, fallback: corev1.ReadWriteOncePod, want: corev1.ReadWriteOnce},
	} {
		claim := resources.NewClaim(task(func(t *v1alpha1.Task) { t.Spec.Workspace.AccessMode = test.ofTask }), test.fallback)
		if got := claim.Spec.AccessModes; len(got) != 1 || got[0] != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestCheckpointObjects(t *testing.T) {
	c := resources.NewCheckpoint(task(), "tidy-up-4", history.Checkpoint{Number: 4, Message: "a\x00b\nc" + strings.Repeat("€", 2000)})
	wantNumber(t, "uid-1", 4)(resources.CheckpointNumber(c))
	if !strings.HasPrefix(c.Spec.Message, `a\x00b`+"\nc€") || len([]rune(c.Spec.Message)) != 1024 {
		t.Errorf("the message is not escaped and truncated: %q", c.Spec.Message)
	}
	c.OwnerReferences[0].UID = types.UID("other")
	if _, _, ok := resources.CheckpointNumber(c); ok {
		t.Error("an object with another owner is taken for one of the manager's")
	}
	if got := resources.CheckpointNameOr(task(builders.WithUID("abcdefgh")), 4); got != "tidy-up-4-abcde" {
		t.Errorf("other name %q", got)
	}
}
