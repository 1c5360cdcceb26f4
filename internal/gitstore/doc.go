// Package gitstore keeps the code of checkpoints: bare git repositories, one
// for each name of a namespace and each origin, served over smart HTTP by git's own upload-pack
// and receive-pack.
//
// A task's pod writes only its own refs (see checkCommands). Tasks of one origin
// share a repository and therefore its objects: a fork of a task pushes refs, not files.
//
// The package promises:
//   - An acknowledged push is on disk: its objects, its refs and the folders that
//     hold them are synced. Killing the gitstore at any instant loses nothing that
//     was acknowledged and leaves repositories that pass git fsck.
//   - A checkpoint's ref never changes once it exists.
//   - The difference between two points of a task is that of commits which the task's own
//     refs reach, within limits for the memory, time and size that a page takes.
//   - A verification of a checkpoint finds every object of it that is missing or differs from
//     what was stored. It reads each file once a day. Indexes of packs are made again.
//   - Only the newest attempt of a task writes (see fences): once a newer attempt
//     has been seen, no push of an older one lands, not even one in progress.
//   - Deleting a task's checkpoints removes its refs at once, and then every object
//     that no other ref reaches, from packs and from loose files. A deletion
//     may be repeated, and an interrupted one is finished later. The task can no
//     longer push afterwards. Pushes to and fetches from a repository wait while
//     its objects are being removed.
//   - Received objects are complete and have passed git fsck (see fsckLevels).
//   - A task reads its own refs and those of the task it was started from, and no
//     other object: neither by asking for its hash, nor by a push that refers to
//     it as if it were part of the push (see view). Readers of a namespace see all
//     refs of its tasks.
//   - A namespace that is made anew under an old name sees, fetches and builds on nothing
//     of the old one's tasks, unless the history is granted to it (see owners).
//   - Git's memory, the slots for requests, the bytes of a namespace and the time
//     that a client may stall are bounded.
//
// It does not hide the history of the origin that tasks are based on, which all
// tasks of a namespace in a repository share, nor whether an object exists whose hash the
// caller already knows. All namespaces that have had a name share its quota.
//
// That they share its folder is on purpose. The history decides who has what, by task, and
// the gitstore writes down what it is told; if each namespace had a folder, a grant would
// have to join repositories that are in use, and each request about a task would depend on
// how far that is. As it is, a grant changes what readers see, in one small file.
//
// The rules for refs and fences are checked twice: on the command list before
// git sees it, so that refusals come early, and in git's pre-receive hook,
// which is this same binary and runs under a lock once all objects have arrived.
//
// Layout of the root folder:
//
//	gitconfig                            configuration of all repositories
//	hooks/pre-receive                    runs "gitstore hook pre-receive"
//	namespaces/<namespace>/<repo>.git    a repository
//	namespaces/<namespace>/owners.json   which namespaces of the name share what they have
//	namespaces/<namespace>/fences/       a record and a lock file per task UID; the
//	                                     record of a deleted task is kept
package gitstore
