package resources_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func typed(kind v1alpha1.AgentType, command ...string) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.Agent.Type = kind
		c := &t.Spec.Template.Spec.Containers[0]
		c.Command, c.Args = command, nil
	}
}

func TestAnAgentOfAKnownTypeNeedsNoCommand(t *testing.T) {
	for kind, program := range map[v1alpha1.AgentType]string{
		v1alpha1.AgentClaudeCode: "claude", v1alpha1.AgentCodex: "codex", v1alpha1.AgentGeminiCLI: "gemini", v1alpha1.AgentOpenCode: "opencode", v1alpha1.AgentQwenCode: "qwen",
	} {
		t.Run(string(kind), func(t *testing.T) {
			if err := resources.ValidateTemplate(task(typed(kind))); err != nil {
				t.Error(err)
			}
			for given, want := range map[string]string{"": program, "/opt/agent": "/opt/agent"} {
				pod := newPod(t, resources.PodRequest{Task: task(typed(kind, strings.Fields(given)...))})
				got := named(t, pod.Spec.Containers, "agent").Command
				if !slices.Equal(got, []string{"/run/clew/bin/clew-daemon", "agent", "--program-words=1", "--", want}) {
					t.Errorf("command %q", got)
				}
			}
		})
	}
	unknown := task(typed("Abacus"))
	if _, err := resources.NewPod(resources.PodRequest{Task: unknown, Attempt: 1}, options()); err == nil {
		t.Error("a pod was built for an agent of an unknown type")
	}
}

func config(t *testing.T, pod *corev1.Pod) daemonapi.Config {
	t.Helper()
	value := env(named(t, pod.Spec.InitContainers, "prepare"), daemonapi.ConfigEnv).Value
	c, err := daemonapi.DecodeConfig(strings.ReplaceAll(value, "$$", "$"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// riskyByDefault are the risky calls of a task that names none.
func riskyByDefault() (patterns []daemonapi.ToolPattern) {
	for _, p := range v1alpha1.DefaultRiskyTools() {
		patterns = append(patterns, daemonapi.ToolPattern{Tool: p.Tool, Input: p.Input})
	}
	return patterns
}

func TestNoCallIsRiskyIfTheTaskSaysSo(t *testing.T) {
	request := resources.PodRequest{Attempt: 1, Task: task(func(t *v1alpha1.Task) { t.Spec.CheckpointPolicy.BeforeRiskyTools = []v1alpha1.RiskyToolPattern{} })}
	pod, err := resources.NewPod(request, options())
	if err != nil {
		t.Fatal(err)
	}
	if got := config(t, pod).Policy.RiskyTools; got != nil {
		t.Errorf("risky are %+v", got)
	}
}

func TestTheConfigurationHasTheAgentAndItsConversation(t *testing.T) {
	o := options()
	o.Prices = map[string]daemonapi.Price{"claude-": {Input: 3_000_000, Output: 15_000_000}}
	request := resources.PodRequest{Attempt: 1, Task: task(typed(v1alpha1.AgentClaudeCode), func(t *v1alpha1.Task) {
		t.Spec.Agent.Model = "claude-sonnet-4-5"
		t.Spec.CheckpointPolicy.BeforeRiskyTools = []v1alpha1.RiskyToolPattern{{Tool: "^Bash$", Input: `rm\s`}}
		t.Spec.Conversation = v1alpha1.ConversationPolicy{
			SnapshotEveryMessages: ptr.To[int32](25),
			Context:               v1alpha1.ContextLimits{Messages: ptr.To[int32](10), Summary: v1alpha1.ConversationExclude},
		}
	})}
	pod, err := resources.NewPod(request, o)
	if err != nil {
		t.Fatal(err)
	}
	c := config(t, pod)
	if c.AgentType != "ClaudeCode" || c.Model != "claude-sonnet-4-5" {
		t.Errorf("the agent is %s with model %q, want ClaudeCode with claude-sonnet-4-5", c.AgentType, c.Model)
	}
	if diff := cmp.Diff(o.Prices, c.Prices); diff != "" {
		t.Errorf("prices (-want +got):\n%s", diff)
	}
	if c.Policy.SnapshotEveryMessages != 25 || !slices.Equal(c.Policy.RiskyTools, []daemonapi.ToolPattern{{Tool: "^Bash$", Input: `rm\s`}}) {
		t.Errorf("policy: %+v", c.Policy)
	}
	if want := (daemonapi.ContextLimits{Messages: 10, ToolCalls: 100, ToolResultBytes: 2000, Bytes: 200000}); c.Context != want {
		t.Errorf("context: %+v", c.Context)
	}
}

// secretive makes a task whose agent gets Secrets in every possible way.
func secretive(t *v1alpha1.Task) {
	secret := func(name, key string, optional *bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: optional,
		}}
	}
	spec := &t.Spec.Template.Spec
	c := &spec.Containers[0]
	c.Env = []corev1.EnvVar{
		{Name: "COLOUR", Value: "blue"},
		{Name: "API_KEY", ValueFrom: secret("keys", "api", nil)},
		{Name: "OTHER_KEY", ValueFrom: secret("keys", "other", ptr.To(true))},
	}
	c.EnvFrom = []corev1.EnvFromSource{
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}},
		{Prefix: "X_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "many"}}},
	}
	spec.Volumes = []corev1.Volume{
		{Name: "ssh", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: "ssh", Items: []corev1.KeyToPath{{Key: "id", Path: "keys/id"}}, DefaultMode: ptr.To[int32](0o400),
		}}},
		{Name: "mixed", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "token"}}},
		}}}},
		{Name: "others", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "of-the-sidecar"}}},
		{Name: "plain", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "ssh", MountPath: "/ssh"}, {Name: "mixed", MountPath: "/mixed"}, {Name: "plain", MountPath: "/plain"}}
}

