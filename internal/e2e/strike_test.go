//go:build e2e

package e2e

import (
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

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// strikes kills, and counts what it killed.
type strikes struct {
	*world
	random *rand.Rand
	node   *node
	kinds  []strike
	last   map[string]time.Time
	count  map[string]int
}

// strike is one way of killing something. It is drawn as often as its weight
// says, but not again before some time has passed: a manager that was killed
// waits for up to 15 seconds until the lease of the one before runs out, and one
// that never gets to work proves nothing. It returns what it hit; what cannot be
// killed just now is an error.
type strike struct {
	name   string
	weight int
	rest   time.Duration
	strike func() (victims []string, err error)
}

func newStrikes(w *world, random *rand.Rand) *strikes {
	s := &strikes{world: w, random: random, node: newNode(w), last: map[string]time.Time{}, count: map[string]int{}}
	container := func(name string) func(*corev1.Pod) error {
		return func(pod *corev1.Pod) error { return killContainer(pod, name) }
	}
	for _, kind := range []strike{
		{"pod deleted by force", 3, 0, s.inAPod(func(pod *corev1.Pod) error { return w.kube.Delete(w.ctx, pod, client.GracePeriodSeconds(0)) })},
		{"daemon", 4, 0, s.inAPod(container("daemon"))},
		{"agent", 2, 0, s.inAPod(killAgent)},
		{"shim", 2, 0, s.inAPod(container(clewv1.AgentContainer))},
		{"prepare", 4, 0, s.inAPod(container("prepare"))},
		{"manager", 3, 30 * time.Second, s.component("manager")},
		{"server", 3, 8 * time.Second, s.component("server")},
		{"gitstore", 3, 8 * time.Second, s.component("gitstore")},
		{"Postgres", 2, 15 * time.Second, s.component("postgres")},
		{"kubelet", 1, 20 * time.Second, s.program("kubelet")},
		{"containerd", 1, 20 * time.Second, s.program("containerd")},
	} {
		for range kind.weight {
			s.kinds = append(s.kinds, kind)
		}
	}
	return s
}

// one strikes one thing that is there to be struck.
func (s *strikes) one() {
	s.Helper()
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
		s.Logf("strike: %s, %s", kind.name, strings.Join(victims, " and "))
		return
	}
	s.Logf("nothing was there to be struck")
}

// total is how many kills there were.
func (s *strikes) total() (n int) {
	for _, count := range s.count {
		n += count
	}
	return n
}

// inAPod strikes one of the tasks' pods in which there is something to hit.
func (s *strikes) inAPod(kill func(*corev1.Pod) error) func() ([]string, error) {
	return func() ([]string, error) {
		pods := &corev1.PodList{}
		if err := s.kube.List(s.ctx, pods, client.InNamespace(s.namespace), client.MatchingLabels{clewv1.LabelManagedBy: clewv1.ManagedBy}); err != nil {
			return nil, err
		}
		for _, i := range s.random.Perm(len(pods.Items)) {
			if pod := &pods.Items[i]; pod.DeletionTimestamp == nil && kill(pod) == nil {
				return []string{pod.Name}, nil
			}
		}
		return nil, fmt.Errorf("it is in none of %d pods", len(pods.Items))
	}
}

// component strikes all pods of a part of Clew's, once it works.
func (s *strikes) component(name string) func() ([]string, error) {
	return func() (victims []string, err error) {
		pods := &corev1.PodList{}
		if err := s.kube.List(s.ctx, pods, client.InNamespace(systemNamespace), client.MatchingLabels{"app.kubernetes.io/component": name}); err != nil {
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

// program strikes a program of the node. Containers that were on their way are
// lost with it, so on a slow machine nothing would ever come up again if it did
// not wait for that.
func (s *strikes) program(name string) func() ([]string, error) {
	return func() ([]string, error) {
		pods := &corev1.PodList{}
		if err := s.kube.List(s.ctx, pods, client.InNamespace(systemNamespace)); err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return !works(&p) }); i >= 0 {
			return nil, fmt.Errorf("%s does not work again yet", pods.Items[i].Name)
		}
		if err := s.node.kill(name); err != nil {
			return nil, err
		}
		return []string{"the node's"}, nil
	}
}

// node is the development cluster's. What is killed of it is brought up again at
// once, as systemd does on other nodes.
type node struct {
	program string // hack/devcluster, built
	mending sync.Mutex
	failed  error // of the last one to mend it
}

func newNode(w *world) *node {
	w.Helper()
	n := &node{program: filepath.Join(w.TempDir(), "devcluster")}
	w.run(exec.Command("go", "build", "-C", devclusterFolder, "-o", n.program, "."))
	if out, err := n.run("kubeconfig"); err != nil || strings.TrimSpace(out) != os.Getenv("KUBECONFIG") {
		w.Fatalf("KUBECONFIG is %s and CLEW_INSTANCE's is %s (%v): nothing of another cluster may be killed", os.Getenv("KUBECONFIG"), out, err)
	}
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

// kill kills one of the node's programs, unless another is not mended yet.
func (n *node) kill(program string) error {
	if !n.mending.TryLock() {
		return fmt.Errorf("the node is being mended")
	}
	_, err := n.run("kill", program)
	if err = errors.Join(err, n.failed); err != nil {
		n.mending.Unlock()
		return fmt.Errorf("%s cannot be killed: %w", program, err)
	}
	go func() {
		defer n.mending.Unlock()
		for end := time.Now().Add(3 * time.Minute); ; {
			if _, n.failed = n.run("up"); n.failed == nil || time.Now().After(end) {
				return
			}
		}
	}()
	return nil
}

// mended waits until the node is whole again.
func (n *node) mended() error {
	n.mending.Lock()
	defer n.mending.Unlock()
	return n.failed
}
