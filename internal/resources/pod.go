package resources

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/daemonapi"
)

const (
	// defaultGraceSeconds is the grace period of a pod whose template sets none.
	defaultGraceSeconds = 120
	// tokenSeconds is the lifetime of the pod's tokens.
	tokenSeconds = 3600
	// daemonWait is how long the daemon may take to be ready; the kubelet then starts it again.
	daemonWait = 2 * time.Minute
)

// Options are the same for every pod of an installation.
type Options struct {
	// DaemonImage is the image with the daemon.
	DaemonImage string
	// PullPolicy of DaemonImage; Kubernetes' own default when empty.
	PullPolicy corev1.PullPolicy
	// ServerURL is the base URL of the daemon gateway.
	ServerURL string
	// GitStoreURL is the base URL of the gitstore, without namespace and repository.
	GitStoreURL string
	// CABundle contains the PEM certificates of the authorities for both.
	CABundle string
	// Prices of models, in addition to those that the daemon knows.
	Prices map[string]daemonapi.Price
	// Prepare is the resources of the container prepare.
	Prepare corev1.ResourceRequirements
	// Daemon is the resources of the container daemon.
	Daemon corev1.ResourceRequirements
	// AccessMode of the volumes of tasks that name none; ReadWriteOnce if empty.
	AccessMode corev1.PersistentVolumeAccessMode
	// SpoolMargin is how many records daemons keep that the server already has.
	SpoolMargin daemonapi.SpoolMargin
}

// PodRequest describes a pod to build.
type PodRequest struct {
	// Task is the task that the pod belongs to.
	Task *v1alpha1.Task
	// Attempt is the number of the pod's attempt.
	Attempt int64
	// HighestCheckpoint is the highest number of a Checkpoint object of the task.
	HighestCheckpoint int64
	// PrepareOnly makes a pod that ends after prepare, without an agent.
	PrepareOnly bool
	// Operation is what prepare carries out; nil for none.
	Operation *daemonapi.Operation
	// Source is the resolved checkpoint of another task to start from; nil for none.
	Source *daemonapi.Source
	// Prompt replaces the task's prompt for the agent, if it is not empty.
	Prompt string
	// Answers are the answers that the agent is told to calls for which it was stopped.
	Answers []daemonapi.RequestAnswer
	// AvoidedNode is the node that the pod must not run on; "" for none.
	AvoidedNode string
	// VolumeReleased is true if the volume is new because the former one was released.
	VolumeReleased bool
	// Budgets are those that the task works under, with what is spent of them.
	Budgets []budget.Budget
	// Branches and Checkout are the branches of checkpoints that prepare looks after in the agent's
	// repository.
	Branches []daemonapi.Branch
	Checkout *daemonapi.Checkout
}

// NewPod returns the pod of an attempt. The template must have passed ValidateTemplate. It
// fails only if the configuration cannot be encoded or the agent's type is unknown.
func NewPod(request PodRequest, options Options) (*corev1.Pod, error) {
	pod, err := newPod(request, options)
	if err != nil {
		return nil, err
	}
	digest, err := PodDigest(request.Task)
	if err != nil {
		return nil, err
	}
	pod.Annotations[v1alpha1.AnnotationPodDigest] = digest
	return pod, nil
}

// newPod is NewPod without the digest.
func newPod(request PodRequest, options Options) (*corev1.Pod, error) {
	config, err := Config(request, options).Encode()
	if err != nil {
		return nil, err
	}
	task := request.Task
	pod := &corev1.Pod{
		ObjectMeta: podMeta(request),
		Spec:       *task.Spec.Template.Spec.DeepCopy(),
	}
	b := podBuilder{request: request, options: options, config: config, spec: &pod.Spec}
	b.masks = masksOf(*b.agent(), pod.Spec.Volumes, request.PrepareOnly)
	b.setPodDefaults()
	avoidNode(&pod.Spec, request.AvoidedNode)
	stayOnNode(&pod.Spec)
	if request.PrepareOnly {
		pod.Spec.Volumes = nil
	}
	b.addVolumes()
	if request.PrepareOnly {
		pod.Spec.InitContainers = nil
		pod.Spec.Containers = []corev1.Container{b.prepareContainer()}
	} else {
		if err := b.wrapAgent(); err != nil {
			return nil, err
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, b.prepareContainer(), b.daemonContainer())
	}
	b.restrictContainers()
	return pod, nil
}

