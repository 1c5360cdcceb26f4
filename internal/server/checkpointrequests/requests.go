// Package checkpointrequests tracks requested checkpoints: the Checkpoint objects that a
// user has applied and no daemon has taken yet. Objects that the manager made for
// checkpoints already taken are not requests.
package checkpointrequests

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// Board lists the requested checkpoints. It implements gateway.Requests and is safe for
// concurrent use. Create one with New.
type Board struct {
	// Stamped says that spec.requestedBy can be trusted, since a policy writes it. It is set before Watch. Otherwise
	// anybody might apply the Checkpoint with which a phase begins, and none counts as the agent's.
	Stamped bool

	mu sync.Mutex
	// tasks holds the requests by "namespace/task".
	tasks map[string]*taskRequests
	// watchers holds the channels to notify of changes by "namespace/task": a flood of
	// objects for one task must not wake the streams of the others.
	watchers map[string]map[chan struct{}]struct{}
	sets     sets
}

// taskRequests holds the requests of one task, by the UID of the object.
type taskRequests struct {
	byUID map[string]request
	// oldest caches the first requests, in order; nil if it has to be computed.
	oldest []request
}

// first returns the oldest requests, in order, without those in leftOut.
func (a *taskRequests) first(leftOut map[string]bool) []request {
	if len(leftOut) == 0 && a.oldest != nil {
		return a.oldest
	}
	all := make([]request, 0, len(a.byUID))
	for uid, r := range a.byUID {
		if !leftOut[uid] {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, request.compare)
	first := slices.Clone(all[:min(len(all), maxPending)])
	if len(leftOut) == 0 {
		a.oldest = first
	}
	return first
}

// maxPending bounds the requests of a task returned at once. A daemon takes one after the
// other, and whoever may create Checkpoints can request any number: otherwise each change
// would cost as much as all of them, at each of the task's streams.
const maxPending = 100

// behind reports whether a request comes after all those that first returns, so that its
// arrival or removal need not be announced.
func (a *taskRequests) behind(r request) bool {
	return len(a.oldest) == maxPending && r.compare(a.oldest[maxPending-1]) > 0
}

type request struct {
	gateway.CheckpointRequest
	created time.Time
}

func (r request) compare(other request) int {
	return cmp.Or(r.created.Compare(other.created), strings.Compare(r.Name, other.Name))
}

// New returns an empty Board.
func New() *Board {
	return &Board{tasks: map[string]*taskRequests{}, watchers: map[string]map[chan struct{}]struct{}{},
		sets: sets{members: map[string][]string{}, released: map[string][]gateway.Release{}}}
}

var _ gateway.Requests = (*Board)(nil)

// Pending implements gateway.Requests: it returns the oldest 100.
func (b *Board) Pending(namespace, task string, passed map[string]bool) []gateway.CheckpointRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.tasks[key(namespace, task)]
	if of == nil {
		return nil
	}
	first := of.first(passed)
	pending := make([]gateway.CheckpointRequest, 0, len(first))
	for _, r := range first {
		pending = append(pending, r.CheckpointRequest)
	}
	return pending
}

// Changes implements gateway.Requests.
func (b *Board) Changes(namespace, task string) (changed <-chan struct{}, leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k, watcher := key(namespace, task), make(chan struct{}, 1)
	if b.watchers[k] == nil {
		b.watchers[k] = map[chan struct{}]struct{}{}
	}
	b.watchers[k][watcher] = struct{}{}
	return watcher, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watchers[k], watcher)
		if len(b.watchers[k]) == 0 {
			delete(b.watchers, k)
		}
	}
}

func key(namespace, task string) string { return namespace + "/" + task }

