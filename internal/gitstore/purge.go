package gitstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/refname"
)

// use marks a repository as in use: while the file is open, here or in a child that
// inherited it, no leftovers are removed from the repository, and no objects.
func (r Repository) use(ctx context.Context) (*os.File, error) {
	gate, err := openLocked(ctx, r.gate(), syscall.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer gate.Close()
	return openLocked(ctx, r.useLock(), syscall.LOCK_SH)
}

// exclusive waits until nobody uses the repository, and keeps new users waiting until release
// is called. Without the gate, a busy repository would never become free.
func (r Repository) exclusive(ctx context.Context) (release func(), err error) {
	gate, err := openLocked(ctx, r.gate(), syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	used, err := openLocked(ctx, r.useLock(), syscall.LOCK_EX)
	if err != nil {
		return nil, errors.Join(err, gate.Close())
	}
	return func() { closeAll([]*os.File{used, gate}) }, nil
}

// mark returns the path of the file that marks a repository which may contain many unreachable
// objects because refs were deleted or replaced. The mark survives a killed process.
func (r Repository) mark() string { return filepath.Join(r.Path, "clew-purge") }

// marked reports whether the repository has its mark.
func (r Repository) marked() (bool, error) {
	_, err := os.Lstat(r.mark())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// taskRefs are the refs of a deleted task in one repository.
type taskRefs struct {
	uid, name string
	// shared is set if another task also writes branches under the name. Only branches
	// that point to a checkpoint of the deleted task then count as its own.
	shared bool
	// displaced are the folders of branches that had to make room and go with the task.
	displaced []string
}

// find lists the task's refs in a repository.
func (t taskRefs) find(ctx context.Context, s *Store, repository Repository) ([]string, error) {
	args := []string{"--git-dir=.", "for-each-ref", "--format=%(objectname) %(refname)", refname.OfTask(t.uid), refname.DisplacedOf(t.uid)}
	args = append(args, t.displaced...)
	if t.name != "" {
		args = append(args, refname.BranchesOf(t.name))
	}
	listed, err := s.gitFor(repository).run(ctx, repository.Path, args...)
	if err != nil {
		return nil, err
	}
	var refs, branches []string
	own := map[string]bool{}
	at := map[string]string{}
	for line := range strings.Lines(listed) {
		id, ref, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		at[ref] = id
		switch {
		case strings.HasPrefix(ref, checkpointRefs):
			refs, own[id] = append(refs, ref), true
		case strings.HasPrefix(ref, refname.AllDisplaced):
			refs = append(refs, ref)
		default:
			branches = append(branches, ref)
		}
	}
	for _, branch := range branches {
		if !t.shared || own[at[branch]] {
			refs = append(refs, branch)
		}
	}
	return refs, nil
}

// deleteRefs deletes all of the task's refs in a repository or none, and marks the
// repository for a purge of the objects. It returns how many refs it deleted.
func (s *Store) deleteRefs(ctx context.Context, repository Repository, task taskRefs) (int, error) {
	used, err := repository.use(ctx)
	if err != nil {
		return 0, err
	}
	defer used.Close()
	refs, err := task.find(ctx, s, repository)
	if err != nil || len(refs) == 0 {
		return 0, err
	}
	if err := durable.WriteShared(repository.mark(), temporaryFiles, nil, 0o644); err != nil {
		return 0, err
	}
	var commands strings.Builder
	for _, ref := range refs {
		fmt.Fprintf(&commands, "delete %s\x00\x00", ref)
	}
	_, err = s.gitFor(repository).runWith(ctx, []*os.File{used}, strings.NewReader(commands.String()), repository.Path, "--git-dir=.", "update-ref", "--stdin", "-z")
	if err != nil {
		return 0, err
	}
	return len(refs), syncFolders(filepath.Join(repository.Path, "refs"))
}

// purge removes all objects of a marked repository that no ref reaches, from packs and
// from loose files. It uses the repository exclusively, so that no push can build on an
// object that is being removed, and no fetch can miss one; waiting bounds how long it
// waits for that. Killed at any instant, it leaves a valid repository and the mark.
func (s *Store) purge(ctx, waiting context.Context, repository Repository) error {
	release, err := repository.exclusive(waiting)
	if err != nil {
		return err
	}
	defer release()
	if marked, err := repository.marked(); err != nil || !marked {
		return err
	}
	// Unfinished packs contain objects as well, and git would keep a pack with a .keep.
	if _, err := repository.clear(); err != nil {
		return err
	}
	if err := s.indexPacks(ctx, s.gitFor(repository), repository); err != nil {
		return err
	}
	objects := filepath.Join(repository.Path, "objects")
	// The commit graph must not name removed commits; it is rewritten below.
	for _, name := range []string{"commit-graph", "commit-graphs"} {
		if err := os.RemoveAll(filepath.Join(objects, "info", name)); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"pack-refs", "--all"},
		{"repack", "-a", "-d", "--quiet"},
		{"prune", "--expire=now"},
		{"commit-graph", "write", "--reachable", "--split", "--no-progress"},
	} {
		if _, err := s.gitFor(repository).run(ctx, repository.Path, append([]string{"--git-dir=."}, args...)...); err != nil {
			return err
		}
	}
	if err := syncFolders(objects); err != nil {
		return err
	}
	if err := os.Remove(repository.mark()); err != nil {
		return err
	}
	return durable.SyncFolder(repository.Path)
}
