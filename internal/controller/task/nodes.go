package task

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

const (
	// podsByNode is the cache's index of pods that have not finished by their node; those of none are
	// below noNode.
	podsByNode = "node"
	// noNode cannot be the name of a node.
	noNode = "(none)"
	// tasksAway is the cache's index of the Tasks that wait for a node; all are below waiting.
	tasksAway, waiting = "waitsForNode", "true"
)

// readyCondition returns the condition Ready of a node; nil if it has none.
func readyCondition(node *corev1.Node) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// nodeOf returns what decisions need to know about a node; node is nil for one that does not exist.
func nodeOf(node *corev1.Node) plan.Node {
	if node == nil {
		return plan.Node{Gone: true}
	}
	seen := plan.Node{OutOfService: slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })}
	switch c := readyCondition(node); {
	case c == nil:
		seen.UnreadySince = node.CreationTimestamp.Time
	case c.Status != corev1.ConditionTrue:
		seen.UnreadySince = c.LastTransitionTime.Time
	}
	return seen
}

// node reads a node. One that the cache has as reachable is not read again: an event follows when that
// changes.
func (r *Reconciler) node(ctx context.Context, reader client.Reader, name string) (plan.Node, error) {
	cached, err := read[corev1.Node](ctx, r.Client, "", name)
	if seen := nodeOf(cached); err != nil || !seen.Away() {
		return seen, err
	}
	current, err := read[corev1.Node](ctx, reader, "", name)
	return nodeOf(current), err
}

