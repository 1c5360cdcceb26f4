package worktree

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// AgentGit is what the agent's own repository said at a checkpoint.
type AgentGit struct {
	// Head is the commit that HEAD leads to; "" if there is none.
	Head string `json:"head,omitempty"`
	// Branch is the short name of the branch checked out; "" if detached.
	Branch string `json:"branch,omitempty"`
	// Dirty lists at most Config.MaxListed files that git status would list;
	// DirtyCount says how many there are.
	Dirty      []DirtyFile `json:"dirty,omitempty"`
	DirtyCount int         `json:"dirtyCount,omitempty"`
}

// DirtyFile is a file that git status would list.
type DirtyFile struct {
	Path string `json:"path"`
	// State is Modified, Deleted, Untracked or Conflicted, against the index.
	State string `json:"state"`
}

// maxRefBytes is how much of a packed-refs file is read.
const maxRefBytes = 64 << 20

// agentHead reads HEAD of the agent's repository as plain data. Whatever cannot
// be made sense of leaves the fields empty.
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

// agentRef returns the object that a ref of the agent's repository names, or "".
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
	packed, err := work.readFile(gitName+"/packed-refs", maxRefBytes)
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(packed) {
		id, name, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		if ok && name == ref {
			return commitID(id)
		}
	}
	return ""
}

func commitID(text string) string {
	if _, err := parseOID(text); err != nil {
		return ""
	}
	return strings.ToLower(text)
}

// checkRefName reports why git must not be given name as a ref, a branch or
// another revision. It is stricter than git check-ref-format: a leading dash is
// refused, since a command could take it for an option.
func checkRefName(name string) error {
	switch {
	case name == "" || len(name) > 1024:
		return fmt.Errorf("it must have 1 to 1024 bytes")
	case !utf8.ValidString(name):
		return fmt.Errorf("it is not valid UTF-8")
	case strings.Contains(name, "..") || strings.Contains(name, "@{") || strings.Contains(name, "//") || name == "@":
		return fmt.Errorf("it must not contain \"..\", \"//\" or \"@{\"")
	case strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") || strings.HasSuffix(name, "."):
		return fmt.Errorf("it must not begin with a slash or end with a slash or a dot")
	}
	for _, r := range name {
		if r <= ' ' || r == 0x7f || strings.ContainsRune("~^:?*[\\", r) {
			return fmt.Errorf("it must not contain %q", r)
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") || strings.HasPrefix(part, "-") || strings.HasSuffix(part, ".lock") {
			return fmt.Errorf("no part of it may begin with a dot or a dash or end with .lock")
		}
	}
	return nil
}

// isCommitID reports whether text is a whole object id.
func isCommitID(text string) bool {
	_, err := parseOID(text)
	return err == nil
}
