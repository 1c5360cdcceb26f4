//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// strikes kills things, and counts what it killed.
type strikes struct {
	*world
	random *rand.Rand
	node   *node
	kinds  []strike
	last   map[string]time.Time
	count  map[string]int
}

// strike is one way of killing something. It is drawn with a frequency given by its
// weight, but not again before some time has passed: a manager that replaces a killed one
// waits for up to 15 seconds until the old lease expires, and one that never becomes the
// leader proves nothing. It returns what it hit, or an error if nothing can be killed now.
type strike struct {
	name   string
	weight int
	rest   time.Duration
	strike func() (victims []string, err error)
}

func newStrikes(ctx context.Context, w *world, random *rand.Rand) *strikes {
	s := &strikes{world: w, random: random, node: newNode(), last: map[string]time.Time{}, count: map[string]int{}}
	container := func(name string) func(*corev1.Pod) error {
		return func(pod *corev1.Pod) error { return killContainer(pod, name) }
	}
	for _, kind := range []strike{
		{"pod deleted by force", 3, 0, s.inAPod(ctx, func(pod *corev1.Pod) error { return w.kube.Delete(ctx, pod, client.GracePeriodSeconds(0)) })},
		{"daemon", 4, 0, s.inAPod(ctx, container("daemon"))},
		{"agent", 2, 0, s.inAPod(ctx, killAgent)},
		{"shim", 2, 0, s.inAPod(ctx, container(clewv1.AgentContainer))},
		{"prepare", 4, 0, s.inAPod(ctx, container("prepare"))},
		{"manager", 3, 30 * time.Second, s.component(ctx, "manager")},
		{"server", 3, 8 * time.Second, s.component(ctx, "server")},
		{"gitstore", 3, 8 * time.Second, s.component(ctx, "gitstore")},
		{"Postgres", 2, 15 * time.Second, s.component(ctx, "postgres")},
		{"kubelet", 1, 20 * time.Second, s.program(ctx, "kubelet")},
		{"containerd", 1, 20 * time.Second, s.program(ctx, "containerd")},
	} {
		for range kind.weight {
			s.kinds = append(s.kinds, kind)
		}
	}
	return s
}

// one kills one thing.
func (s *strikes) one() {
	GinkgoHelper()
	for range 100 {
		kind := s.kinds[s.random.IntN(len(s.kinds))]
		if time.Since(s.last[kind.name]) < kind.rest {
			continue
		}
		victims, err := kind.strike()
		if err != nil {
			continue
		}
		s.last[kind.name] = time.Now()
		s.count[kind.name] += len(victims)
		By(fmt.Sprintf("killed: %s, %s", kind.name, strings.Join(victims, " and ")))
		return
	}
	By("nothing can be killed now")
}

// total returns the number of kills.
func (s *strikes) total() (n int) {
	for _, count := range s.count {
		n += count
	}
	return n
}

// inAPod kills something in one of the tasks' pods.
func (s *strikes) inAPod(ctx context.Context, kill func(*corev1.Pod) error) func() ([]string, error) {
	return func() ([]string, error) {
		pods := &corev1.PodList{}
		if err := s.kube.List(ctx, pods, client.InNamespace(s.namespace), client.MatchingLabels{clewv1.LabelManagedBy: clewv1.ManagedBy}); err != nil {
			return nil, err
		}
		for _, i := range s.random.Perm(len(pods.Items)) {
			if pod := &pods.Items[i]; pod.DeletionTimestamp == nil && kill(pod) == nil {
				return []string{pod.Name}, nil
			}
		}
		return nil, fmt.Errorf("it runs in none of %d pods", len(pods.Items))
	}
}

// component kills all pods of one of Clew's components, once they are ready.
func (s *strikes) component(ctx context.Context, name string) func() ([]string, error) {
	return func() (victims []string, err error) {
		pods := &corev1.PodList{}
		if err := s.kube.List(ctx, pods, client.InNamespace(systemNamespace), client.MatchingLabels{"app.kubernetes.io/component": name}); err != nil {
			return nil, err
		}
		for i := range pods.Items {
			if works(&pods.Items[i]) && killContainer(&pods.Items[i], name) == nil {
				victims = append(victims, pods.Items[i].Name)
			}
		}
		if len(victims) == 0 {
			return nil, fmt.Errorf("none of %d pods runs", len(pods.Items))
		}
		return victims, nil
	}
}

func works(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return !c.Ready })
}

// program kills a program of the node. Containers that are being started are lost with it;
// it waits for those, or on a slow machine nothing would ever start again.
func (s *strikes) program(ctx context.Context, name string) func() ([]string, error) {
	return func() ([]string, error) {
		pods := &corev1.PodList{}
		if err := s.kube.List(ctx, pods, client.InNamespace(systemNamespace)); err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return !works(&p) }); i >= 0 {
			return nil, fmt.Errorf("%s is not ready yet", pods.Items[i].Name)
		}
		if err := s.node.kill(name); err != nil {
			return nil, err
		}
		return []string{"the node's"}, nil
	}
}

// node is the node of the development cluster. Its programs are restarted at once when they
// are killed, as systemd does on other nodes.
type node struct {
	program   string // hack/devcluster, built
	repairing sync.Mutex
	failed    error // of the last repair
}

func newNode() *node {
	GinkgoHelper()
	n := &node{program: filepath.Join(GinkgoT().TempDir(), "devcluster")}
	run(exec.Command("go", "build", "-C", devclusterFolder, "-o", n.program, "."))
	out, err := n.run("kubeconfig")
	Expect(err).NotTo(HaveOccurred())
	Expect(os.Getenv("KUBECONFIG")).To(Equal(strings.TrimSpace(out)), "KUBECONFIG must be that of CLEW_INSTANCE: nothing of another cluster may be killed")
	return n
}

func (n *node) run(args ...string) (string, error) {
	cmd := exec.Command(n.program, args...)
	cmd.Dir = devclusterFolder
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("devcluster %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// kill kills one of the node's programs, unless the previous one is not repaired yet.
func (n *node) kill(program string) error {
	if !n.repairing.TryLock() {
		return fmt.Errorf("the node is being repaired")
	}
	_, err := n.run("kill", program)
	if err = errors.Join(err, n.failed); err != nil {
		n.repairing.Unlock()
		return fmt.Errorf("%s cannot be killed: %w", program, err)
	}
	go func() {
		defer n.repairing.Unlock()
		for end := time.Now().Add(3 * time.Minute); ; {
			if _, n.failed = n.run("up"); n.failed == nil || time.Now().After(end) {
				return
			}
		}
	}()
	return nil
}

// repaired waits until all programs of the node run.
func (n *node) repaired() error {
	n.repairing.Lock()
	defer n.repairing.Unlock()
	return n.failed
}
