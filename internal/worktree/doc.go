// Package worktree is git on one working tree: checkpoint, restore, diff and
// verify. It knows nothing of Kubernetes and talks to nothing but a git binary
// and, when asked to push or fetch, to a git remote through it.
//
// # What it promises
//
//   - A checkpoint is exact and durable. It holds every file of the worktree,
//     untracked and ignored ones included, byte for byte, with symbolic links,
//     permission bits and empty folders, and the agent's own repository as the
//     agent left it: HEAD, branches, index, an unfinished merge. What it cannot
//     hold (files over a limit, sockets, unreadable files) it lists.
//   - A restore is all or nothing. Every object is read and hashed before the
//     first file is touched; killed at any instant and run again, it ends in
//     the exact tree; what a checkpoint skipped is never changed or deleted.
//   - Nothing the agent wrote is ever executed or followed. The worktree, its
//     .git, its attributes and its links are untrusted: they are read as data,
//     by file descriptors that do not follow links, while the agent may be
//     changing them.
//
// # How
//
// The package keeps a bare repository of its own (Config.GitDir) which the
// agent cannot reach, and runs git in that repository only. The one exception
// is Clone, which lets git fill a worktree and a .git that the package made a
// moment before and that no agent has seen.
//
// A checkpoint is two commits. The code commit's tree is the worktree without
// anything called .git. The state commit's tree holds, as plain data,
//
//	git/…          the agent's .git
//	nested/…       the .git of nested repositories and submodules, by path
//	home/…         the agent's session state
//	entries.json   permission bits, empty folders, skipped files
//	meta.json      the agent's HEAD, branch and dirty files, totals
//
// Objects that came from the origin are not stored again as data: they are in
// the bare repository anyway. The state commit's only parent, the "pristine"
// commit, has the origin's tips as parents, so that whoever has a state commit
// can rebuild the agent's repository without the origin.
package worktree
