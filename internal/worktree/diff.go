package worktree

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/internal/gitpath"
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
	// permission bits, empty folders, index or refs of the agent's repository,
	// nested repositories, session state. It is only set if the target has a state
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
	var d Drift
	var was expectedState
	if expected.State != "" {
		var err error
		if was, err = r.expectedState(ctx, expected.State); err != nil {
			return d, err
		}
		d.ExpectedHead, d.ExpectedBranch = was.agent.Head, was.agent.Branch
	}
	want := r.cache.work
	if expected.Code != r.base.code {
		tree, _, err := r.readTree(ctx, expected.Code)
		if err != nil {
			return d, err
		}
		want = tree
	}
	work, home, err := r.openRoots()
	if err != nil {
		return d, err
	}
	defer closeRoots(work, home)
	snap, err := r.scanRoots(ctx, work, home, 0, noLimit)
	if err != nil {
		return d, err
	}
	if expected.State != "" {
		agent := agentHead(work)
		d.Head, d.Branch = agent.Head, r.cfg.withoutSecrets(agent.Branch)
		if d.StateChanged, err = r.stateChanged(was, snap); err != nil {
			return d, err
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
	return d, nil
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

// DiffStat describes how two commits differ.
type DiffStat struct {
	Files                    []FileChange // sorted, at most Config.MaxListed
	FilesChanged             int
	LinesAdded, LinesRemoved int64
	BinaryFiles              int
}

// diffOptions keep git diff from running programs and from detecting renames.
var diffOptions = []string{"--no-ext-diff", "--no-textconv", "--no-renames", "--no-color", "--ignore-submodules=none"}

// Diff compares the code commits from and to, ids or refs. Errors:
// CheckpointNotFound, CheckpointCorrupted.
func (r *Repo) Diff(ctx context.Context, from, to string) (DiffStat, error) {
	var d DiffStat
	a, b, err := r.resolveBoth(ctx, from, to)
	if err != nil {
		return d, err
	}
	r.packs.RLock()
	defer r.packs.RUnlock()
	args := append([]string{"diff-tree", "-r", "-z", "--raw", "--numstat", "--abbrev=40"}, diffOptions...)
	out, err := r.git(ctx, gitCall{args: append(args, "--end-of-options", a.String(), b.String())})
	if err != nil {
		if ctx.Err() != nil {
			return d, ctx.Err()
		}
		return d, r.failCorrupt(err, "compare %s with %s", from, to)
	}
	d.parse(out, r.cfg.MaxListed)
	return d, nil
}

// resolveBoth resolves two names to commits.
func (r *Repo) resolveBoth(ctx context.Context, from, to string) (a, b oid, err error) {
	if a, err = r.resolve(ctx, from); err == nil {
		b, err = r.resolve(ctx, to)
	}
	return a, b, err
}

// parse reads the output of git diff-tree --raw --numstat -z: first, for each file,
// ":oldmode newmode old new status" and the path, then "added removed path".
func (d *DiffStat) parse(out []byte, limit int) {
	at := map[string]int{}
	for len(out) > 0 {
		var field []byte
		field, out, _ = bytes.Cut(out, []byte{0})
		if raw, ok := strings.CutPrefix(string(field), ":"); ok {
			var path []byte
			path, out, _ = bytes.Cut(out, []byte{0})
			d.FilesChanged++
			if f := strings.Fields(raw); len(f) == 5 && len(d.Files) < limit {
				at[string(path)] = len(d.Files)
				d.Files = append(d.Files, rawChange(string(path), f))
			}
			continue
		}
		parts := strings.SplitN(string(field), "\t", 3)
		if len(parts) != 3 {
			continue
		}
		added, err1 := strconv.ParseInt(parts[0], 10, 64)
		removed, err2 := strconv.ParseInt(parts[1], 10, 64)
		binary := err1 != nil || err2 != nil
		if binary {
			d.BinaryFiles++
		}
		d.LinesAdded += added
		d.LinesRemoved += removed
		if i, ok := at[parts[2]]; ok {
			d.Files[i].Added, d.Files[i].Removed, d.Files[i].Binary = added, removed, binary
		}
	}
	sortChanges(d.Files)
}

// rawChange converts the fields of a raw diff line.
func rawChange(path string, f []string) FileChange {
	c := FileChange{Path: gitpath.Quote(path), Action: Modified, Mode: f[1]}
	switch f[4] {
	case "A":
		c.Action = Added
	case "D":
		c.Action, c.Mode = Deleted, f[0]
	}
	return c
}

// Patch writes the unified diff between two code commits to w. It fails as Diff does.
func (r *Repo) Patch(ctx context.Context, from, to string, w io.Writer) error {
	a, b, err := r.resolveBoth(ctx, from, to)
	if err != nil {
		return err
	}
	r.packs.RLock()
	defer r.packs.RUnlock()
	args := append([]string{"diff-tree", "-r", "-p", "--full-index"}, diffOptions...)
	_, err = r.git(ctx, gitCall{args: append(args, "--end-of-options", a.String(), b.String()), stdout: w})
	if err != nil && ctx.Err() == nil {
		return r.failCorrupt(err, "compare %s with %s", from, to)
	}
	return err
}
