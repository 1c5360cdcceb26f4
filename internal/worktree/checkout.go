package worktree

import (
	"context"
	"crypto/sha1"
	"encoding/binary"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// FindCheckout reports whether the agent's HEAD is on a branch, at its commit. If it is not, and
// CheckOut would refuse to bring it there, it says why: the agent's repository has the branch
// elsewhere (BranchMoved); it is in the middle of something that a checkout would break off
// (UnfinishedWork); or it lacks the branch, or is not one that Clew writes to
// (RepositoryUnsuited).
//
// It only reads. Other errors: WorktreeMissing, GitFailed.
func (r *Repo) FindCheckout(b AgentBranch) (there bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	work, err := r.openAgentRepository()
	if err != nil {
		return false, err
	}
	defer work.close()
	return findCheckout(work, b)
}

// findCheckout is FindCheckout in an open worktree.
func findCheckout(work *beneath, b AgentBranch) (there bool, err error) {
	made, err := findAgentBranch(work, b, packedOf(work, []AgentBranch{b}))
	switch at := agentHead(work); {
	case err != nil:
		return false, err
	case !made:
		return false, fail(RepositoryUnsuited, nil, "the agent's repository has no branch %q", b.Name)
	case at.Branch == b.Name && at.Head == b.Commit:
		return true, nil
	}
	for _, name := range unfinished {
		if _, err := work.lstat(gitName + "/" + name); err == nil {
			return false, fail(UnfinishedWork, nil, "the agent's repository is in the middle of something (.git/%s exists), which a checkout would break off: have the agent finish or abort it first", name)
		}
	}
	for _, name := range []string{"HEAD", "index"} {
		if info, err := work.lstat(gitName + "/" + name); err == nil && info.Mode&unix.S_IFMT == unix.S_IFDIR {
			return false, fail(RepositoryUnsuited, nil, "in the agent's repository, .git/%s is a folder", name)
		}
	}
	return false, nil
}

// unfinished are files in a repository that git makes when it begins something that may take
// several commands, and removes at its end.
var unfinished = []string{"MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG", "rebase-merge", "rebase-apply", "sequencer"}

// CheckOut brings the agent's HEAD to a branch of its repository, with an index that has the files
// of the branch's commit, which this repository must have as well. The commit is the one by which
// the checkpoint whose files are those of code is published, and the worktree must have exactly the
// checkpoint's files: none is written, and git status then shows none but those that git never adds,
// such as nested repositories. It writes files and runs no git there. It may be killed at any
// instant, and called again.
//
// Errors: those of FindCheckout, CheckpointNotFound and CheckpointCorrupted (the commit or code),
// StorageFull.
func (r *Repo) CheckOut(ctx context.Context, b AgentBranch, code string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	work, err := r.openAgentRepository()
	if err != nil {
		return err
	}
	defer work.close()
	there, err := findCheckout(work, b)
	if err != nil || there {
		return err
	}
	files, _, err := r.readTree(ctx, b.Commit)
	if err != nil {
		return err
	}
	now, _, err := r.readTree(ctx, code)
	if err != nil {
		return err
	}
	index := encodeIndex(work, files, now)
	err = work.replace(gitName+"/index", 0o644, func(f *os.File) error {
		_, err := f.Write(index)
		return err
	})
	if err == nil {
		// An older index with the new HEAD would be worse: it says that the agent has staged
		// the way back.
		err = work.sync()
	}
	if err == nil {
		err = putAgentFile(work, "HEAD", "ref: refs/heads/"+b.Name)
	}
	if err != nil {
		return unsuited(err, "check out the branch %s", b.Name)
	}
	return failIO(work.sync(), "make %s durable", work.path)
}

// RestoreHead brings HEAD and index of the agent's repository back to what they are in a
// checkpoint, which undoes a CheckOut. Everything else stays as it is. It first reads what it will
// write, and may be called again after it was killed.
//
// Errors: RepositoryUnsuited, WorktreeMissing, CheckpointNotFound, CheckpointCorrupted, StorageFull.
func (r *Repo) RestoreHead(ctx context.Context, want Target) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, err := r.readTarget(ctx, want)
	if err != nil {
		return err
	}
	work, err := r.openAgentRepository()
	if err != nil {
		return err
	}
	defer work.close()
	var p plan
	for _, path := range []string{gitName + "/index", gitName + "/HEAD"} {
		switch e := t.work.lookup(path); {
		case e != nil && e.dir == nil:
			p.writes = append(p.writes, op{path: path, e: e})
		case path == gitName+"/HEAD":
			return fail(CheckpointNotFound, nil, "the checkpoint %s has no HEAD of an agent's repository", t.code)
		default:
			p.removes = append(p.removes, op{path: path})
		}
	}
	s := &restoring{r: r, ctx: ctx}
	blobs, err := s.verifyContent([2]*plan{&p})
	if err != nil {
		return err
	}
	if err := s.apply(work, &p, blobs); err != nil {
		return err
	}
	return failIO(work.sync(), "make %s durable", work.path)
}

