// Package toolcall is the controller of the calls of supervisors' tools: it carries out those that change
// something, which the server has stored, and answers them.
//
// It promises that a call takes effect once, however often a manager is killed; that it changes no
// spec that somebody has applied; that whoever looks at what it has made or changed sees which task's
// agent has asked for it; and that each call is an entry of the supervisor's timeline before it has an
// answer. It polls nothing: a call is looked at when it is made, and when something changes that it
// waits for.
package toolcall

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/toolcall"
)

// Store is the part of the history store that keeps calls. Its errors wrap those of package history.
type Store interface {
	// ToolCall returns a call of a task.
	ToolCall(ctx context.Context, taskUID, id string) (history.ToolCall, error)
	// PendingToolCalls returns the first calls without an answer, oldest first, after a place: 0, or what
	// the previous page returned as next.
	PendingToolCalls(ctx context.Context, after int64, limit int) (calls []history.ToolCall, next int64, err error)
	// NoteToolCall notes what is about to be done for a call.
	NoteToolCall(ctx context.Context, id, note string) error
	// AnswerToolCall answers a call, and drops its arguments. One that has an answer keeps it.
	AnswerToolCall(ctx context.Context, id string, answer toolcall.Answer) error
	// ListenToolCalls calls back for each call that is made or answered, until ctx ends, and returns
	// ctx's error. An empty notification means that any call may have been missed.
	ListenToolCalls(ctx context.Context, callback func(history.ToolCallNotification)) error
	// TaskState returns what the store knows about a task.
	TaskState(ctx context.Context, taskUID string) (history.TaskState, error)
	// RecordEvents records events. Those that are recorded already have no effect.
	RecordEvents(ctx context.Context, events []history.Event) error
}

// Reconciler is the controller of calls. Every field is required.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Store is the history store.
	Store Store
	// Phases has the calls by which the controller of Tasks moves contracts.
	Phases *Phases
	// Clock is the source of the time.
	Clock clock.PassiveClock
	// Stamped is true when an admission policy writes requesters into applied objects.
	Stamped bool

	waits waits
	made  made
}

// maxWrites is how many writes one call needs at most: a child that is taken back is suspended, which is
// noted before, and then resumed; a branch moves from one Checkpoint to another.
const maxWrites = 3

// requestOf returns the request for a call. Its namespace is that of the task, so that all namespaces get
// their turns.
func requestOf(namespace, taskUID, id string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: taskUID + "/" + id}}
}

// Reconcile carries out one call, as far as it can be now. A call is gone with its task's history.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	err := r.reconcile(ctx, request)
	if errors.Is(err, history.ErrNotFound) {
		taskUID, id, _ := strings.Cut(request.Name, "/")
		r.forget(request, taskUID, id)
		err = nil
	}
	return requeue.Result(logf.FromContext(ctx), err)
}

func (r *Reconciler) reconcile(ctx context.Context, request reconcile.Request) error {
	taskUID, id, _ := strings.Cut(request.Name, "/")
	call, err := r.Store.ToolCall(ctx, taskUID, id)
	if err != nil {
		return fmt.Errorf("read a call of the task %s: %w", taskUID, err)
	}
	if call.Answer != nil {
		r.forget(request, taskUID, id)
		return nil
	}
	wish, err := plan.ReadWish(call)
	if err != nil {
		return r.answer(ctx, request, call, toolcall.Answer{Refused: true, Text: err.Error()})
	}
	for range maxWrites + 1 {
		r.waits.begin(request)
		observed, err := r.observe(ctx, request, call, wish)
		if err != nil {
			return err
		}
		p := plan.DecideCall(observed)
		if p.Answer != nil {
			return r.answer(ctx, request, call, *p.Answer)
		}
		wrote, err := r.apply(ctx, observed.Task, &call, p)
		if requeue.Refused(err) || apierrors.IsRequestEntityTooLargeError(err) {
			return r.answer(ctx, request, call, plan.CallRefused(err))
		}
		if err != nil || !wrote {
			return err
		}
	}
	return nil // what was written wakes it
}

// forget ends the waiting of a call.
func (r *Reconciler) forget(request reconcile.Request, taskUID, id string) {
	r.waits.end(request)
	r.made.answered(types.UID(taskUID), id)
	r.Phases.drop(types.UID(taskUID), id)
}

// apply carries out the one write that a plan asks for, if any. What exists already was written before, or
// by somebody else: the next decision tells which.
func (r *Reconciler) apply(ctx context.Context, lead *v1alpha1.Task, call *history.ToolCall, p plan.CallPlan) (wrote bool, err error) {
	if lead == nil {
		return false, nil
	}
	owner := client.FieldOwner(plan.TaskRequester(lead.Name))
	switch {
	case p.Note != "":
		err = r.Store.NoteToolCall(ctx, call.ID, p.Note)
		call.Noted = p.Note
	case p.CreateTask != nil:
		r.made.add(lead.UID, call.ID, p.CreateTask.Name)
		err = r.Client.Create(ctx, p.CreateTask, owner)
	case p.CreateFork != nil:
		for _, v := range p.CreateFork.Spec.Variants {
			r.made.add(lead.UID, call.ID, v.Name)
		}
		err = r.Client.Create(ctx, p.CreateFork, owner)
	case p.ChangeTask != nil:
		err = r.change(ctx, p.ChangeTask.From, p.ChangeTask.To, owner)
	case p.ChangeCheckpoint != nil:
		err = r.change(ctx, p.ChangeCheckpoint.From, p.ChangeCheckpoint.To, owner)
	case p.Phase != nil:
		r.Phases.set(lead, *p.Phase)
		return false, nil
	default:
		return false, nil
	}
	if apierrors.IsAlreadyExists(err) {
		return true, nil
	}
	return err == nil, err
}

// change writes what differs in an object, unless it has been changed since it was read.
func (r *Reconciler) change(ctx context.Context, from, to client.Object, owner client.FieldOwner) error {
	patch := client.MergeFromWithOptions(from, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, to, patch, owner); err != nil {
		return fmt.Errorf("change %s: %w", to.GetName(), err)
	}
	return nil
}

// answer records the call in the supervisor's timeline, and then answers it.
func (r *Reconciler) answer(ctx context.Context, request reconcile.Request, call history.ToolCall, answer toolcall.Answer) error {
	if err := r.Store.RecordEvents(ctx, []history.Event{{
		ID: history.ToolCallEventID(call.Task.UID, call.ID), Task: call.Task, Time: r.Clock.Now(), Type: history.EventTypeTask,
		Reason: v1alpha1.EventToolCalled, Actor: plan.TaskActor(call.Task.Name), Message: plan.CallMessage(call, answer), Attempt: call.Attempt,
	}}); err != nil {
		return fmt.Errorf("record the call %s of the task %s: %w", call.ID, call.Task.Name, err)
	}
	if err := r.Store.AnswerToolCall(ctx, call.ID, plan.Spoken(answer)); err != nil {
		return fmt.Errorf("answer the call %s of the task %s: %w", call.ID, call.Task.Name, err)
	}
	r.forget(request, call.Task.UID, call.ID)
	return nil
}
