package crash_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// kubelet plays the part of the nodes: of the scheduler and the kubelet, and of the daemon in
// each pod. A pod that appears is prepared, carries out its operation, and lets its agent run
// until the chapter ends it; one that is being deleted takes its last checkpoint and goes; one
// that publishes succeeds. It is never killed.
type kubelet struct {
	builders.Kubelet
	namespace string
	store     *postgres.Store
	// publish is what the pods that publish report.
	publish func(daemonapi.PublishConfig) daemonapi.PublishResult
	// publishers are the names of these pods.
	publishers map[string]bool

	mu sync.Mutex
	// pods are those that were seen, by UID.
	pods map[types.UID]*pod
	// begun are the Checkpoints for which it has taken one, by UID.
	begun map[types.UID]bool
	// failed is why it gave up.
	failed error
}

// pod is what has become of a pod.
type pod struct {
	config daemonapi.Config
	// runs: its agent runs.
	runs bool
}

// task returns the task of the pod as the history knows it.
func (p *pod) task() history.Task {
	return history.Task{Namespace: p.config.Namespace, Name: p.config.Task, UID: p.config.TaskUID}
}

// run works until ctx ends.
func (k *kubelet) run(ctx context.Context) {
	for round := 0; ctx.Err() == nil; round++ {
		err := k.once(ctx)
		if round%10 == 0 {
			err = errors.Join(err, k.collect(ctx))
		}
		if err != nil && ctx.Err() == nil {
			k.mu.Lock()
			k.failed = err
			k.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// problem returns why it last failed.
func (k *kubelet) problem() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failed
}

// once brings each pod one step forward.
func (k *kubelet) once(ctx context.Context) error {
	list := &corev1.PodList{}
	if err := k.Client.List(ctx, list, client.InNamespace(k.namespace)); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range list.Items {
		p := &list.Items[i]
		if err := client.IgnoreNotFound(k.step(ctx, p)); err != nil {
			return fmt.Errorf("pod %s: %w", p.Name, err)
		}
	}
	return k.beginPhases(ctx)
}

// beginPhases takes the checkpoints that are requested for the beginnings of phases, each once.
func (k *kubelet) beginPhases(ctx context.Context) error {
	list := &v1alpha1.CheckpointList{}
	if err := k.Client.List(ctx, list, client.InNamespace(k.namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		c := &list.Items[i]
		if !resources.IsPhaseStart(c) || c.Status.Number != 0 || k.begun[c.UID] {
			continue
		}
		_, p, err := k.running(ctx, c.Spec.TaskRef.Name)
		if err != nil {
			return err
		}
		record := checkpointed(v1alpha1.TriggerManual)
		record.Checkpoint.RequestedByName, record.Checkpoint.RequestedByUID, record.Checkpoint.Message = c.Name, string(c.UID), c.Spec.Message
		if err := k.append(ctx, p, record); err != nil {
			return err
		}
		if k.begun == nil {
			k.begun = map[types.UID]bool{}
		}
		k.begun[c.UID] = true
	}
	return nil
}

func (k *kubelet) step(ctx context.Context, p *corev1.Pod) error {
	known := k.pods[p.UID]
	switch {
	case p.DeletionTimestamp != nil:
		return k.end(ctx, p, known)
	case known != nil:
		return nil
	case p.Labels[v1alpha1.LabelPublication] != "":
		return k.push(ctx, p)
	}
	config, err := configOf(p)
	if err != nil {
		return err
	}
	if err := k.Bind(ctx, p); err != nil {
		return err
	}
	known = &pod{config: config}
	k.pods[p.UID] = known
	result, err := k.prepare(ctx, known)
	if err != nil {
		return err
	}
	if err := k.Prepared(ctx, p, 0, result); err != nil || config.PrepareOnly {
		return err
	}
	known.runs = true
	return k.AgentRuns(ctx, p)
}

// end lets a pod end that is being deleted.
func (k *kubelet) end(ctx context.Context, p *corev1.Pod, known *pod) error {
	if known != nil && known.runs {
		known.runs = false
		trigger := v1alpha1.TriggerSuspend
		if err := k.append(ctx, known, checkpointed(trigger)); err != nil {
			return err
		}
	}
	return k.Vanish(ctx, p)
}

// push ends a pod that publishes.
func (k *kubelet) push(ctx context.Context, p *corev1.Pod) error {
	config, err := daemonapi.DecodePublishConfig(p.Spec.Containers[0].Env[0].Value)
	if err != nil {
		return err
	}
	if k.publishers == nil {
		k.publishers = map[string]bool{}
	}
	k.publishers[p.Name] = true
	message, err := json.Marshal(k.publish(config))
	if err != nil {
		return err
	}
	k.pods[p.UID] = &pod{}
	p.Status.Phase = corev1.PodSucceeded
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: daemonapi.PublishContainer, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: string(message), FinishedAt: metav1.Now()},
	}}}
	return k.Client.Status().Update(ctx, p)
}