// indexFile is a file, or a submodule, that an index lists.
type indexFile struct {
	path string
	mode uint32
	oid  oid
	// known is set if the worktree has the file with this content.
	known bool
}

// indexFiles adds those of a folder of a tree to a list. The worktree has the folder now, or nil.
func indexFiles(d, now *dir, path string, list []indexFile) []indexFile {
	for i := range d.entries {
		e := &d.entries[i]
		n := now.find(e.name)
		full := joinPath(path, e.name)
		switch {
		case e.isSubmodule():
			list = append(list, indexFile{full, modeSub, e.link, true})
		case e.dir != nil && n != nil:
			list = indexFiles(e.dir, n.dir, full, list)
		case e.dir != nil:
			list = indexFiles(e.dir, nil, full, list)
		default:
			list = append(list, indexFile{full, e.mode, e.oid, n != nil && n.dir == nil && n.mode == e.mode && n.oid == e.oid})
		}
	}
	return list
}

// encodeIndex returns a git index, of version 2, with the files of a tree. An entry has the
// attributes of the file in the worktree, so that git need not read it again, if the worktree has
// it with this content. Git finds out about others: a checkpoint leaves some files out, and some
// differ in line endings only.
func encodeIndex(work *beneath, files, now *dir) []byte {
	list := indexFiles(files, now, "", nil)
	slices.SortFunc(list, func(a, b indexFile) int { return strings.Compare(a.path, b.path) })
	out := binary.BigEndian.AppendUint32([]byte("DIRC"), 2)
	out = binary.BigEndian.AppendUint32(out, uint32(len(list)))
	for _, f := range list {
		begin := len(out)
		for _, word := range indexStat(work, f) {
			out = binary.BigEndian.AppendUint32(out, word)
		}
		out = append(out, f.oid[:]...)
		out = binary.BigEndian.AppendUint16(out, uint16(min(len(f.path), 0xfff)))
		out = append(out, f.path...)
		out = append(out, make([]byte, 8-(len(out)-begin)%8)...)
	}
	sum := sha1.Sum(out)
	return append(out, sum[:]...)
}

// indexStat returns the first words of an index entry. Those that are about a file whose content is
// unknown, or which cannot be looked at, are 0, and git reads it again.
func indexStat(work *beneath, f indexFile) [10]uint32 {
	st, err := work.lstat(f.path)
	if err != nil || !f.known {
		return [10]uint32{6: f.mode}
	}
	return [10]uint32{
		uint32(st.Ctim.Sec), uint32(st.Ctim.Nsec), uint32(st.Mtim.Sec), uint32(st.Mtim.Nsec),
		uint32(st.Dev), uint32(st.Ino), f.mode, st.Uid, st.Gid, uint32(st.Size),
	}
}
