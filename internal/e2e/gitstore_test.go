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

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

// inGitstore runs a shell script in the gitstore's pod.
func (w *world) inGitstore(ctx context.Context, script string) string {
	GinkgoHelper()
	out, err := w.tryGitstore(ctx, script)
	Expect(err).NotTo(HaveOccurred(), "in the gitstore: %s\n%s", script, out)
	return out
}

func (w *world) tryGitstore(ctx context.Context, script string) (string, error) {
	pods := &corev1.PodList{}
	if err := w.kube.List(ctx, pods, client.InNamespace(systemNamespace),
		client.MatchingLabels{"app.kubernetes.io/component": "gitstore"}); err != nil {
		return "", fmt.Errorf("list the pods of the gitstore: %w", err)
	}
	if len(pods.Items) == 0 {
		return "", errors.New("the gitstore has no pod")
	}
	return w.kubectlIn(ctx, nil, "--namespace", systemNamespace, "exec", pods.Items[0].Name, "--", "sh", "-c", script)
}

// repository returns the path, in the gitstore, of this namespace's repository of the
// demo's origin.
func (w *world) repository() string {
	return "/var/lib/clew-gitstore/namespaces/" + w.namespace + "/" + daemonapi.RepositoryKey(originURL) + ".git"
}

// gitstoreBytes returns the disk use of this namespace in the gitstore.
func (w *world) gitstoreBytes(ctx context.Context) int64 {
	GinkgoHelper()
	out := w.inGitstore(ctx, "du -s --block-size=1 /var/lib/clew-gitstore/namespaces/"+w.namespace)
	n, err := strconv.ParseInt(strings.Fields(out)[0], 10, 64)
	Expect(err).NotTo(HaveOccurred())
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

// fork forks a task at a checkpoint into one new task, and waits until it exists.
func (w *world) fork(ctx context.Context, source, checkpoint, variant string) *clewv1.Fork {
	GinkgoHelper()
	fork := newFork(w.namespace, "to-"+variant, source, checkpoint, variant)
	Expect(w.apply(ctx, fork)).To(Succeed(), "apply fork")
	w.eventually(ctx, func() (*clewv1.Fork, error) { return fork, w.get(ctx, fork.Name, fork) }).WithTimeout(time.Minute).
		Should(matchers.HaveCondition(clewv1.ForkComplete, metav1.ConditionTrue), "fork %s is complete", fork.Name)
	return fork
}

// diff returns what kubectl diff prints for an object.
func (w *world) diff(ctx context.Context, obj client.Object) string {
	GinkgoHelper()
	manifest, err := json.Marshal(obj)
	Expect(err).NotTo(HaveOccurred())
	cmd := exec.CommandContext(ctx, "kubectl", "--namespace", w.namespace, "diff", "--server-side", "--force-conflicts", "-f", "-")
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(manifest), &out, &out
	var exit *exec.ExitError
	err = cmd.Run()
	if errors.As(err, &exit) && exit.ExitCode() == 1 { // there is a difference
		err = nil
	}
	Expect(err).NotTo(HaveOccurred(), "kubectl diff\n%s", &out)
	return strings.TrimSpace(out.String())
}