// Set records the current state of a Checkpoint object.
func (b *Board) Set(c *clewv1alpha1.Checkpoint) {
	b.followSet(c)
	if !isPending(c) {
		b.withdraw(c)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k, uid := key(c.Namespace, c.Spec.TaskRef.Name), string(c.UID)
	r := request{
		CheckpointRequest: gateway.CheckpointRequest{Name: c.Name, UID: uid, Message: c.Spec.Message, Hold: hold(c), Phase: b.Stamped && isOwnPhase(c)},
		created:           c.CreationTimestamp.Time,
	}
	of := b.tasks[k]
	if of == nil {
		of = &taskRequests{byUID: map[string]request{}}
		b.tasks[k] = of
	}
	known, ok := of.byUID[uid]
	if ok && known == r {
		return
	}
	of.byUID[uid] = r
	if !ok && of.behind(r) {
		return
	}
	of.oldest = nil
	b.announce(k)
}

// Remove removes a Checkpoint object that was deleted.
func (b *Board) Remove(c *clewv1alpha1.Checkpoint) {
	b.dropSet(string(c.UID))
	b.withdraw(c)
}

// withdraw removes the request of a Checkpoint object, if there is one.
func (b *Board) withdraw(c *clewv1alpha1.Checkpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k, uid := key(c.Namespace, c.Spec.TaskRef.Name), string(c.UID)
	of := b.tasks[k]
	if of == nil {
		return
	}
	r, ok := of.byUID[uid]
	if !ok {
		return
	}
	delete(of.byUID, uid)
	if len(of.byUID) == 0 {
		delete(b.tasks, k)
	}
	if of.behind(r) {
		return
	}
	of.oldest = nil
	b.announce(k)
}

// announce notifies a task's watchers of a change. A watcher that has not received the
// previous notification need not be notified again.
func (b *Board) announce(k string) {
	for watcher := range b.watchers[k] {
		select {
		case watcher <- struct{}{}:
		default:
		}
	}
}

// isPending reports whether a Checkpoint waits for a daemon. One that names the number
// of a record, in its spec, its labels or its status, waits for that record, whoever wrote the
// labels and whether or not they match the Task: the controller looks for nothing else,
// and the object would stay here forever if no such record comes.
func isPending(c *clewv1alpha1.Checkpoint) bool {
	_, _, numbered := resources.CheckpointNumber(c)
	return c.DeletionTimestamp == nil && !numbered && c.Spec.Number == nil && c.Status.Number == 0 &&
		c.Labels[clewv1alpha1.LabelManagedBy] != clewv1alpha1.ManagedBy &&
		!meta.IsStatusConditionTrue(c.Status.Conditions, clewv1alpha1.CheckpointReady) && inSet(c)
}

// isOwnPhase reports whether a Checkpoint is that with which a phase begins which the task's own agent has set: the manager, which
// makes it, passes that on, and nobody else can say so of an object that is to be trusted.
func isOwnPhase(c *clewv1alpha1.Checkpoint) bool {
	return resources.IsPhaseStart(c) && c.Spec.RequestedBy == plan.TaskRequester(c.Spec.TaskRef.Name)
}

// CacheOptions restrict a cache to what Watch needs: the objects made by users, without
// the parts that are not read.
func CacheOptions() (cache.Options, error) {
	byPeople, err := labels.NewRequirement(clewv1alpha1.LabelManagedBy, selection.NotEquals, []string{clewv1alpha1.ManagedBy})
	if err != nil {
		return cache.Options{}, fmt.Errorf("select the Checkpoints made by users: %w", err)
	}
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&clewv1alpha1.Checkpoint{}: {Label: labels.NewSelector().Add(*byPeople), Transform: slim},
	}}, nil
}

// slim keeps what says whether a daemon is asked for a checkpoint, and nothing that somebody may write at
// length: anybody who may create Checkpoints has them in the memory of every server.
func slim(object any) (any, error) {
	if c, ok := object.(*clewv1alpha1.Checkpoint); ok {
		m := c.ObjectMeta
		c.ObjectMeta = metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
			CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
			Labels: only(m.Labels, clewv1alpha1.LabelManagedBy, clewv1alpha1.LabelTaskUID, clewv1alpha1.LabelCheckpoint),
		}
		// By this owner, the number in the labels counts.
		if owner := metav1.GetControllerOf(&m); owner != nil && owner.Kind == "Task" && string(owner.UID) == m.Labels[clewv1alpha1.LabelTaskUID] {
			c.OwnerReferences = []metav1.OwnerReference{{Kind: owner.Kind, UID: owner.UID, Controller: owner.Controller}}
		}
		c.Spec.Branches = nil
		set := c.Status.Set
		if set != nil && set.State.Ended() { // nobody waits for its members any more
			set = &clewv1alpha1.CheckpointSet{State: set.State}
		}
		c.Status = clewv1alpha1.CheckpointStatus{Number: c.Status.Number, Conditions: c.Status.Conditions, Set: set}
	}
	return object, nil
}

// only returns the labels with these keys, in a map of their own.
func only(all map[string]string, keys ...string) map[string]string {
	found := map[string]string{}
	for _, key := range keys {
		if value, ok := all[key]; ok {
			found[key] = value
		}
	}
	return found
}

// Watch keeps the board up to date from the cache's informer. It returns once the
// informer is set up; synced then reports whether all existing objects have been seen.
func (b *Board) Watch(ctx context.Context, informers cache.Informers) (synced func() bool, err error) {
	informer, err := informers.GetInformer(ctx, &clewv1alpha1.Checkpoint{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch Checkpoints: %w", err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { b.set(object) },
		UpdateFunc: func(_, object any) { b.set(object) },
		DeleteFunc: b.remove,
	})
	if err != nil {
		return nil, fmt.Errorf("watch Checkpoints: %w", err)
	}
	return registration.HasSynced, nil
}

func (b *Board) set(object any) {
	if c, ok := object.(*clewv1alpha1.Checkpoint); ok {
		b.Set(c)
	}
}

func (b *Board) remove(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if c, ok := object.(*clewv1alpha1.Checkpoint); ok {
		b.Remove(c)
	}
}
