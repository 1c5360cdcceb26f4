// Package approvals tracks the answers to requests: what people have answered to tool calls that wait,
// as the manager has written it to the status of Tasks.
package approvals

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// Board lists the answers. It implements gateway.Approvals and is safe for concurrent use. Create one
// with New.
type Board struct {
	mu sync.Mutex
	// tasks holds the answers of each task, by its UID; tasks without any are left out.
	tasks map[types.UID][]gateway.Answer
	// watchers holds the channels to notify of changes, by the task's UID.
	watchers map[types.UID]map[chan struct{}]struct{}
}

// New returns an empty Board.
func New() *Board {
	return &Board{tasks: map[types.UID][]gateway.Answer{}, watchers: map[types.UID]map[chan struct{}]struct{}{}}
}

var _ gateway.Approvals = (*Board)(nil)

// Answers implements gateway.Approvals.
func (b *Board) Answers(taskUID string) []gateway.Answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tasks[types.UID(taskUID)]
}

// Changes implements gateway.Approvals.
func (b *Board) Changes(taskUID string) (changed <-chan struct{}, leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	uid, watcher := types.UID(taskUID), make(chan struct{}, 1)
	if b.watchers[uid] == nil {
		b.watchers[uid] = map[chan struct{}]struct{}{}
	}
	b.watchers[uid][watcher] = struct{}{}
	return watcher, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watchers[uid], watcher)
		if len(b.watchers[uid]) == 0 {
			delete(b.watchers, uid)
		}
	}
}

// Answered returns the requests of a Task that a daemon has to be told about: those that have their
// answer and whose call waits.
func Answered(t *v1alpha1.Task) (answered []v1alpha1.ToolRequest) {
	for _, r := range t.Status.Requests {
		if r.Answer != nil && r.Waits == v1alpha1.WaitCall {
			answered = append(answered, v1alpha1.ToolRequest{ID: r.ID, Waits: r.Waits, Answer: r.Answer})
		}
	}
	return answered
}

// Set records the current state of a Task.
func (b *Board) Set(t *v1alpha1.Task) {
	var answers []gateway.Answer
	for _, r := range Answered(t) {
		answers = append(answers, gateway.Answer{
			RequestID: r.ID, Approved: r.Answer.Answer == v1alpha1.AnswerApprove, By: r.Answer.By, Reason: r.Answer.Reason,
		})
	}
	b.put(t.UID, answers)
}

// Remove forgets a Task that was deleted.
func (b *Board) Remove(t *v1alpha1.Task) { b.put(t.UID, nil) }

func (b *Board) put(uid types.UID, answers []gateway.Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.Equal(b.tasks[uid], answers) {
		return
	}
	if b.tasks[uid] = answers; answers == nil {
		delete(b.tasks, uid)
	}
	for watcher := range b.watchers[uid] {
		select {
		case watcher <- struct{}{}:
		default: // it has yet to receive the previous notification
		}
	}
}

// Watch keeps the board up to date from the cache's informer. It returns once the informer is set up.
func (b *Board) Watch(ctx context.Context, informers cache.Informers) error {
	informer, err := informers.GetInformer(ctx, &v1alpha1.Task{}, cache.BlockUntilSynced(false))
	if err == nil {
		_, err = informer.AddEventHandler(b.Handler())
	}
	if err != nil {
		return fmt.Errorf("watch the Tasks' answers to requests: %w", err)
	}
	return nil
}

// Handler returns the handler of the events of Tasks. One that was replaced under its name while the watch
// was away is told of as an update.
func (b *Board) Handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { b.handle(object, b.Set) },
		UpdateFunc: func(old, object any) {
			was, isTask := old.(*v1alpha1.Task)
			if is, ok := object.(*v1alpha1.Task); ok && isTask && is.UID != was.UID {
				b.Remove(was)
			}
			b.handle(object, b.Set)
		},
		DeleteFunc: func(object any) { b.handle(object, b.Remove) },
	}
}

func (b *Board) handle(object any, what func(*v1alpha1.Task)) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if t, ok := object.(*v1alpha1.Task); ok {
		what(t)
	}
}
