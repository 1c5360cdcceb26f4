package resources_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
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
	if owner.Kind != "Task" || owner.UID != "uid-1" || !*owner.Controller {
		t.Errorf("owner %+v", owner)
	}
	if resources.Attempt(pod) != 3 || !resources.IsOf(pod, task()) {
		t.Error("the labels do not read back")
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
			if m.Name == "clew-token" || m.Name == "clew-repository" || m.SubPath == "clew" || (m.Name == "clew-workspace" && m.SubPath == "") {
				t.Errorf("container %s mounts %+v", name, m)
			}
		}
		if env(c, daemonapi.ConfigEnv).Name != "" {
			t.Errorf("container %s is told the configuration", name)
		}
	}
	agent := mounts(named(t, pod.Spec.Containers, "agent"))
	if !agent["/run/clew"].ReadOnly || agent["/workspace"].SubPath != "worktree" || agent["/home/agent"].SubPath != "home" {
		t.Errorf("mounts of the agent: %+v", agent)
	}
	if *pod.Spec.AutomountServiceAccountToken || pod.Spec.ServiceAccountName != "clew-task" {
		t.Error("the pod has a service account of consequence")
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
	prepare, daemon := mounts(named(t, pod.Spec.InitContainers, "prepare")), mounts(named(t, pod.Spec.InitContainers, "daemon"))
	if prepare["/volume"].SubPath != "" || prepare["/var/run/secrets/clew-repository"].Name == "" || prepare["/var/run/secrets/clew"].Name == "" {
		t.Errorf("mounts of prepare: %+v", prepare)
	}
	if daemon["/var/lib/clew"].SubPath != "clew" || daemon["/var/run/secrets/clew-repository"].Name != "" || daemon["/workspace"].SubPath != "worktree" {
		t.Errorf("mounts of the daemon: %+v", daemon)
	}
	d := named(t, pod.Spec.InitContainers, "daemon")
	if *d.RestartPolicy != corev1.ContainerRestartPolicyAlways || d.StartupProbe == nil {
		t.Error("the daemon is no native sidecar with a startup probe")
	}
	for _, v := range pod.Spec.Volumes {
		if v.Name == "clew-repository" && !*v.Secret.Optional {
			t.Error("a missing Secret would hold the pod up instead of being reported")
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

func TestConfigTellsThePodWhatToDo(t *testing.T) {
	operation := &daemonapi.Operation{Kind: daemonapi.OperationRewind, ID: "back", Checkpoint: 2}
	source := &daemonapi.Source{TaskUID: "uid-0", Checkpoint: 7}
	private := func(t *v1alpha1.Task) {
		t.Spec.Repository.CredentialsSecretRef = &v1alpha1.NameReference{Name: "credentials"}
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
		if c.Namespace != "team" || c.Task != "tidy-up" || c.TaskUID != "uid-1" || c.Attempt != 2 || c.CABundle != "PEM" {
			t.Errorf("config %+v", c)
		}
		if *c.Operation != *operation || *c.Source != *source || c.Policy.EveryToolCalls != 10 || c.Repository.CredentialsSecret != "credentials" {
			t.Errorf("config %+v", c)
		}
		if want := "https://gitstore:8443/team/" + daemonapi.RepositoryKey("https://git.example.com/team/project.git") + ".git"; c.GitStoreURL != want {
			t.Errorf("gitstore URL %q, want %q", c.GitStoreURL, want)
		}
	}
}

func TestAPodThatOnlyPrepares(t *testing.T) {
	pod := newPod(t, resources.PodRequest{PrepareOnly: true, Task: task(func(t *v1alpha1.Task) {
		t.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "gone", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "gone"}},
		}}}
	})})
	if len(pod.Spec.InitContainers) != 0 || len(pod.Spec.Containers) != 1 || pod.Spec.Containers[0].Name != "prepare" {
		t.Errorf("containers %+v", pod.Spec.Containers)
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
			if ref := env(c, "CLEW_PROMPT").ValueFrom; ref == nil || ref.SecretKeyRef.Name != "s" || ref.SecretKeyRef.Key != "k" {
				t.Errorf("container %s: %+v", c.Name, ref)
			}
		}
	})
	t.Run("of a resume are the agent's alone", func(t *testing.T) {
		pod := newPod(t, resources.PodRequest{Task: task(), Attempt: 2, Prompt: "go on"})
		if got := env(named(t, pod.Spec.Containers, "agent"), "CLEW_PROMPT").Value; got != "go on" {
			t.Errorf("the agent is asked %q", got)
		}
		if got := env(named(t, pod.Spec.InitContainers, "prepare"), "CLEW_PROMPT").Value; got != "Tidy up." {
			t.Errorf("prepare is told %q", got)
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
	if pod.Labels["team"] != "a" || pod.Spec.NodeSelector["disk"] != "fast" || *pod.Spec.TerminationGracePeriodSeconds != 30 ||
		agent.WorkingDir != "/workspace/sub" || mounts(agent)["/home/agent/.cache"].Name != "cache" || env(agent, "COLOUR").Value != "blue" {
		t.Errorf("%+v", pod.Spec)
	}
	if s := pod.Spec.SecurityContext; *s.RunAsUser != 1234 || *s.RunAsGroup != 1234 || *s.FSGroup != 1234 {
		t.Errorf("not everybody runs as the user that was asked for: %+v", s)
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

func TestTemplatesThatCannotBeKept(t *testing.T) {
	if err := resources.ValidateTemplate(task()); err != nil {
		t.Errorf("a good template is refused: %v", err)
	}
	for _, c := range builders.RefusedTemplates() {
		t.Run(c.Name, func(t *testing.T) {
			err := resources.ValidateTemplate(task(c.Break))
			if err == nil || !strings.HasPrefix(err.Error(), c.Sentence) {
				t.Errorf("got %v, want %q", err, c.Sentence)
			}
		})
	}
}

func TestKubernetesOwnChecksRefuseWhatNoRuleKnows(t *testing.T) {
	err := resources.ValidateTemplate(task(func(t *v1alpha1.Task) {
		t.Spec.Template.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: "Relaxed"}}
	}))
	if err == nil || !strings.Contains(err.Error(), "breaks the restricted Pod Security Standard") || !strings.Contains(err.Error(), "seccompProfile") {
		t.Errorf("got %v", err)
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
			t.Errorf("the admission policy does not say %q", sentence)
		}
	}
}

func TestSnapshotObjects(t *testing.T) {
	s := resources.NewSnapshot(task(), history.Snapshot{Ordinal: 7, Position: history.Position{Position: 350}})
	uid, ordinal, ok := resources.SnapshotOrdinal(s)
	if s.Name != "tidy-up-snapshot-7" || *s.Spec.Position != 350 || uid != "uid-1" || ordinal != 7 || !ok {
		t.Errorf("%+v", s)
	}
	s.Labels[v1alpha1.LabelTaskUID] = "other"
	if _, _, ok := resources.SnapshotOrdinal(s); ok {
		t.Error("a label alone makes an object ours")
	}
}

func TestClaim(t *testing.T) {
	claim := resources.NewClaim(task(), "")
	if claim.Name != "tidy-up-workspace" || len(claim.OwnerReferences) != 1 || claim.Spec.Resources.Requests.Storage().String() != "5Gi" {
		t.Errorf("%+v", claim)
	}
	kept := resources.NewClaim(task(func(t *v1alpha1.Task) { t.Spec.Workspace.Retention = v1alpha1.WorkspaceRetain }), "")
	if len(kept.OwnerReferences) != 0 {
		t.Error("a claim that is to be retained goes with its task")
	}
}

func TestTheAccessModeOfAClaim(t *testing.T) {
	for name, test := range map[string]struct {
		asked          v1alpha1.WorkspaceAccessMode
		fallback, want corev1.PersistentVolumeAccessMode
	}{
		"nobody says":             {want: corev1.ReadWriteOnce},
		"the installation says":   {fallback: corev1.ReadWriteOncePod, want: corev1.ReadWriteOncePod},
		"the task says":           {asked: v1alpha1.WorkspaceReadWriteOncePod, want: corev1.ReadWriteOncePod},
		"the task says otherwise": {asked: v1alpha1.WorkspaceReadWriteOnce, fallback: corev1.ReadWriteOncePod, want: corev1.ReadWriteOnce},
	} {
		claim := resources.NewClaim(task(func(t *v1alpha1.Task) { t.Spec.Workspace.AccessMode = test.asked }), test.fallback)
		if got := claim.Spec.AccessModes; len(got) != 1 || got[0] != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestCheckpointObjects(t *testing.T) {
	c := resources.NewCheckpoint(task(), "tidy-up-4", history.Checkpoint{Number: 4, Message: "a\x00b\nc" + strings.Repeat("€", 2000)})
	uid, number, ok := resources.CheckpointNumber(c)
	if uid != "uid-1" || number != 4 || !ok {
		t.Errorf("reads back as %s %d %v", uid, number, ok)
	}
	if !strings.HasPrefix(c.Spec.Message, `a\x00b`+"\nc€") || len([]rune(c.Spec.Message)) != 1024 {
		t.Errorf("message %q", c.Spec.Message)
	}
	c.OwnerReferences[0].UID = types.UID("other")
	if _, _, ok := resources.CheckpointNumber(c); ok {
		t.Error("an object that names another owner is taken for one of ours")
	}
	if got := resources.CheckpointNameOr(task(builders.WithUID("abcdefgh")), 4); got != "tidy-up-4-abcde" {
		t.Errorf("other name %q", got)
	}
}
