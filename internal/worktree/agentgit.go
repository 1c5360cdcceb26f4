package worktree

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/refname"
)

// AgentGit is the state of the agent's own repository at a checkpoint.
type AgentGit struct {
	// Head is the commit that HEAD resolves to; "" if there is none.
	Head string `json:"head,omitempty"`
	// Branch is the short name of the branch checked out; "" if HEAD is detached.
	Branch string `json:"branch,omitempty"`
	// Dirty lists at most Config.MaxListed of the files that git status would
	// list; DirtyCount is their total number.
	Dirty      []DirtyFile `json:"dirty,omitempty"`
	DirtyCount int         `json:"dirtyCount,omitempty"`
}

// DirtyFile is a file that git status would list.
type DirtyFile struct {
	Path string `json:"path"`
	// State is Modified, Deleted, Untracked or Conflicted, relative to the index.
	State string `json:"state"`
}

// maxRefBytes bounds the size of a packed-refs file, and of a reflog, that is read.
const maxRefBytes = 64 << 20

// agentHead reads HEAD of the agent's repository as plain data. Fields whose
// source cannot be parsed stay empty.
func agentHead(work *beneath) AgentGit {
	var a AgentGit
	raw, err := work.readFile(gitName+"/HEAD", 4<<10)
	if err != nil {
		if target, lerr := work.readLink(gitName + "/HEAD"); lerr == nil {
			raw = []byte("ref: " + target)
		}
	}
	text := strings.TrimSpace(string(raw))
	ref, symbolic := strings.CutPrefix(text, "ref:")
	if !symbolic {
		a.Head = commitID(text)
		return a
	}
	ref = strings.TrimSpace(ref)
	if checkRefName(ref) != nil {
		return a
	}
	if branch, ok := strings.CutPrefix(ref, "refs/heads/"); ok && utf8.ValidString(branch) {
		a.Branch = branch
	}
	a.Head = agentRef(work, ref)
	return a
}

// agentRef returns the id of the object that a ref of the agent's repository
// resolves to, or "".
func agentRef(work *beneath, ref string) string {
	for range 5 { // as many symbolic refs as git follows
		raw, err := work.readFile(gitName+"/"+ref, 4<<10)
		if err != nil {
			break
		}
		text := strings.TrimSpace(string(raw))
		next, symbolic := strings.CutPrefix(text, "ref:")
		if !symbolic {
			return commitID(text)
		}
		if ref = strings.TrimSpace(next); checkRefName(ref) != nil {
			return ""
		}
	}
	return readPacked(work, ref).ids[ref]
}

// maxRefName bounds the length of the names that are read from packed-refs: the file system takes
// no longer ones as paths, and whatever is found may get into a message.
const maxRefName = 1 << 10

// packedRefs is what the agent's packed-refs says of some refs.
type packedRefs struct {
	ids map[string]string
	// below has a ref that is below one of them.
	below map[string]string
}

// readPacked reads packed-refs once, whose size the agent determines.
func readPacked(work *beneath, refs ...string) packedRefs {
	p := packedRefs{ids: map[string]string{}, below: map[string]string{}}
	asked := map[string]bool{}
	for _, ref := range refs {
		asked[ref] = true
	}
	text, err := work.readFile(gitName+"/packed-refs", maxRefBytes)
	if err != nil {
		return p
	}
	for line := range bytes.Lines(text) {
		id, name, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		if !ok || len(name) > maxRefName {
			continue
		}
		if asked[string(name)] {
			if id := commitID(string(id)); p.ids[string(name)] == "" {
				p.ids[string(name)] = id
			}
		}
		for end, c := range name {
			if c != '/' || !asked[string(name[:end])] || p.below[string(name[:end])] != "" {
				continue
			}
			if found := string(name); checkRefName(found) == nil {
				p.below[string(name[:end])] = found
			}
		}
	}
	return p
}

// conflictsWith returns the refs that may prevent a branch from being created.
func conflictsWith(ref string) []string {
	refs := []string{ref}
	for end, c := range ref {
		if parent := ref[:end]; c == '/' && strings.HasPrefix(parent, "refs/heads/") {
			refs = append(refs, parent)
		}
	}
	return refs
}

// conflictingRef returns the ref of the agent's repository that prevents a ref of
// the given name from being created, or "". Refs are files, so no ref can be
// below another.
func conflictingRef(work *beneath, ref string) string {
	return readPacked(work, conflictsWith(ref)...).conflicting(work, ref)
}

// conflicting is conflictingRef with what packed-refs says of conflictsWith.
func (p packedRefs) conflicting(work *beneath, ref string) string {
	for _, at := range conflictsWith(ref) {
		info, err := work.lstat(gitName + "/" + at)
		folder := err == nil && info.Mode&unix.S_IFMT == unix.S_IFDIR
		switch {
		case p.ids[at] != "", err == nil && !folder:
			return at
		case folder && at == ref:
			return ref + "/"
		}
	}
	return p.below[ref]
}

// commitID returns text in lower case if it is an object id, otherwise "".
func commitID(text string) string {
	if _, err := parseOID(text); err != nil {
		return ""
	}
	return strings.ToLower(text)
}

// checkRefName returns an error if name is unsafe to pass to git as a ref, a
// branch or another revision.
func checkRefName(name string) error { return refname.Check(name) }

// isCommitID reports whether text is a full object id.
func isCommitID(text string) bool {
	_, err := parseOID(text)
	return err == nil
}
