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
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// The names and places that the specs rely on.
const (
	systemNamespace = "clew-system"
	originNamespace = "clew-demo"
	originURL       = "http://origin.clew-demo.svc/clew.git"
	demoImage       = "localhost/clew-dev/demo:latest"
	// devclusterFolder holds the program that runs the development cluster.
	devclusterFolder = "../../hack/devcluster"
)

// Specs that take long start first: at the end, all processes but one would wait for the last.
const (
	long    = SpecPriority(1)
	longest = SpecPriority(2)
)

// world is the namespace of one spec, with clients for it.
type world struct {
	kube      client.Client
	clientset kubernetes.Interface
	config    *rest.Config
	namespace string
	changes   *changes
}

// soak reports whether the specs run at full length.
func soak() bool { return os.Getenv("CLEW_SOAK") == "1" }

// pick returns short, or full in a soak.
func pick[T any](short, full T) T {
	if soak() {
		return full
	}
	return short
}

// reportCount reports how often a spec did something. The runner of a soak adds up the reports
// of all specs; "group: thing" is also counted for its group.
func reportCount(n int, what string) {
	AddReportEntry("soak", fmt.Sprintf("%d %s", n, what))
}

// reportKills reports what was killed.
func reportKills(count map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(count)) {
		reportCount(count[name], "killed: "+name)
	}
}

// newWorld gives each spec of the container that calls it a namespace that
// enforces the restricted Pod Security Standard. Its objects are reported when the
// spec fails, and it is deleted after the spec; CLEW_E2E_KEEP=1 keeps those of failed specs.
func newWorld() *world {
	w := &world{}
	BeforeEach(func(ctx SpecContext) {
		w.connect()
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			GenerateName: "e2e-",
			Labels:       map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		}}
		Expect(w.kube.Create(ctx, ns)).To(Succeed())
		w.namespace = ns.Name
		DeferCleanup(w.remove)
		w.watchChanges(ctx)
	})
	JustAfterEach(func(ctx SpecContext) {
		if CurrentSpecReport().Failed() && w.namespace != "" {
			w.dump(ctx)
		}
	})
	return w
}

// connect connects to the cluster of the current kubeconfig context.
func (w *world) connect() {
	GinkgoHelper()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	Expect(err).NotTo(HaveOccurred(), "there is no cluster to test against; run make test-e2e")
	config.QPS, config.Burst = 100, 200
	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(clewv1.AddToScheme(scheme)).To(Succeed())
	kube, err := client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	clientset, err := kubernetes.NewForConfig(config)
	Expect(err).NotTo(HaveOccurred())
	*w = world{kube: kube, clientset: clientset, config: config}
}

func (w *world) remove(ctx SpecContext) {
	if CurrentSpecReport().Failed() && os.Getenv("CLEW_E2E_KEEP") == "1" {
		GinkgoWriter.Printf("namespace %s is kept\n", w.namespace)
		return
	}
	_ = w.kube.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}})
}

// dump reports the logs, objects and events that explain a failed spec, those first that
// explain most: what shows a report may cut it.
func (w *world) dump(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"logs", "-l", clewv1.LabelManagedBy + "=" + clewv1.ManagedBy, "--all-containers", "--tail=40", "--prefix", "--timestamps"},
		{"get", "tasks.clew.dev,checkpoints,forks,pods,pvc", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
		{"get", "tasks.clew.dev", "-o", "yaml", "--show-managed-fields=false"},
	} {
		out, err := w.kubectlIn(ctx, nil, args...)
		if err != nil {
			out += err.Error()
		}
		AddReportEntry("kubectl --namespace "+w.namespace+" "+strings.Join(args, " "), tail(out, 12000), ReportEntryVisibilityFailureOrVerbose)
	}
	w.dumpSystem(ctx)
}

// dumpSystem reports what became of Clew's own pods, which all specs share, and what the gitstore
// says of this namespace.
func (w *world) dumpSystem(ctx context.Context) {
	for _, args := range [][]string{
		{"get", "pods", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp", "--field-selector", "type=Warning"},
		{"logs", "statefulset/clew-gitstore", "--tail=5000"},
		{"logs", "statefulset/clew-gitstore", "--tail=5000", "--previous"},
	} {
		out, err := w.kubectlIn(ctx, nil, append([]string{"--namespace", systemNamespace}, args...)...)
		if args[0] == "logs" {
			out = linesWith(out, w.namespace)
		}
		if err != nil {
			out += err.Error() // such as that there is no previous container
		}
		AddReportEntry("kubectl --namespace "+systemNamespace+" "+strings.Join(args, " "), tail(out, 8000), ReportEntryVisibilityFailureOrVerbose)
	}
}

func linesWith(text, word string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			b.WriteString(line)
		}
	}
	return b.String()
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// kubectl runs kubectl in the world's namespace; an error fails the spec.
func (w *world) kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := w.kubectlIn(ctx, nil, args...)
	Expect(err).NotTo(HaveOccurred(), "kubectl %s\n%s", strings.Join(args, " "), out)
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

// applyAs applies an object server-side with the field manager's name, as a GitOps controller would.
func (w *world) applyAs(ctx context.Context, manager string, obj client.Object) error {
	GinkgoHelper()
	manifest, err := json.Marshal(obj)
	Expect(err).NotTo(HaveOccurred())
	applied, ok := obj.DeepCopyObject().(client.Object) // the caller's object stays what is in git
	Expect(ok).To(BeTrue())
	return w.applyManifest(ctx, manager, applied, manifest)
}

// applyManifest does what kubectl apply --server-side does, without a process for it.
func (w *world) applyManifest(ctx context.Context, manager string, obj client.Object, manifest []byte, options ...client.PatchOption) error {
	options = append(options, client.FieldOwner(manager), client.FieldValidation(metav1.FieldValidationStrict))
	return w.kube.Patch(ctx, obj, client.RawPatch(types.ApplyPatchType, manifest), options...)
}

// apply applies an object by kubectl, as a person would, and returns kubectl's error.
func (w *world) apply(ctx context.Context, obj client.Object, flags ...string) error {
	GinkgoHelper()
	manifest, err := json.Marshal(obj)
	Expect(err).NotTo(HaveOccurred())
	_, err = w.kubectlIn(ctx, manifest, append([]string{"apply", "-f", "-"}, flags...)...)
	return err
}

// events returns a text of each Event of the namespace.
func (w *world) events(ctx context.Context, text func(corev1.Event) string) []string {
	GinkgoHelper()
	list := &corev1.EventList{}
	Expect(w.kube.List(ctx, list, client.InNamespace(w.namespace))).To(Succeed())
	var texts []string
	for _, e := range list.Items {
		texts = append(texts, text(e))
	}
	return texts
}

// eventReasons returns the reason of each Event of the namespace.
func (w *world) eventReasons(ctx context.Context) []string {
	GinkgoHelper()
	return w.events(ctx, func(e corev1.Event) string { return e.Reason })
}

// get reads an object of the world's namespace.
func (w *world) get(ctx context.Context, name string, obj client.Object) error {
	return w.kube.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: name}, obj)
}

// run runs a command and returns what it prints.
func run(cmd *exec.Cmd) string {
	GinkgoHelper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	Expect(cmd.Run()).To(Succeed(), func() string {
		return fmt.Sprintf("%s\n%s%s", strings.Join(cmd.Args, " "), out.String(), errOut.String())
	})
	return out.String()
}
