package plan

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

// Node is what is known of a node.
type Node struct {
	// Gone is true if the cluster has no such node.
	Gone bool
	// UnreadySince is since when its condition Ready is not True; zero if it is.
	UnreadySince time.Time
	// OutOfService is true if it has Kubernetes' taint of that name: nothing runs on it any more, so
	// that Kubernetes deletes its pods by force, and detaches their volumes.
	OutOfService bool
}

// Away reports whether the node cannot be reached.
func (n Node) Away() bool { return n.Gone || !n.UnreadySince.IsZero() }

// Volume is what is known of the PersistentVolume of the task's claim. It is asked for when
// Plan.InspectVolume names it.
type Volume struct {
	// Name of the PersistentVolume; "" while it was not read.
	Name string
	// Bound is true if only certain nodes can attach it. Nodes are those that the cluster has, by
	// name; if one of them can be reached, that one is enough.
	Bound bool
	Nodes map[string]Node
}

// reachable reports whether a node that can be reached can attach the volume.
func (v Volume) reachable() bool {
	for _, n := range v.Nodes {
		if !n.Away() {
			return true
		}
	}
	return !v.Bound
}

// Durable is the last durable checkpoint of a task.
type Durable struct {
	// Known is false while the history store was not or cannot be asked.
	Known bool
	// Checkpoint is nil if there is none.
	Checkpoint *history.Checkpoint
}

// defaultNodeLossSeconds is the default of the schema.
const defaultNodeLossSeconds = 300

// absence is a node that cannot be reached.
type absence struct {
	node string
	// since is when it was last known to be reachable, in whole seconds.
	since time.Time
	// gone and outOfService are those of Node: Kubernetes itself ends what ran there.
	gone, outOfService bool
}

// String says that the node cannot be reached.
func (a *absence) String() string {
	gone := ""
	if a.gone {
		gone = ", which the cluster no longer has,"
	}
	return fmt.Sprintf("node %s%s has been unreachable since %s", a.node, gone, stamp(a.since))
}

// stamp returns a time for a message.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// absence returns that a node cannot be reached; nil if it can. When a node went is known of one that
// is gone only if the status has it. A condition that changes from False to Unknown starts no new time.
func (d *decision) absence(name string, n Node) *absence {
	if !n.Away() {
		return nil
	}
	since := n.UnreadySince
	if u := d.old.UnreachableNode; u != nil && u.Name == name && (since.IsZero() || u.Since.Time.Before(since)) {
		since = u.Since.Time
	}
	if since.IsZero() {
		since = d.now
	}
	return &absence{node: name, since: since.Truncate(time.Second), gone: n.Gone, outOfService: n.OutOfService}
}

// podAbsence returns that the node of a pod that has not finished cannot be reached; nil if it can, or
// if nothing is known of it. A pod that came later misses its node from then on.
func (d *decision) podAbsence(v *podView) *absence {
	n, known := d.o.Nodes[v.pod.Spec.NodeName]
	if v.finished || !known {
		return nil
	}
	a := d.absence(v.pod.Spec.NodeName, n)
	if a != nil && v.pod.CreationTimestamp.After(a.since) {
		a.since = v.pod.CreationTimestamp.Time
	}
	return a
}

// strandedAt returns a node that cannot be reached and without which nobody can attach the volume of a
// claim; nil if somebody can, or while that is not known.
func (d *decision) strandedAt(claim *corev1.PersistentVolumeClaim) (last *absence) {
	v, known := d.volumeOf(claim)
	if !known || v.reachable() {
		return nil
	}
	for name, n := range v.Nodes {
		if a := d.absence(name, n); last == nil || a.since.After(last.since) || a.since.Equal(last.since) && a.node < last.node {
			last = a
		}
	}
	if last == nil {
		return d.absence(cmp.Or(d.lastNode(), "unknown"), Node{Gone: true})
	}
	return last
}

// volumeOf returns the volume of a claim, and asks for it if it is not known.
func (d *decision) volumeOf(claim *corev1.PersistentVolumeClaim) (v Volume, known bool) {
	switch name := claim.Spec.VolumeName; {
	case name == "":
		return Volume{}, true
	case d.o.Volume.Name != name:
		d.plan.InspectVolume = name
		return Volume{}, false
	}
	return d.o.Volume, true
}

// movable reports whether Kubernetes itself ends the pod on a node that cannot be reached, and another
// node can attach the task's volume then.
func (d *decision) movable(away *absence) bool {
	if !away.gone && !away.outOfService {
		return false
	}
	claim := d.volume()
	if claim == nil {
		return true
	}
	v, known := d.volumeOf(claim)
	return known && v.reachable()
}

// lostAt returns when a node that cannot be reached counts as lost.
func (d *decision) lostAt(away *absence) time.Time {
	return away.since.Add(time.Duration(cmp.Or(d.task.Spec.NodeLoss.AfterSeconds, defaultNodeLossSeconds)) * time.Second)
}

// replaceable reports whether the task goes on without a node that cannot be reached. While none can, it
// may as well wait for its own: the trouble is not that of a node.
func (d *decision) replaceable(away *absence) bool {
	return !d.waitsForNode() && d.given(away) && d.o.Elsewhere
}

// given reports whether the node had the time that it is given to come back.
func (d *decision) given(away *absence) bool { return !d.now.Before(d.lostAt(away)) }

// waitsForNode reports whether the task stays with its node, however long that cannot be reached.
func (d *decision) waitsForNode() bool { return d.task.Spec.NodeLoss.Policy == v1alpha1.NodeLossWait }

// noteAway notes that the task waits for a node, and adds an entry when that begins.
func (d *decision) noteAway(away *absence, message string) {
	if d.away != nil {
		return
	}
	d.away = away
	if was := d.s.UnreachableNode; was == nil || was.Name != away.node {
		d.addEntry(v1alpha1.EventNodeUnreachable, clew, message)
	}
	d.s.UnreachableNode = &v1alpha1.UnreachableNode{Name: away.node, Since: metav1.NewTime(away.since)}
}

// noteReachable forgets the node for which the task does not wait any more.
func (d *decision) noteReachable() {
	if d.away == nil {
		d.s.UnreachableNode = nil
	}
}

// claimName returns the name of the task's claim.
func (d *decision) claimName() string {
	return cmp.Or(d.s.ClaimName, resources.ClaimName(d.task.Name))
}

// leftBehind reports whether a pod works on a volume that the task has left behind.
func (d *decision) leftBehind(pod *corev1.Pod) bool {
	mounted := resources.MountedClaim(pod)
	return mounted != "" && mounted != d.claimName()
}