// observeNodes reads the nodes of the task's pods, and that of an active attempt.
func (r *Reconciler) observeNodes(ctx context.Context, task *v1alpha1.Task, reader client.Reader, o *plan.Observed) (err error) {
	var names []string
	for i := range o.Pods {
		names = append(names, o.Pods[i].Spec.NodeName)
	}
	if n := len(task.Status.Attempts); n > 0 && task.Status.Attempts[n-1].Outcome == "" {
		names = append(names, task.Status.Attempts[n-1].NodeName)
	}
	o.Nodes = map[string]plan.Node{}
	for _, name := range names {
		if _, seen := o.Nodes[name]; seen || name == "" {
			continue
		}
		if o.Nodes[name], err = r.node(ctx, reader, name); err != nil {
			return err
		}
		if o.Nodes[name].Away() && !o.Elsewhere {
			if o.Elsewhere, err = r.anyReachable(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// anyReachable reports whether the cluster has a node that can be reached.
func (r *Reconciler) anyReachable(ctx context.Context) (bool, error) {
	list := &corev1.NodeList{}
	if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list the nodes: %w", err)
	}
	return slices.ContainsFunc(list.Items, func(n corev1.Node) bool { return !nodeOf(&n).Away() }), nil
}

// finished reports whether no container of a pod runs or will run again.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// observeFormerClaims reads the claims that the task has left behind, as far as they exist.
func (r *Reconciler) observeFormerClaims(ctx context.Context, task *v1alpha1.Task, reader client.Reader, o *plan.Observed) error {
	for _, f := range task.Status.FormerClaims {
		claim, err := read[corev1.PersistentVolumeClaim](ctx, reader, task.Namespace, f.Name)
		if err != nil {
			return err
		}
		if claim != nil && string(claim.UID) == f.UID {
			o.FormerClaims = append(o.FormerClaims, *claim)
		}
	}
	return nil
}

// readVolume is the PersistentVolume that was read last.
type readVolume struct {
	name string
	// affinity is nil if every node can attach it.
	affinity *corev1.NodeSelector
}

// volume reads which nodes can attach a PersistentVolume; that it is read once is enough, since this
// does not change.
func (r *Reconciler) volume(ctx context.Context, name string, m *known) (plan.Volume, error) {
	if m.volume.name != name {
		found, err := read[corev1.PersistentVolume](ctx, r.Live, "", name)
		if err != nil {
			return plan.Volume{}, err
		}
		m.volume = readVolume{name: name}
		if found != nil && found.Spec.NodeAffinity != nil {
			m.volume.affinity = found.Spec.NodeAffinity.Required
		}
	}
	if m.volume.affinity == nil {
		return plan.Volume{Name: name}, nil
	}
	nodes, err := r.nodesOf(ctx, m.volume.affinity)
	return plan.Volume{Name: name, Bound: true, Nodes: nodes}, err
}

// nodesOf returns the nodes that a selector selects; if one of them can be reached, only that.
func (r *Reconciler) nodesOf(ctx context.Context, selector *corev1.NodeSelector) (map[string]plan.Node, error) {
	match, err := nodeaffinity.NewNodeSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("read the node affinity of the volume: %w", err)
	}
	list := &corev1.NodeList{}
	if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	nodes := map[string]plan.Node{}
	for i := range list.Items {
		name := list.Items[i].Name
		if !match.Match(&list.Items[i]) {
			continue
		}
		n, err := r.node(ctx, r.Live, name)
		if err != nil {
			return nil, err
		}
		if !n.Away() {
			return map[string]plan.Node{name: n}, nil
		}
		nodes[name] = n
	}
	return nodes, nil
}

// durablePages is how many checkpoints are looked through for a durable one.
const durablePages = 100

// durable asks the history store for the last durable checkpoint of a task.
func (r *Reconciler) durable(ctx context.Context, task *v1alpha1.Task) plan.Durable {
	rows, err := r.Store.CheckpointsBefore(ctx, history.Key{Namespace: task.Namespace, UID: string(task.UID)}, 0, durablePages)
	if err != nil {
		logf.FromContext(ctx).V(1).Info("could not find out which checkpoint is durable", "error", err.Error())
		return plan.Durable{}
	}
	for i := range rows {
		if rows[i].Durable {
			return plan.Durable{Known: true, Checkpoint: &rows[i]}
		}
	}
	return plan.Durable{Known: true}
}

// indexNodes adds the indexes by which the tasks are found that a node is news for.
func indexNodes(indexer client.FieldIndexer) error {
	err := indexer.IndexField(context.Background(), &corev1.Pod{}, podsByNode, func(object client.Object) []string {
		pod, ok := object.(*corev1.Pod)
		switch {
		case !ok || finished(pod):
			return nil
		case pod.Spec.NodeName == "":
			return []string{noNode}
		}
		return []string{pod.Spec.NodeName}
	})
	if err != nil {
		return err
	}
	return indexer.IndexField(context.Background(), &v1alpha1.Task{}, tasksAway, func(object client.Object) []string {
		if t, ok := object.(*v1alpha1.Task); ok && t.Status.UnreachableNode != nil {
			return []string{waiting}
		}
		return nil
	})
}

// tasksOnNode returns requests for the tasks that a node is news for: those with a pod on it, or with one
// that no node takes yet, and those that wait for a node, be it for another one to go on with.
func (r *Reconciler) tasksOnNode(ctx context.Context, node client.Object) (requests []reconcile.Request) {
	for _, name := range []string{node.GetName(), noNode} {
		pods := &corev1.PodList{}
		if err := r.Client.List(ctx, pods, client.MatchingFields{podsByNode: name}, client.UnsafeDisableDeepCopy); err != nil {
			logf.FromContext(ctx).Error(err, "could not list the pods of a node", "node", name)
		}
		for i := range pods.Items {
			requests = append(requests, taskOf(ctx, &pods.Items[i])...)
		}
	}
	tasks := &v1alpha1.TaskList{}
	if err := r.Client.List(ctx, tasks, client.MatchingFields{tasksAway: waiting}, client.UnsafeDisableDeepCopy); err != nil {
		logf.FromContext(ctx).Error(err, "could not list the tasks that wait for a node")
	}
	for i := range tasks.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&tasks.Items[i])})
	}
	return requests
}

// nodeNews selects the events after which a node can or cannot be reached any more, or is out of service.
func nodeNews() predicate.Funcs {
	of := func(object client.Object) plan.Node {
		node, _ := object.(*corev1.Node)
		return nodeOf(node)
	}
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return true },
		UpdateFunc:  func(e event.UpdateEvent) bool { return of(e.ObjectOld) != of(e.ObjectNew) },
		DeleteFunc:  func(event.DeleteEvent) bool { return true },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