// Config returns the configuration that the pod gets about its task.
func Config(request PodRequest, options Options) daemonapi.Config {
	task := request.Task
	config := daemonapi.Config{
		Namespace: task.Namespace,
		Task:      task.Name,
		TaskUID:   string(task.UID),
		Attempt:   request.Attempt,

		HighestCheckpoint: request.HighestCheckpoint,
		RecordSequence:    task.Status.RecordSequence,

		ServerURL:   options.ServerURL,
		CABundle:    options.CABundle,
		AgentType:   task.Spec.Agent.Type,
		Model:       task.Spec.Agent.Model,
		Context:     ContextLimits(task.Spec.Conversation.Context, nil),
		Prices:      options.Prices,
		StatePaths:  task.Spec.Agent.StatePaths,
		Operation:   request.Operation,
		Branches:    request.Branches,
		Checkout:    request.Checkout,
		Answers:     request.Answers,
		PrepareOnly: request.PrepareOnly,
		IdleSeconds: ptr.Deref(task.Spec.Agent.IdleSeconds, 0),
		Tools:       ToolsOf(task),
		Phases:      phasesOf(task),
		Source:      request.Source,
		SpoolMargin: options.SpoolMargin,

		VolumeReleased: request.VolumeReleased,
		Budgets:        request.Budgets,
		Policy: daemonapi.Policy{
			EveryToolCalls:          ptr.Deref(task.Spec.CheckpointPolicy.EveryToolCalls, 10),
			EverySeconds:            ptr.Deref(task.Spec.CheckpointPolicy.EverySeconds, 300),
			LeastIntervalSeconds:    ptr.Deref(task.Spec.CheckpointPolicy.LeastIntervalSeconds, 10),
			MaxFileBytes:            ptr.Deref(task.Spec.CheckpointPolicy.MaxFileBytes, 100<<20),
			RiskyTools:              riskyTools(task.Spec.CheckpointPolicy.BeforeRiskyTools),
			ApprovalDeadlineSeconds: ptr.Deref(task.Spec.CheckpointPolicy.ApprovalDeadlineSeconds, 86400),
			BeforeRun:               beforeRun(task),
			SnapshotEveryMessages:   int64(ptr.Deref(task.Spec.Conversation.SnapshotEveryMessages, 50)),
		},
	}
	origin := ""
	if r := task.Spec.Repository; r != nil {
		origin = r.URL
		config.Repository = &daemonapi.Repository{URL: r.URL, Ref: r.Ref}
		if r.CredentialsSecretRef != nil {
			config.Repository.CredentialsSecret = r.CredentialsSecretRef.Name
		}
	}
	config.GitStoreURL = strings.TrimRight(options.GitStoreURL, "/") +
		"/" + task.Namespace + "/" + daemonapi.RepositoryKey(origin) + ".git"
	return config
}

// phasesOf returns the phases of the contract that a supervisor leads; none for a worker.
func phasesOf(task *v1alpha1.Task) []string {
	if task.Spec.Role != v1alpha1.RoleSupervisor {
		return nil
	}
	return task.Spec.PhasesOf()
}

// beforeRun reports whether a checkpoint is taken before the agent is started. That of a supervisor is where
// its first phase begins, and begins again.
func beforeRun(task *v1alpha1.Task) bool {
	return task.Spec.CheckpointPolicy.BeforeRun == v1alpha1.BeforeRunAlways || task.Spec.Role == v1alpha1.RoleSupervisor
}

