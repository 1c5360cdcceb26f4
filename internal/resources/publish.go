package resources

import (
	"cmp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// publishSeconds is how long a pod that publishes may run.
const publishSeconds = 1800

// PublisherRequest describes a pod that publishes a checkpoint. The task has a repository, and
// spec.publish unless Branch is set.
type PublisherRequest struct {
	Task *v1alpha1.Task
	// Branch is the branch of a Checkpoint that is published in place of the task's work; nil
	// for that.
	Branch *BranchRequest
	// Otherwise is how a branch is published if the task's spec does not say: as its parent's says; nil for
	// the defaults of the schema.
	Otherwise *v1alpha1.Publish
	// Number of the pod among those that publish the task's work.
	Number int64
	// Checkpoint is the number of the checkpoint.
	Checkpoint int64
	// Replaces is the commit that the task published to the same ref last; empty for none.
	Replaces string
	// Onto is what that commit kept of others; empty for nothing.
	Onto string
	// Earlier are other pushes of the task that the ref may still have.
	Earlier []daemonapi.OwnPush
	// Tries, Announced and Unreported are those of the pod's configuration.
	Tries      []int64
	Announced  []daemonapi.OwnPush
	Unreported []daemonapi.OwnPush
}

// BranchRequest is a branch of a Checkpoint that is pushed to the task's repository.
type BranchRequest struct {
	// Checkpoint is the object, which owns the pod.
	Checkpoint *v1alpha1.Checkpoint
	Branch     v1alpha1.CheckpointBranch
}

// name returns the name of the pod.
func (r PublisherRequest) name() string {
	if r.Branch == nil {
		return PublisherName(r.Task.Name, r.Number)
	}
	return BranchPublisherName(r.Branch.Checkpoint, r.Branch.Branch.Name, r.Number)
}

// owner returns what the pod is deleted with.
func (r PublisherRequest) owner() metav1.OwnerReference {
	if r.Branch == nil {
		return Owner(r.Task)
	}
	owner := Owner(r.Task)
	owner.Kind, owner.Name, owner.UID = "Checkpoint", r.Branch.Checkpoint.Name, r.Branch.Checkpoint.UID
	owner.BlockOwnerDeletion = nil
	return owner
}

// publish returns how the checkpoint is published: as the task's spec says, or its parent's, and
// otherwise by the defaults of the schema.
func (r PublisherRequest) publish() v1alpha1.Publish {
	if r.Branch == nil {
		return *r.Task.Spec.Publish
	}
	how := ptr.Deref(cmp.Or(r.Task.Spec.Publish, r.Otherwise), v1alpha1.Publish{})
	b := r.Branch.Branch
	how.Branch, how.OnDiverged, how.ApprovedCommit = b.Name, b.OnDiverged, b.ApprovedCommit
	return how
}

// setting names the part of a spec that says what is published.
func (r PublisherRequest) setting() string {
	if r.Branch == nil {
		return "publish"
	}
	return "branches[" + r.Branch.Branch.Name + "]"
}

// PublishRef returns the full name of the ref that spec.publish.branch names.
func PublishRef(branch string) string {
	if strings.HasPrefix(branch, "refs/") {
		return branch
	}
	return "refs/heads/" + branch
}

// NewPublisher returns the pod that publishes a checkpoint. It is scheduled and reaches the
// network as the template says. It has the credentials of the repository and a token for the
// gitstore, and neither a container nor a volume of the task. It fails only if the
// configuration cannot be encoded.
func NewPublisher(request PublisherRequest, options Options) (*corev1.Pod, error) {
	config, err := publishConfig(request, options).Encode()
	if err != nil {
		return nil, err
	}
	task := request.Task
	labels := Labels(task)
	labels[v1alpha1.LabelPublication] = strconv.FormatInt(request.Number, 10)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: task.Namespace, Name: request.name(),
			Labels: labels, OwnerReferences: []metav1.OwnerReference{request.owner()},
		},
		Spec: *task.Spec.Template.Spec.DeepCopy(),
	}
	b := podBuilder{request: PodRequest{Task: task}, options: options, spec: &pod.Spec}
	b.setPodDefaults()
	b.spec.TerminationGracePeriodSeconds = ptr.To[int64](10)
	b.spec.SchedulingGates = nil // of the agent's pods; the labels with which it would be queued are not there
	b.spec.ActiveDeadlineSeconds = ptr.To[int64](publishSeconds)
	b.spec.InitContainers, b.spec.EphemeralContainers = nil, nil
	b.spec.ResourceClaims, b.spec.Resources = nil, nil
	b.spec.Volumes = b.publisherVolumes()
	b.spec.Containers = []corev1.Container{b.publishContainer(config)}
	b.restrictContainers()
	return pod, nil
}