func TestContainersThatMaskGetTheAgentsSecrets(t *testing.T) {
	if err := resources.ValidateTemplate(task(secretive)); err != nil {
		t.Fatal(err)
	}
	pod := newPod(t, resources.PodRequest{Task: task(secretive)})
	for _, c := range []corev1.Container{
		named(t, pod.Spec.InitContainers, "prepare"), named(t, pod.Spec.InitContainers, "daemon"), named(t, pod.Spec.Containers, "agent"),
	} {
		for name, want := range map[string]corev1.SecretKeySelector{
			"CLEW_MASK_0": {LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}, Key: "api", Optional: ptr.To(false)},
			"CLEW_MASK_1": {LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}, Key: "other", Optional: ptr.To(true)},
		} {
			if diff := cmp.Diff(&corev1.EnvVarSource{SecretKeyRef: &want}, env(c, name).ValueFrom); diff != "" {
				t.Errorf("variable %s of the container %s (-want +got):\n%s", name, c.Name, diff)
			}
		}
		from := c.EnvFrom[len(c.EnvFrom)-1]
		if from.Prefix != "CLEW_MASK_FROM_0_" || from.SecretRef.Name != "many" {
			t.Errorf("the last envFrom of the container %s is %+v", c.Name, from)
		}
		for _, path := range []string{"/var/run/secrets/clew-mask/ssh", "/var/run/secrets/clew-mask/mixed"} {
			if !mounts(c)[path].ReadOnly {
				t.Errorf("the container %s has no read-only mount at %s: %+v", c.Name, path, mounts(c))
			}
		}
	}
	if got, want := len(pod.Spec.Volumes), 4+4+2; got != want {
		t.Errorf("the pod has %d volumes, want %d: the template's, Clew's, and two for masks", got, want)
	}
	for _, v := range pod.Spec.Volumes {
		if strings.HasPrefix(v.Name, "clew-mask-") && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.Secret == nil }) {
			t.Errorf("volume %s contains more than Secrets: %+v", v.Name, v.Projected)
		}
	}
}

func TestAPodWithoutAnAgentMasksTheSecretsThatStillExist(t *testing.T) {
	pod := newPod(t, resources.PodRequest{Task: task(secretive), PrepareOnly: true})
	c := pod.Spec.Containers[0]
	key := env(c, "CLEW_MASK_0").ValueFrom
	if key == nil {
		t.Fatal("the container has no variable CLEW_MASK_0")
	}
	if !*key.SecretKeyRef.Optional || !*c.EnvFrom[0].SecretRef.Optional {
		t.Errorf("it waits for a Secret: %+v %+v", key.SecretKeyRef, c.EnvFrom)
	}
	if mounts(c)["/var/run/secrets/clew-mask/ssh"].Name == "" {
		t.Errorf("the container has no mount for the masks of the volume ssh: %+v", mounts(c))
	}
	for _, v := range pod.Spec.Volumes {
		if strings.HasPrefix(v.Name, "clew-mask-") && !*v.Projected.Sources[0].Secret.Optional {
			t.Errorf("it waits for volume %+v", v)
		}
	}
}

// Neither the history store nor the volume may still have the records that the status knows of.
func TestTheConfigurationHasTheHistoryStoresLastRecord(t *testing.T) {
	seen := func(t *v1alpha1.Task) { t.Status.RecordSequence = 1000 }
	pod, err := resources.NewPod(resources.PodRequest{Attempt: 2, Task: task(seen)}, options())
	if err != nil {
		t.Fatal(err)
	}
	if c := config(t, pod); c.RecordSequence != 1000 {
		t.Errorf("the records continue after %d, want 1000", c.RecordSequence)
	}
}
