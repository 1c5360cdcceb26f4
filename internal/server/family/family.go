// Package family tells the agent of a supervisor about its tasks: how they stand, what was said in them,
// and what they have changed.
//
// It promises that an agent learns of tasks that name its own task as their parent, and of no others:
// neither those of a former supervisor of the same name, nor what they did. What it reads of the
// conversation of one is what stands, and nothing that a rewind has taken back. Answers are for models:
// they are short, are cut where there is much, and say so. What an answer costs is bounded, however many
// tasks name one parent, and however often they change.
package family

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/broadcast"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/toolcall"
)

// Store is what is needed of the history store.
type Store interface {
	LatestCheckpoints(ctx context.Context, namespace string, taskUIDs []string) ([]history.CheckpointSize, error)
	TaskConversation(ctx context.Context, query history.ConversationQuery) (history.EntryPage, error)
	Search(ctx context.Context, query history.SearchQuery) (history.SearchPage, error)
	CheckpointsBefore(ctx context.Context, task history.Key, before int64, limit int) ([]history.Checkpoint, error)
	Checkpoint(ctx context.Context, task history.Key, number int64) (history.Checkpoint, error)
}

// Code compares checkpoints. Its refusals are *gitstoreapi.Refusal.
type Code interface {
	Diff(ctx context.Context, namespace, uid string, q gitstoreapi.DiffQuery) (gitstoreapi.Diff, error)
}

// Family knows the tasks that have parents, by their parents. It implements gateway.Family, and is safe
// for concurrent use. Create one with New.
type Family struct {
	store Store
	code  Code

	mu       sync.Mutex
	byParent map[types.NamespacedName]*children
	// firstborn is announced when a task becomes a parent.
	firstborn broadcast.Change
	// synced reports whether all tasks that there were at the start are known; nil before Watch.
	synced func() bool
}

// New returns a Family that knows no tasks yet.
func New(store Store, code Code) *Family {
	return &Family{store: store, code: code, byParent: map[types.NamespacedName]*children{}}
}

// Slim drops what is not read of a Task, and takes up most of the memory: all of one that has no parent.
func Slim(t *v1alpha1.Task) {
	t.ManagedFields, t.Annotations, t.Labels, t.OwnerReferences, t.Finalizers = nil, nil, nil, nil, nil
	t.Spec = v1alpha1.TaskSpec{Role: t.Spec.Role, ParentRef: t.Spec.ParentRef}
	s := t.Status
	if t.Spec.ParentRef == nil {
		t.Status = v1alpha1.TaskStatus{}
		return
	}
	t.Status = v1alpha1.TaskStatus{
		Dependencies: s.Dependencies, Contract: s.Contract, Parent: s.Parent, LatestCheckpoint: s.LatestCheckpoint,
		MessageCount: s.MessageCount, InputTokens: s.InputTokens, OutputTokens: s.OutputTokens, CostMicroUSD: s.CostMicroUSD,
	}
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.TaskSucceeded); c != nil {
		t.Status.Conditions = []metav1.Condition{*c}
	}
	if n := len(s.Attempts); n > 0 { // whether the last one has ended
		t.Status.Attempts = []v1alpha1.Attempt{{Number: s.Attempts[n-1].Number, Outcome: s.Attempts[n-1].Outcome}}
	}
}

// Watch keeps the family up to date from the cache's informer. It returns once the informer is set up.
func (f *Family) Watch(ctx context.Context, informers cache.Informers) error {
	informer, err := informers.GetInformer(ctx, &v1alpha1.Task{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch Tasks: %w", err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { f.set(object) },
		UpdateFunc: func(_, object any) { f.set(object) },
		DeleteFunc: f.remove,
	})
	if err != nil {
		return fmt.Errorf("watch Tasks: %w", err)
	}
	f.Known(registration.HasSynced)
	return nil
}

// Known says how the family finds out whether it knows all tasks. Before that, it answers that it does
// not.
func (f *Family) Known(synced func() bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced = synced
}

// Answer answers a call of a tool that changes nothing.
func (f *Family) Answer(ctx context.Context, supervisor history.Task, tool v1alpha1.AgentTool, arguments []byte) (toolcall.Answer, error) {
	switch tool {
	case v1alpha1.ToolTaskList:
		return answer(ctx, supervisor, arguments, f.list)
	case v1alpha1.ToolTaskWait:
		return answer(ctx, supervisor, arguments, f.wait)
	case v1alpha1.ToolTaskHistory:
		return answer(ctx, supervisor, arguments, f.history)
	case v1alpha1.ToolTaskDiff:
		return answer(ctx, supervisor, arguments, f.diff)
	}
	return toolcall.Answer{Refused: true, Text: fmt.Sprintf("Clew's server has no tool %q that reads.", tool)}, nil
}