// publishConfig returns the configuration of a pod that publishes.
func publishConfig(request PublisherRequest, options Options) daemonapi.PublishConfig {
	task, spec := request.Task, request.publish()
	common := Config(PodRequest{Task: task}, options)
	protected := spec.ProtectedPaths
	if protected == nil {
		protected = v1alpha1.DefaultProtectedPaths()
	}
	author := ptr.Deref(spec.Author, v1alpha1.CommitAuthor{Name: "Clew", Email: "noreply@clew.dev"})
	return daemonapi.PublishConfig{
		Namespace: task.Namespace, Task: task.Name, TaskUID: string(task.UID), Checkpoint: request.Checkpoint,
		GitStoreURL: common.GitStoreURL, CABundle: common.CABundle, Repository: *common.Repository,
		Ref: PublishRef(spec.Branch), Replaces: request.Replaces, Onto: request.Onto, Earlier: request.Earlier,
		Tries: request.Tries, Announce: true, Announced: request.Announced, Unreported: request.Unreported,
		Uncommitted: spec.Uncommitted != v1alpha1.PublishIgnore,
		Message:     cmp.Or(strings.TrimSpace(spec.Message), "Work of the Clew task "+task.Name),
		AuthorName:  author.Name, AuthorEmail: author.Email,
		Force: spec.OnDiverged == v1alpha1.DivergedForceWithLease, PushOptions: spec.PushOptions,
		ProtectedPaths: protected, ApprovedCommit: spec.ApprovedCommit, Setting: request.setting(),
	}
}

// publisherVolumes returns the volumes of a pod that publishes.
func (b *podBuilder) publisherVolumes() []corev1.Volume {
	volumes := []corev1.Volume{
		{Name: scratchVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: tokenVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{token(daemonapi.GitStoreAudience, daemonapi.GitStoreTokenFile)},
		}}},
	}
	if v := b.repositoryVolume(); v != nil {
		volumes = append(volumes, *v)
	}
	return volumes
}

// publishContainer returns the container publish.
func (b *podBuilder) publishContainer(config string) corev1.Container {
	mounts := []corev1.VolumeMount{
		{Name: tokenVolume, MountPath: daemonapi.TokenPath, ReadOnly: true},
		{Name: scratchVolume, MountPath: "/tmp"},
	}
	if b.credentials() != "" {
		mounts = append(mounts, corev1.VolumeMount{Name: repositoryVolume, MountPath: daemonapi.RepositoryPath, ReadOnly: true})
	}
	return corev1.Container{
		Name:            daemonapi.PublishContainer,
		Image:           b.options.DaemonImage,
		ImagePullPolicy: b.options.PullPolicy,
		Command:         []string{"clew-daemon", "publish"},
		Env:             []corev1.EnvVar{literal(daemonapi.PublishEnv, config)},
		VolumeMounts:    mounts,
		Resources:       b.options.Prepare,
		// If it could not write its result, the end of its log takes its place.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext:          ownSecurity(),
	}
}