// ConfigOf returns the configuration that a pod has got about its task, and whether it has any.
func ConfigOf(pod *corev1.Pod) (daemonapi.Config, bool) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, env := range c.Env {
			if c.Name == daemonapi.PrepareContainer && env.Name == daemonapi.ConfigEnv {
				config, err := daemonapi.DecodeConfig(strings.ReplaceAll(env.Value, "$$", "$"))
				return config, err == nil
			}
		}
	}
	return daemonapi.Config{}, false
}

// ContextLimits returns each limit from limits, or else from otherwise, or else the default
// that the schema documents.
func ContextLimits(limits v1alpha1.ContextLimits, otherwise *v1alpha1.ContextLimits) daemonapi.ContextLimits {
	if otherwise == nil {
		otherwise = &v1alpha1.ContextLimits{}
	}
	first := func(a, b *int32, or int32) int32 {
		if a != nil {
			return *a
		}
		return ptr.Deref(b, or)
	}
	return daemonapi.ContextLimits{
		Messages:        first(limits.Messages, otherwise.Messages, 200),
		ToolCalls:       first(limits.ToolCalls, otherwise.ToolCalls, 100),
		ToolResultBytes: first(limits.ToolResultBytes, otherwise.ToolResultBytes, 2000),
		Summary:         cmp.Or(limits.Summary, otherwise.Summary, v1alpha1.ConversationInclude) == v1alpha1.ConversationInclude,
		Bytes:           first(limits.Bytes, otherwise.Bytes, 200000),
	}
}

// riskyTools returns the patterns in the daemon's form.
func riskyTools(patterns []v1alpha1.RiskyToolPattern) []daemonapi.ToolPattern {
	if patterns == nil {
		patterns = v1alpha1.DefaultRiskyTools()
	}
	var out []daemonapi.ToolPattern
	for _, p := range patterns {
		out = append(out, daemonapi.ToolPattern{Tool: p.Tool, Input: p.Input, Action: p.Action, Message: p.Message})
	}
	return out
}

// podMeta returns the pod's metadata: the template's, with Clew's labels and annotations.
func podMeta(request PodRequest) metav1.ObjectMeta {
	task := request.Task
	labels := maps.Clone(task.Spec.Template.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, Labels(task))
	labels[v1alpha1.LabelAttempt] = strconv.FormatInt(request.Attempt, 10)
	annotations := maps.Clone(task.Spec.Template.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationGeneration] = strconv.FormatInt(task.Generation, 10)
	if _, ok := annotations["kubectl.kubernetes.io/default-container"]; !ok && !request.PrepareOnly {
		annotations["kubectl.kubernetes.io/default-container"] = v1alpha1.AgentContainer
	}
	return metav1.ObjectMeta{
		Namespace:       task.Namespace,
		Name:            PodName(task.Name, request.Attempt),
		Labels:          labels,
		Annotations:     annotations,
		OwnerReferences: []metav1.OwnerReference{Owner(task)},
	}
}

// podBuilder adds Clew's parts to a pod's spec.
type podBuilder struct {
	request PodRequest
	options Options
	config  string
	spec    *corev1.PodSpec
	masks   masks
}

// agent returns the container that runs the agent.
func (b *podBuilder) agent() *corev1.Container {
	i := slices.IndexFunc(b.spec.Containers, func(c corev1.Container) bool { return c.Name == v1alpha1.AgentContainer })
	return &b.spec.Containers[i]
}

// setPodDefaults sets the fields of the pod that are Clew's, and those left out.
func (b *podBuilder) setPodDefaults() {
	b.spec.RestartPolicy = corev1.RestartPolicyNever
	b.spec.ServiceAccountName = ServiceAccount
	b.spec.DeprecatedServiceAccount = ""
	b.spec.AutomountServiceAccountToken = ptr.To(false)
	b.spec.EnableServiceLinks = ptr.To(false)
	if b.spec.TerminationGracePeriodSeconds == nil {
		b.spec.TerminationGracePeriodSeconds = ptr.To[int64](defaultGraceSeconds)
	}
	b.restrictPod()
}