// configOf returns the configuration that a pod received.
func configOf(p *corev1.Pod) (daemonapi.Config, error) {
	for _, c := range append(p.Spec.InitContainers, p.Spec.Containers...) {
		if c.Name == daemonapi.PrepareContainer {
			return daemonapi.DecodeConfig(strings.ReplaceAll(c.Env[0].Value, "$$", "$"))
		}
	}
	return daemonapi.Config{}, fmt.Errorf("it has no container %s", daemonapi.PrepareContainer)
}

// prepare begins the pod's attempt and carries out its operation.
func (k *kubelet) prepare(ctx context.Context, p *pod) (daemonapi.PrepareResult, error) {
	done := daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared}
	var source *history.Source
	if from := p.config.Source; from != nil {
		source = &history.Source{TaskUID: from.TaskUID, Checkpoint: from.Checkpoint, IncludeConversation: from.IncludeConversation, Position: from.Position}
	}
	options := history.BeginOptions{SnapshotEveryMessages: p.config.Policy.SnapshotEveryMessages}
	before, err := k.store.Begin(ctx, p.task(), p.config.Attempt, source, options)
	if err != nil {
		return done, err
	}
	if before.Latest == nil && source != nil {
		if err := k.append(ctx, p, checkpointed(v1alpha1.TriggerFork)); err != nil {
			return done, err
		}
	}
	if done, err = k.branch(ctx, p, done); err != nil {
		return done, err
	}
	op := p.config.Operation
	if op == nil {
		return done, nil
	}
	done.Operation, done.OperationKind = op.ID, op.Kind
	if rewind := op.FirstRewind(); rewind != nil {
		return k.rewind(ctx, p, rewind, done)
	}
	return done, nil
}

// branch makes all branches in the agent's repository, and records what a checkout leaves in the
// history.
func (k *kubelet) branch(ctx context.Context, p *pod, done daemonapi.PrepareResult) (daemonapi.PrepareResult, error) {
	for range p.config.Branches {
		done.Branches = append(done.Branches, daemonapi.BranchResult{Outcome: daemonapi.OutcomeMade, Commit: strings.Repeat("1", 40)})
	}
	c := p.config.Checkout
	if c == nil {
		return done, nil
	}
	end := history.MoveOperation{ID: daemonapi.OperationKey(daemonapi.OperationCheckout, c.ID), Reason: daemonapi.NoteCheckout, KeepPosition: true}
	err := k.append(ctx, p, checkpointed(v1alpha1.TriggerPreCheckout), checkpointed(v1alpha1.TriggerCheckedOut), history.Record{Move: &end})
	if err != nil {
		return done, err
	}
	state, err := k.store.TaskState(ctx, p.config.TaskUID)
	if err == nil {
		done.Checkout = &daemonapi.CheckoutResult{ID: c.ID, FromCheckpoint: state.Latest.Number - 1, ToCheckpoint: state.Latest.Number}
	}
	return done, err
}

