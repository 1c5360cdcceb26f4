package cached

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// given stands for a text of which a decision depends on no more than that there is one.
const given = "…"

// task keeps of a task's spec what decisions read, each field by name: what is added to the API, and what
// pods alone are made of, is not kept.
func task(t *v1alpha1.Task) {
	trim(&t.ObjectMeta)
	s := t.Spec
	t.Spec = v1alpha1.TaskSpec{
		Repository: repository(s.Repository), Workspace: workspaceOf(s.Workspace), OperatingMode: s.OperatingMode,
		Agent: v1alpha1.Agent{Type: s.Agent.Type}, CheckpointPolicy: policy(s.CheckpointPolicy), Conversation: s.Conversation,
		StartFrom: startFrom(s.StartFrom), DependsOn: s.DependsOn, Priority: s.Priority, Adopt: s.Adopt,
		Resume: resume(s.Resume), Rewind: rewind(s.Rewind), Publish: publish(s.Publish), Decisions: decisions(s.Decisions),
		Contract: s.Contract, Role: s.Role, ParentRef: s.ParentRef, Children: children(s.Children),
		OnFinish: s.OnFinish, NodeLoss: s.NodeLoss, Acknowledge: s.Acknowledge,
		BackoffLimit: s.BackoffLimit, RetryOn: s.RetryOn, FailOn: s.FailOn, DeadlineSeconds: s.DeadlineSeconds, Budget: s.Budget,
	}
	for _, op := range []*v1alpha1.OperationStatus{t.Status.Rewind, t.Status.Resume} {
		if op != nil {
			op.Paths = list(op.Paths)
		}
	}
}

// policy keeps how long checkpoints stay and calls wait, and what rules do about calls, each once, but not
// about which.
func policy(p v1alpha1.CheckpointPolicy) v1alpha1.CheckpointPolicy {
	kept := v1alpha1.CheckpointPolicy{Retention: p.Retention, ApprovalDeadlineSeconds: p.ApprovalDeadlineSeconds}
	for _, r := range p.BeforeRiskyTools {
		if does := (v1alpha1.RiskyToolPattern{Action: r.Action}); !slices.Contains(kept.BeforeRiskyTools, does) {
			kept.BeforeRiskyTools = append(kept.BeforeRiskyTools, does)
		}
	}
	return kept
}

// repository keeps which one it is.
func repository(r *v1alpha1.Repository) *v1alpha1.Repository {
	if r == nil {
		return nil
	}
	return &v1alpha1.Repository{URL: r.URL}
}

// workspaceOf drops what a volume is made of once.
func workspaceOf(w v1alpha1.Workspace) v1alpha1.Workspace {
	return v1alpha1.Workspace{Size: w.Size, Retention: w.Retention, WhenSuspended: w.WhenSuspended}
}

// startFrom drops which files are copied, but not that some are.
func startFrom(f *v1alpha1.StartFrom) *v1alpha1.StartFrom {
	if f == nil {
		return nil
	}
	kept := &v1alpha1.StartFrom{
		TaskRef: f.TaskRef, TaskUID: f.TaskUID, CheckpointRef: f.CheckpointRef, At: f.At, Conversation: f.Conversation, Branch: f.Branch,
		CopyFiles: list(f.CopyFiles),
	}
	if o := f.Fork; o != nil {
		kept.Fork = &v1alpha1.ForkOrigin{Name: o.Name, UID: o.UID, From: text(o.From)}
	}
	return kept
}

// resume drops what the agent is told, but not that it is told something.
func resume(r *v1alpha1.Resume) *v1alpha1.Resume {
	if r == nil {
		return nil
	}
	kept := &v1alpha1.Resume{
		ID: r.ID, Mode: r.Mode, CheckpointRef: r.CheckpointRef, CheckpointNumber: r.CheckpointNumber, Phase: r.Phase,
		Context: r.Context, Placement: r.Placement, OnDrift: r.OnDrift,
	}
	if r.Prompt != "" {
		kept.Prompt = given
	}
	if r.AdditionalContext != "" {
		kept.AdditionalContext = given
	}
	return kept
}

// rewind keeps few paths as they are.
func rewind(r *v1alpha1.Rewind) *v1alpha1.Rewind {
	if r == nil {
		return nil
	}
	return &v1alpha1.Rewind{
		ID: r.ID, To: r.To, Scope: r.Scope, Paths: list(r.Paths), Preserve: r.Preserve, Branch: r.Branch,
		WhenRunning: r.WhenRunning, OnDrift: r.OnDrift, Children: r.Children,
	}
}

// publish keeps what is short as it is. A request with something long is never the one that the status is
// about, so that it is looked at as the API server has it each time.
func publish(p *v1alpha1.Publish) *v1alpha1.Publish {
	if p == nil {
		return nil
	}
	kept := &v1alpha1.Publish{
		ID: p.ID, Branch: p.Branch, When: p.When, Uncommitted: p.Uncommitted, Message: text(p.Message), OnDiverged: p.OnDiverged,
		PushOptions: list(p.PushOptions), ProtectedPaths: list(p.ProtectedPaths), ApprovedCommit: p.ApprovedCommit,
	}
	if a := p.Author; a != nil {
		kept.Author = &v1alpha1.CommitAuthor{Name: text(a.Name), Email: text(a.Email)}
	}
	return kept
}

// decisions drops who has decided, and why.
func decisions(all []v1alpha1.Decision) (kept []v1alpha1.Decision) {
	for _, d := range all {
		kept = append(kept, v1alpha1.Decision{RequestID: d.RequestID, Answer: d.Answer})
	}
	return kept
}

// children keeps their limits.
func children(c *v1alpha1.Children) *v1alpha1.Children {
	if c == nil {
		return nil
	}
	return &v1alpha1.Children{Maximum: c.Maximum, AtOnce: c.AtOnce, OnDelete: c.OnDelete}
}

// longText is from how many bytes on a digest takes the place of a text, or of a list of texts. It differs from
// every other text, so that a change of what is long is a change as well.
const longText = 256

func text(s string) string {
	if len(s) <= longText {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "sha256-" + hex.EncodeToString(sum[:])
}

func list(all []string) []string {
	if joined := strings.Join(all, "\n"); len(joined) > longText {
		return []string{text(joined)}
	}
	return all
}

// fork drops all of a Fork but what says for whom it waits: one that is not complete is read from the API
// server.
func fork(f *v1alpha1.Fork) {
	trim(&f.ObjectMeta)
	spec := v1alpha1.ForkSpec{SourceRef: f.Spec.SourceRef, CheckpointRef: f.Spec.CheckpointRef, At: f.Spec.At}
	for _, v := range f.Spec.Variants {
		spec.Variants = append(spec.Variants, v1alpha1.ForkVariant{Name: v.Name})
	}
	f.Spec = spec
	f.Status = v1alpha1.ForkStatus{ObservedGeneration: f.Status.ObservedGeneration, Conditions: f.Status.Conditions, Source: f.Status.Source}
}

// snapshot drops metadata only: the rest is small.
func snapshot(s *v1alpha1.ConversationSnapshot) { trim(&s.ObjectMeta) }
