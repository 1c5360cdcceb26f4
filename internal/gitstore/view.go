package gitstore

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/clew-dev/clew/internal/refname"
)

// view is the part of a shared repository that one caller may see: some refs, and what
// they reach. Nil folders mean all refs.
//
// Git itself does not protect the rest: version 2 of its protocol sends any object whose
// id the client knows, whatever refs are hidden, and a push may refer to objects that are
// already in the repository as if it contained them. Therefore only the old protocol is
// spoken, wants are checked (see checkWants), and a push must contain, or its task already
// see, everything that its refs reach (see checkConnectivity).
type view struct{ folders []string }

// viewOf returns the view of a caller in a repository. A task sees its own refs and those of
// the tasks it was started from; a reader of the namespace sees all refs of its tasks, or all but
// those of the agents' state.
func (s *Store) viewOf(ctx context.Context, caller Caller, repository Repository) (view, error) {
	switch {
	case caller.Task != nil:
		return s.taskView(*caller.Task, repository)
	}
	owned, err := s.belongings(repository.Namespace, caller.NamespaceUID)
	if err != nil || owned.all && !caller.CodeOnly {
		return view{}, err
	}
	return readerView(ctx, s.gitFor(repository), repository.Path, owned, caller.CodeOnly)
}

// readerView returns the view of a reader who may not see all refs: those of other namespaces that
// had the name, or those of the agents' state. It names what is seen and not what is hidden, so that
// what a task pushes meanwhile stays hidden.
func readerView(ctx context.Context, g git, path string, owned belongings, codeOnly bool) (view, error) {
	v := view{folders: []string{}}
	if owned.all {
		v.folders = append(v.folders, strings.TrimSuffix(branchRefs, "/"))
	}
	listed, err := g.run(ctx, path, "--git-dir=.", "for-each-ref", "--format=%(refname)", checkpointRefs, branchRefs, refname.AllDisplaced)
	for ref := range strings.Lines(listed) {
		if folder := readable(strings.TrimSuffix(ref, "\n"), owned, codeOnly); folder != "" && !slices.Contains(v.folders[max(0, len(v.folders)-1):], folder) {
			v.folders = append(v.folders, folder)
		}
	}
	return v, err
}

// readable returns the folder of refs that a reader sees because of one of its refs, or "".
func readable(ref string, owned belongings, codeOnly bool) string {
	if rest, ok := strings.CutPrefix(ref, branchRefs); ok {
		name, _, _ := strings.Cut(rest, "/")
		if owned.all || !owned.hasBranches(name) {
			return ""
		}
		return branchRefs + name
	}
	if rest, ok := strings.CutPrefix(ref, refname.AllDisplaced); ok {
		if uid, _, _ := strings.Cut(rest, "/"); owned.hasDisplaced(uid) {
			return refname.AllDisplaced + uid
		}
		return ""
	}
	uid, rest, _ := strings.Cut(strings.TrimPrefix(ref, checkpointRefs), "/")
	kind, _, _ := strings.Cut(rest, "/")
	switch {
	case !owned.has(uid):
		return ""
	case !codeOnly:
		return checkpointRefs + uid
	case slices.Contains([]string{"code", "head"}, kind):
		return checkpointRefs + uid + "/" + kind
	}
	return ""
}

// taskView returns the view of a task, without the branches of its name if they are those of
// another namespace's: a pod that only reads does not move them.
func (s *Store) taskView(task Task, repository Repository) (view, error) {
	v := viewOf(task)
	if !task.ReadOnly {
		return v, nil
	}
	f, err := s.fences(repository.Namespace)
	if err != nil {
		return v, err
	}
	record, err := f.read(task.UID)
	if record.madeRoom() {
		v.folders = slices.DeleteFunc(v.folders, func(folder string) bool { return folder == branchRefs+task.Name })
	}
	return v, err
}

// viewOf returns the view of a task.
func viewOf(task Task) view {
	v := view{folders: []string{checkpointRefs + task.UID, branchRefs + task.Name}}
	for _, uid := range task.Sources {
		if taskUID.MatchString(uid) {
			v.folders = append(v.folders, checkpointRefs+uid)
		}
	}
	return v
}

