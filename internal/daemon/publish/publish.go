// Package publish is the program of the pod that publishes a checkpoint: it fetches the
// checkpoint from the gitstore, and pushes it to the origin. The pod has the credentials of
// the origin and a token for the gitstore; it has none of the task's volumes, and runs nothing
// of the task.
package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/capacity"
	"github.com/clew-dev/clew/internal/daemon/origin"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// Config configures one run.
type Config struct {
	Pod daemonapi.PublishConfig
	// ScratchDir is an empty folder for the repository.
	ScratchDir string
	// CredentialsDir holds the credentials of the origin; empty if there are none.
	CredentialsDir string
	// Remote returns the gitstore's address and credentials.
	Remote func() (worktree.Remote, error)
	// RetryFor is how long a step is retried that may succeed later; 0 means a minute.
	RetryFor time.Duration
	Log      logr.Logger
}

// publisher is one run.
type publisher struct {
	Config
	repo   *worktree.Repo
	result daemonapi.PublishResult
	// unsure is set if a push has failed that may have taken effect all the same.
	unsure bool
}

// Run publishes the checkpoint and returns the outcome. It can be repeated: what has been
// published is not pushed again.
func Run(ctx context.Context, cfg Config) daemonapi.PublishResult {
	if cfg.RetryFor == 0 {
		cfg.RetryFor = time.Minute
	}
	p := &publisher{Config: cfg, result: daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: cfg.Pod.Ref}}
	if err := p.run(ctx); err != nil {
		p.Log.Error(err, "the checkpoint was not published")
		p.result.Reason, p.result.Message, p.result.Retryable = p.describe(err)
	}
	p.result.NotPushed = p.result.Reason != v1alpha1.ReasonPublished && !p.unsure
	return p.result
}

func (p *publisher) run(ctx context.Context) error {
	push := worktree.OriginPush{URL: p.Pod.Repository.URL, Ref: p.Pod.Ref, Replaces: p.Pod.Replaces, Onto: p.Pod.Onto, Force: p.Pod.Force, Options: p.Pod.PushOptions,
		Earlier: ownPushes(p.Pod.Earlier, p.Pod.Unreported), Announce: p.Pod.Announce, Announced: ownPushes(p.Pod.Announced)}
	var err error
	if push.Credentials, push.CAFile, err = origin.Credentials(p.CredentialsDir); err != nil {
		return err
	}
	if missing := origin.Missing(p.Pod.Repository, push.Credentials, push.CAFile); missing != "" {
		return &failure{reason: v1alpha1.ReasonCredentialsNotFound, message: missing + ". Then request it again"}
	}
	work := filepath.Join(p.ScratchDir, "worktree") // stays empty
	if err := os.MkdirAll(work, 0o700); err != nil {
		return fmt.Errorf("make the worktree's folder: %w", err)
	}
	p.repo, err = worktree.Open(ctx, worktree.Config{GitDir: filepath.Join(p.ScratchDir, "git"), Worktree: work,
		GitMemoryBytes: capacity.ForGit(capacity.MemoryLimit())})
	if err != nil {
		return err
	}
	defer p.repo.Close()
	made, err := p.commit(ctx, p.Pod.Checkpoint, worktree.PublishRequest{
		Uncommitted: p.Pod.Uncommitted, Message: p.message(), AuthorName: p.Pod.AuthorName, AuthorEmail: p.Pod.AuthorEmail,
	})
	if err != nil {
		return err
	}
	if made.Commit == "" || made.Unchanged() {
		return &failure{reason: v1alpha1.ReasonNothingToPublish, message: fmt.Sprintf("checkpoint %d has nothing that the repository did not have when the task started", p.Pod.Checkpoint)}
	}
	p.result.Commit = made.Commit
	push.Publication = made
	if onto, known := p.kept(p.Pod.Checkpoint); known && made.OnTop { // a pod before this one may have pushed it
		push.Earlier = append(push.Earlier, worktree.OwnPush{Commit: made.Commit, Onto: onto})
	}
	if made.Commit != p.Pod.ApprovedCommit {
		push.ProtectedPaths = p.Pod.ProtectedPaths
	}
	return p.push(ctx, push)
}