// addVolumes adds Clew's volumes.
func (b *podBuilder) addVolumes() {
	volumes := []corev1.Volume{
		{Name: workspaceVolume, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: ClaimOf(b.request.Task)},
		}},
		{Name: runVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: scratchVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: tokenVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				token(daemonapi.ServerAudience, daemonapi.ServerTokenFile),
				token(daemonapi.GitStoreAudience, daemonapi.GitStoreTokenFile),
			},
		}}},
	}
	if v := b.repositoryVolume(); v != nil {
		volumes = append(volumes, *v)
	}
	b.spec.Volumes = slices.Concat(b.spec.Volumes, volumes, b.masks.volumes)
}

// repositoryVolume returns the volume with the repository's credentials; nil for none. The
// Secret is optional, so that the container can report that it is missing: its folder then
// exists and is empty.
func (b *podBuilder) repositoryVolume() *corev1.Volume {
	secret := b.credentials()
	if secret == "" {
		return nil
	}
	return &corev1.Volume{Name: repositoryVolume, VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: secret, Optional: ptr.To(true), DefaultMode: ptr.To[int32](0o400)},
	}}
}

// token returns the source of a token for one audience.
func token(audience, path string) corev1.VolumeProjection {
	return corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
		Audience: audience, ExpirationSeconds: ptr.To[int64](tokenSeconds), Path: path,
	}}
}

// credentials returns the name of the Secret with the repository's credentials; "" for none.
func (b *podBuilder) credentials() string {
	if r := b.request.Task.Spec.Repository; r != nil && r.CredentialsSecretRef != nil {
		return r.CredentialsSecretRef.Name
	}
	return ""
}

// prepareContainer returns the container prepare.
func (b *podBuilder) prepareContainer() corev1.Container {
	mounts := []corev1.VolumeMount{
		{Name: workspaceVolume, MountPath: daemonapi.VolumePath},
		{Name: runVolume, MountPath: daemonapi.RunPath},
		{Name: tokenVolume, MountPath: daemonapi.TokenPath, ReadOnly: true},
		{Name: scratchVolume, MountPath: "/tmp", SubPath: daemonapi.PrepareContainer},
	}
	if b.credentials() != "" {
		mounts = append(mounts, corev1.VolumeMount{Name: repositoryVolume, MountPath: daemonapi.RepositoryPath, ReadOnly: true})
	}
	c := corev1.Container{
		Name:            daemonapi.PrepareContainer,
		Image:           b.options.DaemonImage,
		ImagePullPolicy: b.options.PullPolicy,
		Command:         []string{"clew-daemon", "prepare"},
		// prepare records the prompt as the first message.
		Env:          []corev1.EnvVar{literal(daemonapi.ConfigEnv, b.config), podUID(), b.prompt(false)},
		VolumeMounts: mounts,
		Resources:    b.options.Prepare,
		// If prepare could not write its result, the end of its log takes its place.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext:          ownSecurity(),
	}
	b.masks.addTo(&c)
	return c
}

// daemonContainer returns the container daemon.
func (b *podBuilder) daemonContainer() corev1.Container {
	c := corev1.Container{
		Name:            daemonapi.DaemonContainer,
		Image:           b.options.DaemonImage,
		ImagePullPolicy: b.options.PullPolicy,
		Command:         []string{"clew-daemon", "run"},
		Env:             []corev1.EnvVar{literal(daemonapi.ConfigEnv, b.config), podUID()},
		RestartPolicy:   ptr.To(corev1.ContainerRestartPolicyAlways),
		VolumeMounts: []corev1.VolumeMount{
			{Name: workspaceVolume, MountPath: daemonapi.WorktreePath, SubPath: "worktree"},
			{Name: workspaceVolume, MountPath: daemonapi.HomePath, SubPath: "home"},
			{Name: workspaceVolume, MountPath: daemonapi.StatePath, SubPath: "clew"},
			{Name: runVolume, MountPath: daemonapi.RunPath},
			{Name: tokenVolume, MountPath: daemonapi.TokenPath, ReadOnly: true},
			{Name: scratchVolume, MountPath: "/tmp", SubPath: daemonapi.DaemonContainer},
		},
		Resources: b.options.Daemon,
		// The kubelet starts the agent once this hook has returned. A startup probe would gate it
		// too, but is asked once a second only.
		Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{
			Exec: &corev1.ExecAction{Command: []string{daemonapi.ShimPath, "ready", "--wait=" + daemonWait.String()}},
		}},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext:          ownSecurity(),
	}
	b.masks.addTo(&c)
	return c
}

