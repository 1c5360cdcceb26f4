package gitstore

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// view is what one caller may see of a repository that others share: some refs,
// and what these lead to. Nil folders are a view of all refs.
//
// Git is no help in keeping the rest back: version 2 of its protocol gives out
// any object whose id somebody knows, whatever is hidden, and a push may name
// objects that are there already as if it had brought them. Hence: the old
// protocol is spoken alone, wants are checked (see checkWants), and so is that a
// push brings, or is seen to have, all that its refs lead to (see checkBrought).
type view struct{ folders []string }

// viewOf is the view of a caller. A task sees its own refs and those of the tasks
// that it was started from; a reader may read the namespace, and sees all.
func viewOf(caller Caller) view {
	if caller.Task == nil {
		return view{}
	}
	v := view{folders: []string{checkpointRefs + caller.Task.UID, branchRefs + caller.Task.Name}}
	for _, uid := range caller.Task.Sources {
		if taskUID.MatchString(uid) {
			v.folders = append(v.folders, checkpointRefs+uid)
		}
	}
	return v
}

// hide is the configuration by which git shows the view's refs alone.
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

// refs lists what the refs of the view point at, the newest first.
func (v view) refs(ctx context.Context, g git, path string) ([]string, error) {
	args := []string{"--git-dir=.", "for-each-ref", "--sort=-creatordate", "--format=%(objectname)"}
	for _, folder := range v.folders {
		args = append(args, folder+"/")
	}
	listed, err := g.run(ctx, path, args...)
	return strings.Fields(listed), err
}

// checkpointMaker is the address of whoever makes the commits of checkpoints.
const checkpointMaker = "clew@clew.dev"

// maxBases bounds how many commits are told of beside a task's own.
const maxBases = 100

// bases are the commits of the origin on which tasks took their first checkpoint.
// They, and the history before them, belong to the origin that all tasks of the
// repository were cloned from, and are shared: otherwise each task would bring
// the whole history again. The commits of checkpoints are never among them.
func bases(ctx context.Context, g git, path string) ([]string, error) {
	parents, err := g.run(ctx, path, "--git-dir=.", "for-each-ref", "--format=%(parent)", checkpointRefs+"*/code/1")
	if err != nil {
		return nil, err
	}
	ids := strings.Fields(parents)
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
		if maker != checkpointMaker {
			found = append(found, id)
		}
	}
	return found, nil
}

// advertiseBases copies git's list of refs to a pusher, and adds the bases, as
// git itself tells of objects that it has by other ways, and the wish that no
// pack builds on objects that it does not hold: what such a pack names would
// come to count as brought.
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