// rewind records what a rewind leaves in the history.
func (k *kubelet) rewind(ctx context.Context, p *pod, op *daemonapi.Operation, done daemonapi.PrepareResult) (daemonapi.PrepareResult, error) {
	rewound := &history.Rewound{Scope: string(op.Scope), To: op.Checkpoint}
	if f := op.Files; f != nil {
		rewound.To, rewound.Paths = f.Checkpoint, f.Paths
	}
	if err := k.append(ctx, p, checkpointed(v1alpha1.TriggerPreRewind)); err != nil {
		return done, err
	}
	state, err := k.store.TaskState(ctx, p.config.TaskUID)
	if err != nil {
		return done, err
	}
	rewound.From = state.Latest.Number
	move := history.MoveOperation{
		ID: daemonapi.OperationKey(daemonapi.OperationRewind, op.ID), Checkpoint: op.Checkpoint, Position: op.Position, Anew: op.Anew,
		Reason: "Rewind", KeepPosition: op.Scope == v1alpha1.RewindCode,
	}
	end := history.MoveOperation{
		ID: daemonapi.OperationDoneKey(daemonapi.OperationRewind, op.ID), Checkpoint: rewound.To,
		Reason: daemonapi.NoteRewindComplete, KeepPosition: true, Rewound: rewound,
	}
	if err := k.append(ctx, p, history.Record{Move: &move}, checkpointed(v1alpha1.TriggerRewound), history.Record{Move: &end}); err != nil {
		return done, err
	}
	if state, err = k.store.TaskState(ctx, p.config.TaskUID); err != nil {
		return done, err
	}
	done.FromCheckpoint, done.ToCheckpoint, done.ToPosition, done.Preserved = rewound.From, rewound.To, state.Position.Position, op.Branch
	return done, nil
}

// checkpointed is the record of a checkpoint; append gives it its number.
func checkpointed(trigger v1alpha1.CheckpointTrigger) history.Record {
	return history.Record{Checkpoint: &history.Checkpoint{Trigger: string(trigger), FilesChanged: 2, LinesAdded: 3, LinesRemoved: 1}}
}

// said is the record of a message.
func said(role conversation.Role, text string) history.Record {
	return history.Record{Message: &conversation.Message{Role: role, Text: text}}
}

// append records what the pod's daemon sends. Each checkpoint gets the next number and is in
// the gitstore.
func (k *kubelet) append(ctx context.Context, p *pod, records ...history.Record) error {
	state, err := k.store.TaskState(ctx, p.config.TaskUID)
	if err != nil {
		return err
	}
	number := int64(0)
	if state.Latest != nil {
		number = state.Latest.Number
	}
	for i := range records {
		r := &records[i]
		r.Sequence, r.Attempt, r.Time = state.LastSequence+int64(i)+1, p.config.Attempt, time.Now()
		if c := r.Checkpoint; c != nil {
			number++
			c.Number, c.Time, c.Durable = number, r.Time, true
			c.Commit = fmt.Sprintf("%040d", number)
			c.Tree, c.StateCommit, c.GitHead, c.Base = c.Commit, c.Commit, c.Commit, fmt.Sprintf("%040d", 0)
		}
	}
	_, err = k.store.Append(ctx, p.task(), p.config.Attempt, records)
	return err
}

// running returns the pod in which a task's agent runs.
func (k *kubelet) running(ctx context.Context, task string) (*corev1.Pod, *pod, error) {
	list := &corev1.PodList{}
	if err := k.Client.List(ctx, list, client.InNamespace(k.namespace), client.MatchingLabels{v1alpha1.LabelTask: task}); err != nil {
		return nil, nil, err
	}
	for i := range list.Items {
		if p := k.pods[list.Items[i].UID]; p != nil && p.runs {
			return &list.Items[i], p, nil
		}
	}
	return nil, nil, fmt.Errorf("no agent of task %s runs", task)
}

// works lets a task's agent say something, and its daemon take a checkpoint for each trigger.
func (k *kubelet) works(ctx context.Context, task string, records ...history.Record) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, p, err := k.running(ctx, task)
	if err != nil {
		return err
	}
	return k.append(ctx, p, records...)
}

// exits lets a task's agent complete its work.
func (k *kubelet) exits(ctx context.Context, task string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	on, p, err := k.running(ctx, task)
	if err != nil {
		return err
	}
	if err := k.append(ctx, p, checkpointed(v1alpha1.TriggerCompletion)); err != nil {
		return err
	}
	p.runs = false
	return k.AgentExits(ctx, on, 0)
}

// published returns how many of the pods that publish existed, of those with the numbers up to a
// number.
func (k *kubelet) published(number int64, name func(number int64) string) (n int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := int64(1); i <= number; i++ {
		if k.publishers[name(i)] {
			n++
		}
	}
	return n
}

// hadPod reports whether an attempt of a task had a pod, also while the task was another one
// whose history it continues.
func (k *kubelet) hadPod(uid string, attempt int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := ""
	for _, p := range k.pods {
		if p.config.TaskUID == uid {
			name = p.config.Task
		}
	}
	for _, p := range k.pods {
		if p.config.Task == name && p.config.Attempt == attempt {
			return true
		}
	}
	return false
}
