package worktree

import (
	"context"
	"slices"
	"strings"
)

// Drift describes how the worktree differs from a checkpoint.
type Drift struct {
	Files        []FileChange // at most Config.MaxListed, without line counts
	Count        int
	ExpectedHead string // of the agent's repository
	Head         string
	// ExpectedBranch and Branch are "" where HEAD is detached.
	ExpectedBranch string
	Branch         string
	// StateChanged is true if anything else that the checkpoint holds differs:
	// permission bits, empty folders, named pipes, index or refs of the agent's
	// repository, nested repositories, session state. It is only set if the target has a state
	// commit.
	StateChanged bool
}

// Clean reports whether no file differs.
func (d Drift) Clean() bool { return d.Count == 0 }

// Same reports whether the checkpoint holds exactly the current state. Even a git
// status that refreshed the index counts as a difference.
func (d Drift) Same() bool { return d.Clean() && !d.HeadChanged() && !d.StateChanged }

// HeadChanged reports whether the agent's HEAD or its branch differs.
func (d Drift) HeadChanged() bool { return d.ExpectedHead != d.Head || d.ExpectedBranch != d.Branch }

// Drift compares the worktree with a checkpoint. Without a state commit in the
// target, HEAD is not compared.
func (r *Repo) Drift(ctx context.Context, expected Target) (Drift, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, _, err := r.drift(ctx, expected)
	return d, err
}

// drift is Drift while mu is held. It also returns the scan.
func (r *Repo) drift(ctx context.Context, expected Target) (d Drift, snap *snapshot, err error) {
	var was expectedState
	if expected.State != "" {
		if was, err = r.expectedState(ctx, expected.State); err != nil {
			return d, nil, err
		}
		d.ExpectedHead, d.ExpectedBranch = was.agent.Head, was.agent.Branch
	}
	want := r.cache.work
	if expected.Code != r.base.code {
		tree, _, err := r.readTree(ctx, expected.Code)
		if err != nil {
			return d, nil, err
		}
		want = tree
	}
	work, home, err := r.openRoots()
	if err != nil {
		return d, nil, err
	}
	defer closeRoots(work, home)
	snap, err = r.scanRoots(ctx, work, home, 0, noLimit)
	if err != nil {
		return d, nil, err
	}
	if expected.State != "" {
		agent := agentHead(work)
		d.Head, d.Branch = agent.Head, r.cfg.withoutSecrets(agent.Branch)
		if d.StateChanged, err = r.stateChanged(was, snap); err != nil {
			return d, nil, err
		}
	}
	changes := diffTrees(want, snap.work)
	for i := range head(changes, r.cfg.MaxListed) {
		d.Files = append(d.Files, describeChange(&changes[i]))
	}
	sortChanges(d.Files)
	d.Count = len(changes)
	// A cache that matches a commit is worth more than an up-to-date one: the next
	// checkpoint builds on it.
	switch {
	case r.base.code == "":
		r.remember(snap, baseline{})
	case d.Clean() && r.base.code == expected.Code:
		base := r.base
		if rootTree(stateView(snap, r.pristine)) != rootTree(stateView(&r.cache, r.pristine)) {
			base.state, base.stateTree, base.summary = "", noOID, nil
		}
		r.remember(snap, base)
	}
	return d, snap, nil
}

// expectedState is what Drift compares besides the worktree's files.
type expectedState struct {
	agent AgentGit
	tree  oid
	meta  *entry // nil if the commit has no meta.json
}

// expectedState reads a state commit, or answers from memory if this process wrote that
// commit last: a running agent is checked after each of its steps, which must not cost a
// git process each time.
func (r *Repo) expectedState(ctx context.Context, state string) (expectedState, error) {
	if sum := r.base.summary; sum != nil && r.base.state == state {
		return expectedState{sum.agent, r.base.stateTree, &entry{name: stateMeta, mode: modeFile, oid: sum.meta}}, nil
	}
	meta, err := r.ReadMeta(ctx, state)
	if err != nil {
		return expectedState{}, err
	}
	tree, _, err := r.readTree(ctx, state)
	if err != nil {
		return expectedState{}, err
	}
	return expectedState{meta.Agent, rootTree(tree), tree.find(stateMeta)}, nil
}

// stateChanged reports whether a scan, apart from the worktree's files, differs
// from a state commit.
func (r *Repo) stateChanged(expected expectedState, snap *snapshot) (bool, error) {
	attrs := attributes{Version: 1, Worktree: attributesOf(snap.work, r.pristine)}
	if snap.home != nil {
		attrs.Home = attributesOf(snap.home, nil)
	}
	text, err := encodeJSON(attrs)
	if err != nil {
		return false, failIO(err, "describe the worktree %s", r.cfg.Worktree)
	}
	have := stateView(snap, r.pristine)
	have.put(entry{name: stateEntries, mode: modeFile, oid: hashObject("blob", text)})
	if expected.meta != nil {
		have.put(*expected.meta)
	}
	return expected.tree != rootTree(have), nil
}

func sortChanges(files []FileChange) {
	slices.SortFunc(files, func(a, b FileChange) int { return strings.Compare(a.Path, b.Path) })
}
