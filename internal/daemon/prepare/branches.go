package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// The agent's repository gets the branches of the task's checkpoints here and not in the agent's
// container: a branch is a pack and a file, so that no git need run in a repository whose
// configuration and hooks the agent writes, and nothing waits for a program of the agent's image.
//
// Such a branch is at the commit by which its checkpoint would be published, not at that of the
// branch in the gitstore, which holds all files: what the agent's repository has, the agent may
// push, and what it has checked out, Clew publishes. Files that .gitignore names must not get
// there.

// The author of commits that Clew makes of checkpoints for branches; as in the gitstore, so that a
// branch which leaves out no file is at the same commit there.
const (
	branchAuthor = "Clew"
	branchEmail  = "noreply@clew.dev"
)

// makeBranches makes the branches of the task's checkpoints that the agent's repository has not got
// yet, or has lost since a checkpoint was restored. One that cannot be made keeps no agent from
// starting: the result says what became of each.
func (p *preparer) makeBranches(ctx context.Context) error {
	branches := p.cfg.Pod.Branches
	if len(branches) == 0 || p.cfg.Pod.PrepareOnly {
		return nil
	}
	p.result.Branches = make([]daemonapi.BranchResult, len(branches))
	var lacking []int // their numbers in branches
	for i, b := range branches {
		if p.result.Branches[i].Outcome = daemonapi.OutcomePresent; !p.isTheAgents(b) {
			p.result.Branches[i].Outcome = daemonapi.OutcomeNotFetched
			lacking = append(lacking, i)
		}
	}
	if err := p.makeLacking(ctx, lacking); err != nil {
		return err
	}
	p.log.Info("looked after the branches of checkpoints in the agent's repository", "branches", len(branches), "asked", len(lacking))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return p.branchesAreThere()
}

// makeTogether makes branches, given by their numbers among the pod's, and adds what became of each
// to the result.
func (p *preparer) makeTogether(ctx context.Context, numbers []int) {
	var asked []worktree.AgentBranch
	var of []int
	for _, i := range numbers {
		b := p.cfg.Pod.Branches[i]
		commit, err := p.publishedAs(ctx, b.Checkpoint)
		if err != nil {
			p.result.Branches[i] = p.notMade(b, err)
			continue
		}
		asked, of = append(asked, worktree.AgentBranch{Name: daemonapi.AgentBranchName(b.Name), Commit: commit}), append(of, i)
	}
	for n, became := range p.makeAsked(ctx, asked) {
		i := of[n]
		p.result.Branches[i] = daemonapi.BranchResult{Outcome: became.outcome, Commit: asked[n].Commit}
		if became.err != nil {
			p.result.Branches[i] = p.notMade(p.cfg.Pod.Branches[i], became.err)
		}
	}
}

// becameOf is what became of a branch: its outcome, unless there is an error.
type becameOf struct {
	outcome daemonapi.BranchOutcome
	err     error
}

// makeAsked makes those of some branches that the agent's repository lacks.
func (p *preparer) makeAsked(ctx context.Context, branches []worktree.AgentBranch) []becameOf {
	became := make([]becameOf, len(branches))
	if len(branches) == 0 {
		return nil
	}
	var lacking []worktree.AgentBranch
	var commits []string
	for i, found := range p.repo.FindAgentBranches(ctx, branches) {
		became[i] = becameOf{daemonapi.OutcomePresent, found.Err}
		if found.Err == nil && !found.There {
			became[i].outcome = daemonapi.OutcomeMade
			lacking, commits = append(lacking, branches[i]), append(commits, branches[i].Commit)
		}
	}
	if len(lacking) == 0 {
		return became
	}
	p.known.drift = nil
	errs := slices.Repeat([]error{p.repo.StoreForAgent(ctx, commits)}, len(lacking))
	if errs[0] == nil {
		errs = p.repo.MakeAgentBranches(ctx, lacking)
	}
	for i := range became {
		if became[i].err == nil && became[i].outcome == daemonapi.OutcomeMade {
			became[i].err, errs = errs[0], errs[1:]
		}
	}
	return became
}

// isTheAgents reports whether a branch is left to the agent, since its repository has got it.
func (p *preparer) isTheAgents(b daemonapi.Branch) bool {
	c := p.cfg.Pod.Checkout
	return b.Made && !p.journal.State().RefsReplaced && (c == nil || c.Branch != b)
}