// wrapAgent makes the shim start the user's agent, with Clew's environment, worktree and
// home. The command may be left out for an agent type that Clew knows.
func (b *podBuilder) wrapAgent() error {
	container := b.agent()
	command := container.Command
	if len(command) == 0 {
		known, err := agent.For(b.request.Task.Spec.Agent.Type)
		if err != nil {
			return err
		}
		command = []string{known.Executable()}
	}
	container.Command = append([]string{daemonapi.ShimPath, "agent", "--program-words=" + strconv.Itoa(len(command)), "--"}, command...)
	container.Env = append(b.agentEnv(), container.Env...)
	if container.WorkingDir == "" {
		container.WorkingDir = daemonapi.WorktreePath
	}
	container.VolumeMounts = append(container.VolumeMounts,
		corev1.VolumeMount{Name: workspaceVolume, MountPath: daemonapi.WorktreePath, SubPath: "worktree"},
		corev1.VolumeMount{Name: workspaceVolume, MountPath: daemonapi.HomePath, SubPath: "home"},
		corev1.VolumeMount{Name: runVolume, MountPath: daemonapi.RunPath, ReadOnly: true},
	)
	b.masks.addTo(container)
	return nil
}

// agentEnv returns the environment variables that Clew sets for the agent.
func (b *podBuilder) agentEnv() []corev1.EnvVar {
	task := b.request.Task
	resumed := b.request.Attempt > 1 ||
		(task.Spec.StartFrom != nil && task.Spec.StartFrom.Conversation != v1alpha1.ConversationExclude)
	op := b.request.Operation
	if op != nil && op.Rewind != nil && op.Rewind.Anew {
		resumed = false
	}
	env := []corev1.EnvVar{
		b.prompt(true),
		literal("CLEW_TASK", task.Name),
		literal("CLEW_ATTEMPT", strconv.FormatInt(b.request.Attempt, 10)),
		literal("CLEW_CONVERSATION", daemonapi.ConversationPath),
		literal("CLEW_RESUMED", strconv.FormatBool(resumed)),
		literal("HOME", daemonapi.HomePath),
	}
	if op != nil && op.AdditionalContext != "" {
		env = append(env, literal("CLEW_ADDITIONAL_CONTEXT", op.AdditionalContext))
	}
	return env
}

// prompt returns the variable with the task's prompt. For the agent, the prompt of the last
// resume replaces it.
func (b *podBuilder) prompt(ofResume bool) corev1.EnvVar {
	spec := &b.request.Task.Spec
	env := corev1.EnvVar{Name: daemonapi.PromptEnv}
	switch {
	case ofResume && b.request.Prompt != "":
		return literal(env.Name, b.request.Prompt)
	case spec.Prompt != nil:
		return literal(env.Name, *spec.Prompt)
	case spec.PromptFrom != nil && spec.PromptFrom.ConfigMapKeyRef != nil:
		ref := spec.PromptFrom.ConfigMapKeyRef
		env.ValueFrom = &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: ref.Name}, Key: ref.Key,
		}}
	case spec.PromptFrom != nil && spec.PromptFrom.SecretKeyRef != nil:
		ref := spec.PromptFrom.SecretKeyRef
		env.ValueFrom = &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: ref.Name}, Key: ref.Key,
		}}
	}
	return env
}

// podUID returns the variable with the UID of the pod.
func podUID() corev1.EnvVar {
	return corev1.EnvVar{Name: daemonapi.PodUIDEnv, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"},
	}}
}

// literal returns a variable with exactly this value: the kubelet expands $(NAME) in values
// unless the dollar is doubled.
func literal(name, value string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, Value: strings.ReplaceAll(value, "$", "$$")}
}