// hasCheckpoint reports whether a repository has a whole checkpoint of a task: its code and its state.
func (s *Store) hasCheckpoint(ctx context.Context, repository Repository, uid string) (bool, error) {
	if exists, err := repository.exists(); err != nil || !exists {
		return false, err
	}
	code, state := refname.OfTask(uid)+"code/", refname.OfTask(uid)+"state/"
	listed, err := s.gitFor(repository).run(ctx, repository.Path, "--git-dir=.", "for-each-ref", "--format=%(refname)", code, state)
	coded := map[string]bool{} // in this order, since git sorts them
	for _, ref := range strings.Fields(listed) {
		if number, ok := strings.CutPrefix(ref, code); ok {
			coded[number] = true
		} else if coded[strings.TrimPrefix(ref, state)] {
			return true, err
		}
	}
	return false, err
}

// hide returns the git configuration that hides all refs outside the view.
func (v view) hide() []string {
	if v.folders == nil {
		return nil
	}
	config := []string{"transfer.hideRefs", "refs"}
	for _, folder := range v.folders {
		config = append(config, "transfer.hideRefs", "!"+folder)
	}
	return config
}

// empty reports whether the view shows nothing.
func (v view) empty() bool { return v.folders != nil && len(v.folders) == 0 }

// refs lists the objects that the view's refs point to, the newest first.
func (v view) refs(ctx context.Context, g git, path string) ([]string, error) {
	if v.empty() {
		return nil, nil
	}
	listed, err := g.run(ctx, path, append([]string{"--git-dir=.", "for-each-ref", "--sort=-creatordate", "--format=%(objectname)"}, v.patterns()...)...)
	return strings.Fields(listed), err
}

// patterns returns the folders as arguments of git.
func (v view) patterns() []string {
	var patterns []string
	for _, folder := range v.folders {
		patterns = append(patterns, folder+"/")
	}
	return patterns
}

// checkpointCommitter is the committer address of checkpoint commits.
const checkpointCommitter = "clew@clew.dev"

// maxBases bounds how many commits are advertised beside a task's own.
const maxBases = 100

// bases returns the origin's commits on which tasks of a namespace took their first checkpoint. They
// and the history before them belong to the origin that all tasks of the repository were
// cloned from, and are shared: otherwise each task would push the whole history again.
// Checkpoint commits are never among them.
func bases(ctx context.Context, g git, path string, owned belongings) ([]string, error) {
	listed, err := g.run(ctx, path, "--git-dir=.", "for-each-ref", "--format=%(refname) %(parent)", checkpointRefs+"*/code/1")
	if err != nil {
		return nil, err
	}
	var ids []string
	for line := range strings.Lines(listed) {
		ref, parents, _ := strings.Cut(strings.TrimSpace(line), " ")
		if uid, _, _ := strings.Cut(strings.TrimPrefix(ref, checkpointRefs), "/"); owned.has(uid) {
			ids = append(ids, strings.Fields(parents)...)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(ids) == 0 {
		return nil, nil
	}
	ids = ids[:min(len(ids), maxBases)]
	makers, err := g.runWith(ctx, nil, strings.NewReader(strings.Join(ids, "\n")+"\n"), path,
		"--git-dir=.", "log", "--no-walk=unsorted", "--format=%H %ce", "--stdin")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(makers) {
		id, maker, _ := strings.Cut(strings.TrimSpace(line), " ")
		if maker != checkpointCommitter {
			found = append(found, id)
		}
	}
	return found, nil
}

// advertiseBases copies git's list of refs to a pusher. It adds the bases as ".have"
// lines, which is how git itself advertises objects that no listed ref reaches, and the
// capability no-thin: the base objects of a thin pack would otherwise count as part of
// the push.
func advertiseBases(to io.Writer, from io.Reader, bases []string) error {
	first, _, err := readPacket(from, 1<<16)
	if err != nil || first == nil {
		return fmt.Errorf("git's list of refs cannot be read: %w", err)
	}
	ref, capabilities, _ := strings.Cut(strings.TrimSuffix(string(first), "\n"), "\x00")
	if strings.HasSuffix(ref, " capabilities^{}") && len(bases) > 0 {
		ref, bases = bases[0]+" .have", bases[1:]
	}
	head := packet([]byte(ref + "\x00" + strings.TrimSpace(capabilities) + " no-thin\n"))
	for _, base := range bases {
		head = append(head, packet([]byte(base+" .have\n"))...)
	}
	if _, err := to.Write(head); err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return err
}