// branchesAreThere journals that the agent's repository has the branches that it can have.
func (p *preparer) branchesAreThere() error {
	missing := slices.ContainsFunc(p.result.Branches, func(r daemonapi.BranchResult) bool { return r.Outcome == daemonapi.OutcomeNotFetched })
	if missing || !p.journal.State().RefsReplaced {
		return nil
	}
	return p.journal.Update(func(s *journal.State) error { s.RefsReplaced = false; return nil })
}

// notMade returns the result of a branch that could not be made.
func (p *preparer) notMade(b daemonapi.Branch, err error) daemonapi.BranchResult {
	p.log.Info("the agent starts without a branch of a checkpoint", "branch", b.Name, "checkpoint", b.Checkpoint, "why", err.Error())
	outcome := daemonapi.OutcomeNotFetched
	var nothing *failure
	if errors.As(err, &nothing) && nothing.reason == v1alpha1.ReasonNothingToPublish {
		outcome = daemonapi.OutcomeNoCommit
	}
	switch worktree.ReasonOf(err) {
	case worktree.BranchMoved:
		outcome = daemonapi.OutcomeTaken
	case worktree.ReferenceExists:
		outcome = daemonapi.OutcomeConflicts
	case worktree.InvalidReference:
		outcome = daemonapi.OutcomeInvalidName
	case worktree.RepositoryUnsuited:
		outcome = daemonapi.OutcomeUnsuitedRepository
	case worktree.CommitMissing:
		outcome = daemonapi.OutcomeNoCommit
	}
	return daemonapi.BranchResult{Outcome: outcome}
}

// publishedAs returns the commit by which a checkpoint of the task is published: the agent's own,
// or one on top of it with what git would show as changed or untracked. It is the same each time.
// The repository has it then, but no ref leads to it.
func (p *preparer) publishedAs(ctx context.Context, number int64) (string, error) {
	if commit := p.known.published[number]; commit != "" {
		return commit, nil
	}
	uid := p.cfg.Pod.TaskUID
	point, err := p.fetchRefs(ctx, placeGitstore, uid, number, "", refname.Code(uid, number), refname.State(uid, number))
	if err != nil {
		return "", err
	}
	if err := p.fetchHead(ctx, point.State); err != nil {
		return "", err
	}
	made, err := p.repo.PublishCommit(ctx, worktree.PublishRequest{
		Target: worktree.Target{Code: point.Code, State: point.State}, Uncommitted: true, AuthorName: branchAuthor, AuthorEmail: branchEmail,
		Message: fmt.Sprintf("Checkpoint %d\n\nClew-Task: %s/%s\nClew-Checkpoint: %d\n", number, p.cfg.Pod.Namespace, p.cfg.Pod.Task, number),
	})
	if err == nil && made.Commit == "" {
		err = &failure{reason: v1alpha1.ReasonNothingToPublish, permanent: true, message: fmt.Sprintf("checkpoint %d has no commit and nothing to commit, so that no branch of the agent's repository can be at it", number)}
	}
	if err != nil {
		return "", err
	}
	if p.known.published == nil {
		p.known.published = map[int64]string{}
	}
	p.known.published[number] = made.Commit
	return made.Commit, nil
}

// fetchHead fetches the commit that the agent had checked out at a checkpoint, given by its state,
// unless it is here.
func (p *preparer) fetchHead(ctx context.Context, state string) error {
	meta, err := p.repo.ReadMeta(ctx, state)
	if err != nil || meta.Agent.Head == "" || meta.Agent.Head == meta.Origin.Base {
		return err
	}
	ref := refname.Head(p.cfg.Pod.TaskUID, meta.Agent.Head)
	here, err := p.repo.Refs(ctx, ref)
	if err != nil || here[ref] != "" {
		return err
	}
	err = p.retry(ctx, func() error {
		remote, err := p.cfg.Remote()
		if err == nil {
			err = p.repo.Fetch(ctx, remote, ref)
		}
		return wrapPlace(placeGitstore, err)
	})
	if worktree.ReasonOf(err) == worktree.RefNotFound {
		return nil // the commit may be in the history of the checkpoint
	}
	return err
}
