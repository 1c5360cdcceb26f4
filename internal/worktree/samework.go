package worktree

import "context"

// SameWork reports whether a checkpoint holds the worktree as it is: its files, and the
// agent's repository with its branches and index. Unlike Drift.Same it disregards the agent's
// home, where an agent notes every step that it takes.
func (r *Repo) SameWork(ctx context.Context, expected Target) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, snap, err := r.drift(ctx, expected)
	if err != nil || !d.Clean() || d.HeadChanged() {
		return false, err
	}
	if !d.StateChanged {
		return true, nil
	}
	was, _, err := r.readTree(ctx, expected.State)
	if err != nil {
		return false, err
	}
	var attrs attributes
	if err := r.readJSON(ctx, was, stateEntries, &attrs); err != nil {
		return false, err
	}
	before, err := encodeJSON(attrs.Worktree)
	if err != nil {
		return false, failIO(err, "describe the state commit %s", expected.State)
	}
	now, err := encodeJSON(attributesOf(snap.work, r.pristine))
	if err != nil {
		return false, failIO(err, "describe the worktree %s", r.cfg.Worktree)
	}
	if string(before) != string(now) {
		return false, nil
	}
	return rootTree(ofWork(was)) == rootTree(ofWork(stateView(snap, r.pristine))), nil
}

// ofWork returns the part of a state tree that belongs to the worktree.
func ofWork(state *dir) *dir {
	out := &dir{}
	for _, name := range []string{stateGit, stateNested} {
		if e := state.find(name); e != nil {
			out.put(*e)
		}
	}
	return out
}
