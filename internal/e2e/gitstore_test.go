//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// inGitstore runs a shell command in the gitstore's pod.
func (w *world) inGitstore(script string) string {
	w.Helper()
	out, err := w.tryGitstore(w.ctx, script)
	if err != nil {
		w.Fatalf("in the gitstore: %s: %v\n%s", script, err, out)
	}
	return out
}

func (w *world) tryGitstore(ctx context.Context, script string) (string, error) {
	pods := &corev1.PodList{}
	if err := w.kube.List(ctx, pods, client.InNamespace(systemNamespace),
		client.MatchingLabels{"app.kubernetes.io/component": "gitstore"}); err != nil || len(pods.Items) == 0 {
		return "", fmt.Errorf("no pod of the gitstore: %w", err)
	}
	return w.kubectlIn(ctx, nil, "--namespace", systemNamespace, "exec", pods.Items[0].Name, "--", "sh", "-c", script)
}

// repository is the path of this namespace's repository of the demo's origin in the gitstore.
func (w *world) repository() string {
	return "/var/lib/clew-gitstore/namespaces/" + w.namespace + "/" + daemonapi.RepositoryKey(originURL) + ".git"
}

// gitstoreBytes is the disk use of this namespace in the gitstore.
func (w *world) gitstoreBytes() int64 {
	w.Helper()
	out := w.inGitstore("du -s --block-size=1 /var/lib/clew-gitstore/namespaces/" + w.namespace)
	n, err := strconv.ParseInt(strings.Fields(out)[0], 10, 64)
	if err != nil {
		w.Fatal(err)
	}
	return n
}

func newFork(namespace, name, source, checkpoint, variant string) *clewv1.Fork {
	return &clewv1.Fork{
		TypeMeta:   metav1.TypeMeta{APIVersion: clewv1.GroupVersion.String(), Kind: "Fork"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: clewv1.ForkSpec{
			SourceRef:     clewv1.NameReference{Name: source},
			CheckpointRef: &clewv1.NameReference{Name: checkpoint},
			Conversation:  clewv1.ConversationInclude,
			Variants:      []clewv1.ForkVariant{{Name: variant}},
		},
	}
}

// fork forks a task at a checkpoint to one new task, and waits until that is made.
func (w *world) fork(source, checkpoint, variant string) *clewv1.Fork {
	w.Helper()
	fork := newFork(w.namespace, "to-"+variant, source, checkpoint, variant)
	if err := w.apply(fork); err != nil {
		w.Fatalf("apply fork: %v", err)
	}
	w.until("the fork is complete", time.Minute, func() error {
		if err := w.get(fork.Name, fork); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(fork.Status.Conditions, clewv1.ForkComplete) {
			return fmt.Errorf("%v", fork.Status.Conditions)
		}
		return nil
	})
	return fork
}

// diff is what kubectl diff prints for an object.
func (w *world) diff(obj client.Object) string {
	w.Helper()
	manifest, err := json.Marshal(obj)
	if err != nil {
		w.Fatal(err)
	}
	cmd := exec.CommandContext(w.ctx, "kubectl", "--namespace", w.namespace, "diff", "--server-side", "--force-conflicts", "-f", "-")
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(manifest), &out, &out
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		w.Fatalf("kubectl diff: %v\n%s", err, out.String())
	}
	return strings.TrimSpace(fmt.Sprint(out.String()))
}
