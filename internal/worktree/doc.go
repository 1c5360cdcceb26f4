// Package worktree runs git on one working tree: checkpoint, restore, diff and
// verify. It does not depend on Kubernetes and uses only a git binary and,
// through it, the git remote of a push or fetch.
//
// # What it promises
//
//   - A checkpoint is exact and durable. It holds every file of the worktree,
//     untracked and ignored ones included, byte for byte, with symbolic links,
//     permission bits and empty folders, and the agent's own repository as the
//     agent left it: HEAD, branches, index, an unfinished merge. It lists what it
//     cannot hold: files over a limit, sockets, unreadable files.
//   - A restore is all or nothing. Every object is read and hashed before the
//     first file is changed. A restore that is killed at any instant and run
//     again produces the exact tree. Files that a checkpoint skipped are never
//     changed or deleted, except for named pipes: they are listed as skipped, too,
//     but a restore makes and removes them as it does files.
//   - Nothing the agent wrote is ever executed or followed. The worktree, its
//     .git, its attributes and its links are untrusted. They are read as data,
//     through file descriptors that do not follow links, while the agent may be
//     changing them.
//
// # How
//
// The package keeps a bare repository of its own (Config.GitDir) that the
// agent cannot access, and runs git in that repository only. The one exception
// is Clone, which lets git populate a worktree and a .git that the package has
// just created and that no agent has seen.
//
// A checkpoint is two commits. The code commit's tree is the worktree without
// anything called .git. The state commit's tree holds, as plain data,
//
//	git/…          the agent's .git
//	nested/…       the .git of nested repositories and submodules, by path
//	home/…         the agent's session state
//	entries.json   permission bits, empty folders, named pipes, skipped files
//	meta.json      the agent's HEAD, branch and dirty files, totals
//
// Objects that came from the origin are not stored again as data, since the
// bare repository already has them. The only parent of a state commit is the
// "pristine" commit, whose parents are the origin's tips. A state commit is
// therefore enough to rebuild the agent's repository without the origin.
package worktree
