//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"crypto/sha1"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// replayed returns the trees after the first 0, 1, 2 … calls of the replaying agent. The
// agent runs on this machine, on its own clone of the demo's origin.
func (w *world) replayed(ctx context.Context, base string, calls int) (trees []string) {
	GinkgoHelper()
	dir := inMemory()
	agent, workspace, conversation := filepath.Join(dir, "replay"), filepath.Join(dir, "workspace"), filepath.Join(dir, "conversation.jsonl")
	run(exec.Command("go", "build", "-o", agent, "../../hack/demo/agent"))
	git(dir, "clone", "--quiet", "--no-checkout", "http://"+w.forward(ctx, originNamespace, "origin", 80)+"/clew.git", workspace)
	git(workspace, "checkout", "--quiet", "-B", "main", base)
	unchanged := hasher{}
	for n := range calls + 1 {
		// Given its conversation so far, the agent continues after the calls it made.
		work := exec.Command(agent, "--delay=0", "--check", fmt.Sprintf("--calls=%d", n))
		work.Dir, work.Env = workspace, append(gitEnv(), "HOME="+dir, "CLEW_CONVERSATION="+conversation)
		said := run(work)
		log, err := os.OpenFile(conversation, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		Expect(err).NotTo(HaveOccurred())
		_, err = log.WriteString(said)
		Expect(err).NotTo(HaveOccurred())
		Expect(log.Close()).To(Succeed())
		trees = append(trees, treeOf(unchanged, workspace))
	}
	// The trees prove something only if they are computed as git computes them.
	Expect(trees[0]).To(Equal(git(workspace, "rev-parse", base+"^{tree}")), "the tree of the workspace before any call")
	return trees
}

// git runs git on this machine, without any configuration.
func git(dir string, args ...string) string {
	GinkgoHelper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = dir, gitEnv()
	return strings.TrimSuffix(run(cmd), "\n")
}

func gitEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
}

// treeOf returns the id of the git tree of a folder's files. It is computed from the files
// alone, without git or Clew.
func treeOf(h hasher, folder string) string {
	GinkgoHelper()
	id, err := h.folder(folder)
	Expect(err).NotTo(HaveOccurred(), "read the files in %s", folder)
	return fmt.Sprintf("%x", id)
}

// hasher hashes as git does. It remembers the files that it read: a file with the same
// time and size is not read again.
type hasher map[string]hashed

type hashed struct {
	modified time.Time
	size     int64
	id       []byte
}

// folder leaves out what a tree does not contain: .git, and folders without a file, for
// which it returns nil.
func (h hasher) folder(folder string) ([]byte, error) {
	type item struct {
		mode, name string
		id         []byte
	}
	var items []item
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() == ".git" {
			continue
		}
		mode, id, err := h.file(filepath.Join(folder, e.Name()))
		if err != nil {
			return nil, err
		}
		if id != nil {
			items = append(items, item{mode, e.Name(), id})
		}
	}
	if len(items) == 0 {
		return nil, nil
	}
	// Git sorts a folder as if its name ended in a slash.
	order := func(i item) string {
		if i.mode == "40000" {
			return i.name + "/"
		}
		return i.name
	}
	slices.SortFunc(items, func(a, b item) int { return cmp.Compare(order(a), order(b)) })
	var tree []byte
	for _, i := range items {
		tree = append(fmt.Appendf(tree, "%s %s\x00", i.mode, i.name), i.id...)
	}
	return hashObject("tree", tree), nil
}

func (h hasher) file(path string) (mode string, id []byte, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", nil, err
	}
	switch {
	case info.IsDir():
		id, err = h.folder(path)
		return "40000", id, err
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(path)
		return "120000", hashObject("blob", []byte(target)), err
	case !info.Mode().IsRegular():
		return "", nil, fmt.Errorf("%s is a %s", path, info.Mode().Type())
	}
	mode = "100644"
	if info.Mode()&0o100 != 0 {
		mode = "100755"
	}
	known, is := h[path]
	current := known.modified.Equal(info.ModTime()) && known.size == info.Size()
	if !is || !current {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", nil, err
		}
		known = hashed{info.ModTime(), info.Size(), hashObject("blob", content)}
		h[path] = known
	}
	return mode, known.id, nil
}

func hashObject(kind string, content []byte) []byte {
	id := sha1.Sum(append(fmt.Appendf(nil, "%s %d\x00", kind, len(content)), content...))
	return id[:]
}
