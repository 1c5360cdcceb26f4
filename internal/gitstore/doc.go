// Package gitstore keeps the code of checkpoints: bare git repositories, one
// for each namespace and origin, served over smart HTTP by git's own upload-pack
// and receive-pack.
//
// A task's pod writes its own refs only (see checkCommands). Tasks of one origin
// share a repository, and so its objects: a fork of a task pushes refs, not files.
//
// What this promises:
//   - A push that was acknowledged is on the disk: objects, refs and the
//     folders that hold them were synced. Killing the gitstore at any instant
//     loses nothing acknowledged and leaves repositories that pass git fsck.
//   - A checkpoint's ref never changes once it is made.
//   - Only the newest attempt of a task writes (see Fences): once a newer one
//     was seen, no push of an older one lands, not even one already under way.
//   - What is deleted of a task is gone: its refs at once, and with them every
//     object that no other task reaches, from packs and loose files. A deletion
//     may be repeated, and one that was interrupted is finished. The task
//     pushes no more afterwards. While objects are removed from a repository,
//     its pushes and fetches wait.
//   - Received objects are complete and were checked by git fsck (see
//     fsckLevels).
//   - A task reads its own refs and those of the task that it was started from,
//     and no object beside: neither by its hash, nor by a push that names it as
//     if it had brought it (see view). Readers of a namespace see all refs.
//   - Git's memory, the places for requests, the bytes of a namespace and the time
//     that a client may stand still are bounded.
//
// What it does not hide: the history of the origin that tasks are based on, which
// all tasks of a repository share, and whether an object exists whose hash
// somebody knows already.
//
// The rules for refs and fences are checked twice: on the command list before
// git sees it, so that refusals come early, and by git's pre-receive hook,
// which is this same binary and runs when all objects are there, under a lock.
//
// Layout of the root folder:
//
//	gitconfig                            configuration of all repositories
//	hooks/pre-receive                    runs "gitstore hook pre-receive"
//	namespaces/<namespace>/<repo>.git    a repository
//	namespaces/<namespace>/fences/       a record and a lock per task UID; the
//	                                     record of a deleted task stays
package gitstore
