//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// Where the tests' surroundings stand.
const (
	systemNamespace = "clew-system"
	originNamespace = "clew-demo"
	originURL       = "http://origin.clew-demo.svc/clew.git"
	demoImage       = "localhost/clew-dev/demo:latest"
	// devclusterFolder holds the program that makes the development cluster.
	devclusterFolder = "../../hack/devcluster"
)

// world is one test's namespace on the cluster, and the means to act on it.
type world struct {
	*testing.T
	ctx       context.Context
	kube      client.Client
	clientset kubernetes.Interface
	config    *rest.Config
	namespace string
}

// soak says whether the long versions are wanted.
func soak() bool { return os.Getenv("CLEW_SOAK") == "1" }

// pick gives the short figure, or the full one of a soak.
func pick[T any](short, full T) T {
	if soak() {
		return full
	}
	return short
}

// tell says how often something was done. The runner of a soak adds up what all
// its tests tell; "group: thing" is also counted with its group.
func (w *world) tell(n int, what string) {
	w.Helper()
	w.Logf("soak: %d %s", n, what)
}

// tellKills tells of what was killed.
func (w *world) tellKills(count map[string]int) {
	w.Helper()
	for _, name := range slices.Sorted(maps.Keys(count)) {
		w.tell(count[name], "killed: "+name)
	}
}

// newWorld makes a namespace that enforces the restricted Pod Security
// Standard; it is deleted when the test has passed, and kept when it failed.
func newWorld(t *testing.T) *world {
	t.Helper()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		t.Fatalf("no cluster to test against; run make test-e2e: %v", err)
	}
	config.QPS, config.Burst = 100, 200
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := clewv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	kube, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, ctx: t.Context(), kube: kube, clientset: clientset, config: config}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "e2e-",
		Labels:       map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	if err := kube.Create(w.ctx, ns); err != nil {
		t.Fatal(err)
	}
	w.namespace = ns.Name
	t.Cleanup(w.cleanup)
	return w
}

func (w *world) cleanup() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if w.Failed() {
		w.dump()
		if os.Getenv("CLEW_E2E_KEEP") == "1" {
			return
		}
	}
	_ = w.kube.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}})
}

// dump logs what one wants to see of a failed test.
func (w *world) dump() {
	for _, args := range [][]string{
		{"get", "tasks.clew.dev,checkpoints,forks,pods,pvc", "-o", "wide"},
		{"get", "tasks.clew.dev", "-o", "yaml", "--show-managed-fields=false"},
		{"get", "events", "--sort-by=.lastTimestamp"},
		{"logs", "-l", clewv1.LabelManagedBy + "=" + clewv1.ManagedBy, "--all-containers", "--tail=40", "--prefix"},
	} {
		out, err := w.kubectlIn(context.Background(), nil, args...)
		w.Logf("kubectl %s\n%s%s", strings.Join(args, " "), tail(out, 12000), errText(err))
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// kubectl runs kubectl in the test's namespace and fails the test on an error.
func (w *world) kubectl(args ...string) string {
	w.Helper()
	out, err := w.kubectlIn(w.ctx, nil, args...)
	if err != nil {
		w.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// kubectlIn runs kubectl with stdin; the output holds stdout, the error stderr.
func (w *world) kubectlIn(ctx context.Context, stdin []byte, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"--namespace", w.namespace}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}

// apply applies an object as a GitOps controller would and returns kubectl's error.
func (w *world) apply(obj client.Object, flags ...string) error {
	w.Helper()
	manifest, err := json.Marshal(obj)
	if err != nil {
		w.Fatal(err)
	}
	_, err = w.kubectlIn(w.ctx, manifest, append([]string{"apply", "-f", "-"}, flags...)...)
	return err
}

// until waits for a condition; check says what is missing, or nil.
func (w *world) until(what string, timeout time.Duration, check func() error) {
	w.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("%s: not within %s: %v", what, timeout, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// get reads an object of the test's namespace.
func (w *world) get(name string, obj client.Object) error {
	return w.kube.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: name}, obj)
}