// commit fetches a checkpoint of the task, and returns the commit by which it is published.
func (p *publisher) commit(ctx context.Context, checkpoint int64, how worktree.PublishRequest) (worktree.Publication, error) {
	code, state := refname.Code(p.Pod.TaskUID, checkpoint), refname.State(p.Pod.TaskUID, checkpoint)
	how.Target = worktree.Target{Code: code, State: state}
	if err := p.fetch(ctx, code, state); err != nil {
		return worktree.Publication{}, err
	}
	meta, err := p.repo.ReadMeta(ctx, state)
	if err != nil {
		return worktree.Publication{}, err
	}
	if head := meta.Agent.Head; head != "" && head != meta.Origin.Base {
		err := p.fetch(ctx, refname.Head(p.Pod.TaskUID, head))
		// Without such a ref, the commit may be in the history of the checkpoint.
		if err != nil && worktree.ReasonOf(err) != worktree.RefNotFound {
			return worktree.Publication{}, err
		}
	}
	return p.repo.PublishCommit(ctx, how)
}

// ownPushes returns the pushes of some lists.
func ownPushes(lists ...[]daemonapi.OwnPush) (pushes []worktree.OwnPush) {
	for _, push := range slices.Concat(lists...) {
		pushes = append(pushes, worktree.OwnPush{Commit: push.Commit, Onto: push.Onto})
	}
	return pushes
}

// message returns the message of the commit on top.
func (p *publisher) message() string {
	return fmt.Sprintf("%s\n\nClew-Task: %s/%s\nClew-Checkpoint: %d\n", p.Pod.Message, p.Pod.Namespace, p.Pod.Task, p.Pod.Checkpoint)
}

// fetch fetches refs from the gitstore.
func (p *publisher) fetch(ctx context.Context, refs ...string) error {
	return p.retry(ctx, func() error {
		remote, err := p.Remote()
		if err != nil {
			return err
		}
		return fromGitStore(p.repo.Fetch(ctx, remote, refs...))
	})
}

// heldBack returns what is told about a push that would change protected files. Their names
// are in the status only: the message also goes to the timeline, which keeps it.
func (p *publisher) heldBack(held *worktree.ProtectedError) error {
	p.result.Protected = held.Paths
	return &failure{reason: v1alpha1.ReasonProtectedPaths, message: fmt.Sprintf(
		"checkpoint %d changes %s that protectedPaths selects: review those that protectedFiles in the status names, and to agree set %s.approvedCommit to %s", p.Pod.Checkpoint, files(held.Count), p.setting(), p.result.Commit)}
}

// setting is how messages name the part of the spec that says what is published.
func (p *publisher) setting() string { return cmp.Or(p.Pod.Setting, "publish") }

func files(n int) string {
	if n == 1 {
		return "1 file"
	}
	return fmt.Sprintf("%d files", n)
}

// push pushes to the origin. What the task pushed before without anybody learning of it is
// replaced like what is known.
func (p *publisher) push(ctx context.Context, push worktree.OriginPush) error {
	for range maxRecognised {
		err := p.send(ctx, push)
		var diverged *worktree.DivergedError
		if !errors.As(err, &diverged) {
			return err
		}
		own, failed := p.recognise(ctx, push, diverged.Commit)
		if failed != nil {
			return failed
		}
		if own == nil {
			return err
		}
		push.Earlier = append(push.Earlier, *own)
	}
	return p.send(ctx, push)
}

// send pushes once to the origin.
func (p *publisher) send(ctx context.Context, push worktree.OriginPush) error {
	return p.retry(ctx, func() error {
		pushed, err := p.repo.PushOrigin(ctx, push)
		p.unsure = p.unsure || pushed.Unsure
		if err == nil && pushed.Unannounced {
			p.result.Reason, p.result.Onto = v1alpha1.ReasonPushAnnounced, pushed.Onto
			p.result.Message = fmt.Sprintf("checkpoint %d is about to be pushed as %s", p.Pod.Checkpoint, push.Commit)
			p.Log.Info("the push is announced; another pod makes it", "checkpoint", p.Pod.Checkpoint, "ref", push.Ref, "commit", push.Commit, "onto", pushed.Onto)
			return nil
		}
		if err == nil {
			p.result.Already, p.result.Onto, p.result.Answer = pushed.Already, pushed.Onto, pushed.Answer
			p.Log.Info("the checkpoint is published", "checkpoint", p.Pod.Checkpoint, "ref", push.Ref, "commit", push.Commit, "already", pushed.Already)
		}
		var held *worktree.ProtectedError
		if errors.As(err, &held) {
			return p.heldBack(held)
		}
		return err
	})
}

// retry repeats a step while its failure may pass.
func (p *publisher) retry(ctx context.Context, step func() error) error {
	begun, wait := time.Now(), backoff.Backoff{}
	for {
		err := step()
		if err == nil || worktree.ReasonOf(err) != worktree.Unreachable || time.Since(begun) > p.RetryFor {
			return err
		}
		p.Log.Info("retrying", "error", err.Error())
		if wait.Wait(ctx) != nil {
			return err
		}
	}
}
