package prepare

import (
	"context"
	"time"

	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// The agent's repository gets the branches of the task's checkpoints here and not in the agent's
// container: a branch is a pack and a file, so that no git need run in a repository whose
// configuration and hooks the agent writes, and nothing waits for a program of the agent's image.

// maxBranchFetch bounds the time in which the gitstore is asked for branches. The agent starts
// without those that it has not delivered.
const maxBranchFetch = time.Minute

// makeBranches makes the branches of the task's checkpoints that the agent's repository lacks. One
// that cannot be made keeps no agent from starting: the result says what became of each.
func (p *preparer) makeBranches(ctx context.Context) error {
	branches := p.cfg.Pod.Branches
	if len(branches) == 0 || p.cfg.Pod.PrepareOnly {
		return nil
	}
	letters := make([]byte, len(branches))
	lacking := map[string]string{}
	for i, b := range branches {
		there, err := p.repo.FindAgentBranch(agentBranch(b))
		if letters[i], err = letterOf(err); err != nil {
			return err
		}
		switch {
		case there:
			letters[i] = daemonapi.BranchThere
		case letters[i] == daemonapi.BranchMade:
			lacking[b.Ref(p.cfg.Pod.Task)] = b.Commit
		}
	}
	without := byte(daemonapi.BranchUnfetched)
	if len(lacking) > 0 {
		p.known.drift = nil
		without = p.fetchBranches(ctx, lacking)
	}
	for i, b := range branches {
		if letters[i] != daemonapi.BranchMade {
			continue
		}
		if lacking[b.Ref(p.cfg.Pod.Task)] == "" {
			letters[i] = without
			continue
		}
		var err error
		if letters[i], err = letterOf(p.repo.MakeAgentBranch(agentBranch(b))); err != nil {
			return err
		}
	}
	p.result.Branches = string(letters)
	p.log.Info("looked after the branches of checkpoints in the agent's repository", "branches", len(branches), "lacking", len(lacking), "became", p.result.Branches)
	return ctx.Err()
}

// fetchBranches brings the commits of refs in the gitstore to the agent's repository. Refs whose
// commits it did not bring there are deleted from the map; it returns the letter for these.
func (p *preparer) fetchBranches(ctx context.Context, at map[string]string) (without byte) {
	ctx, cancel := context.WithTimeout(ctx, maxBranchFetch)
	defer cancel()
	remote, err := p.cfg.Remote()
	var missing []string
	if err == nil {
		missing, err = p.repo.FetchForAgent(ctx, remote, refname.BranchesOf(p.cfg.Pod.Task), at)
	}
	for _, ref := range missing {
		delete(at, ref)
	}
	if err == nil {
		return daemonapi.BranchUnfetched
	}
	p.log.Error(err, "the agent starts without branches of its checkpoints", "branches", len(at))
	clear(at)
	if letter, other := letterOf(err); other == nil {
		return letter
	}
	return daemonapi.BranchUnfetched
}

// agentBranch returns a branch as the agent's repository has it.
func agentBranch(b daemonapi.Branch) worktree.AgentBranch {
	return worktree.AgentBranch{Name: daemonapi.AgentBranchName(b.Name), Commit: b.Commit}
}

// letterOf returns the letter for the outcome of making a branch. Other errors are returned.
func letterOf(err error) (byte, error) {
	switch worktree.ReasonOf(err) {
	case worktree.BranchMoved:
		return daemonapi.BranchKept, nil
	case worktree.ReferenceExists:
		return daemonapi.BranchBeside, nil
	case worktree.InvalidReference:
		return daemonapi.BranchInvalid, nil
	case worktree.RepositoryUnsuited:
		return daemonapi.BranchUnsuited, nil
	}
	return daemonapi.BranchMade, err
}
