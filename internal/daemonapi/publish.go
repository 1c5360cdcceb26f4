package daemonapi

import (
	"encoding/json"
	"fmt"
	"strings"
)

// PublishContainer is the only container of a pod that publishes.
const PublishContainer = "publish"

// PublishEnv is the environment variable that holds a PublishConfig as JSON.
const PublishEnv = "CLEW_PUBLISH"

// PublishConfig is the configuration of the pod that publishes a checkpoint. It contains no
// secret.
type PublishConfig struct {
	// Namespace, Task and TaskUID name the task.
	Namespace string `json:"namespace"`
	Task      string `json:"task"`
	TaskUID   string `json:"taskUID"`
	// Checkpoint is the number of the checkpoint to publish.
	Checkpoint int64 `json:"checkpoint"`
	// GitStoreURL is the URL of the task's repository in the gitstore, and CABundle the PEM
	// certificates that sign it.
	GitStoreURL string `json:"gitStoreURL"`
	CABundle    string `json:"caBundle,omitempty"`
	// Repository is the origin that is pushed to.
	Repository Repository `json:"repository"`
	// Ref is the full name of the ref that is pushed to.
	Ref string `json:"ref"`
	// Uncommitted is set if what the agent left uncommitted is published as well, with this
	// message and author.
	Uncommitted bool   `json:"uncommitted,omitempty"`
	Message     string `json:"message,omitempty"`
	AuthorName  string `json:"authorName,omitempty"`
	AuthorEmail string `json:"authorEmail,omitempty"`
	// Replaces is the commit that the task published to Ref last; empty for none.
	Replaces string `json:"replaces,omitempty"`
	// Onto is the Onto of that push's result.
	Onto string `json:"onto,omitempty"`
	// Earlier are other pushes of the task that Ref may still have: the stores that know of them
	// may be older copies.
	Earlier []OwnPush `json:"earlier,omitempty"`
	// Tries are the checkpoints that pods were started for, this one among them, which may have pushed
	// to Ref without anybody having learned of it.
	Tries []int64 `json:"tries,omitempty"`
	// Announce is set if a push has to be announced first that nobody could recognise later, and
	// Announced are those that were. Unreported are those that pods before this one may have made:
	// the others have reported that they pushed nothing.
	Announce   bool      `json:"announce,omitempty"`
	Announced  []OwnPush `json:"announced,omitempty"`
	Unreported []OwnPush `json:"unreported,omitempty"`
	// Force is set if commits of others may be discarded.
	Force bool `json:"force,omitempty"`
	// PushOptions are git's.
	PushOptions []string `json:"pushOptions,omitempty"`
	// ProtectedPaths are the patterns of files whose change is not published, unless the commit
	// is ApprovedCommit.
	ProtectedPaths []string `json:"protectedPaths,omitempty"`
	ApprovedCommit string   `json:"approvedCommit,omitempty"`
	// Setting is how messages name the part of the spec that says what is published, such as
	// publish.
	Setting string `json:"setting,omitempty"`
}

// OwnPush is a push of the task to its origin.
type OwnPush struct {
	// Commit was pushed.
	Commit string `json:"commit"`
	// Onto is the Onto of its result.
	Onto string `json:"onto,omitempty"`
}

// PublishResult is the termination message of the container publish, as JSON of at most 4096
// bytes.
type PublishResult struct {
	// Reason is Published, or why not: a reason constant of v1alpha1. PushAnnounced announces a
	// push of Commit that keeps Onto, which another pod may make once that is on record.
	Reason string `json:"reason"`
	// Message is a sentence for users; empty if it was published.
	Message string `json:"message,omitempty"`
	// Ref is the ref that was pushed to.
	Ref string `json:"ref,omitempty"`
	// Commit is the commit that was published, or would have been.
	Commit string `json:"commit,omitempty"`
	// Already is set if the ref had the commit before.
	Already bool `json:"already,omitempty"`
	// Onto is the newest commit in the history of Commit that others have pushed to Ref;
	// empty for none.
	Onto string `json:"onto,omitempty"`
	// Answer is what the origin's hooks printed.
	Answer string `json:"answer,omitempty"`
	// NotPushed is set if it is certain that the pod has pushed nothing.
	NotPushed bool `json:"notPushed,omitempty"`
	// Retryable is set if another try may succeed without anybody's help.
	Retryable bool `json:"retryable,omitempty"`
	// Protected are the first protected files that would be changed.
	Protected []string `json:"protected,omitempty"`
}

// Encode renders the configuration for PublishEnv.
func (c PublishConfig) Encode() (string, error) {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(c); err != nil {
		return "", fmt.Errorf("encode the configuration of the pod that publishes: %w", err)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// DecodePublishConfig decodes what Encode returned. A configuration without a task, a
// checkpoint or a ref is an error.
func DecodePublishConfig(s string) (PublishConfig, error) {
	var c PublishConfig
	if err := json.Unmarshal([]byte(s), &c); err != nil {
		return PublishConfig{}, fmt.Errorf("decode the configuration in %s: %w", PublishEnv, err)
	}
	if c.TaskUID == "" || c.Checkpoint < 1 || c.Ref == "" {
		return PublishConfig{}, fmt.Errorf("the configuration in %s names no task, checkpoint or ref", PublishEnv)
	}
	return c, nil
}
