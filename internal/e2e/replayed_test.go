//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"crypto/sha1"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// replayed are the trees that the first 0, 1, 2 … calls of the replaying agent
// leave. It does them here, on a clone of its own of the demo's origin.
func (w *world) replayed(base string, calls int) (trees []string) {
	w.Helper()
	dir := w.inMemory()
	agent, workspace, conversation := filepath.Join(dir, "replay"), filepath.Join(dir, "workspace"), filepath.Join(dir, "conversation.jsonl")
	w.run(exec.Command("go", "build", "-o", agent, "../../hack/demo/agent"))
	w.git(dir, "clone", "--quiet", "--no-checkout", "http://"+w.forward(originNamespace, "origin", 80)+"/clew.git", workspace)
	w.git(workspace, "checkout", "--quiet", "-B", "main", base)
	unchanged := hasher{}
	for n := range calls + 1 {
		// With its conversation so far the agent goes on after the calls it did.
		work := exec.Command(agent, "--delay=0", "--check", fmt.Sprintf("--calls=%d", n))
		work.Dir, work.Env = workspace, append(gitEnv(), "HOME="+dir, "CLEW_CONVERSATION="+conversation)
		said := w.run(work)
		log, err := os.OpenFile(conversation, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			w.Fatal(err)
		}
		if _, err := log.WriteString(said); err != nil {
			w.Fatal(err)
		}
		log.Close()
		trees = append(trees, w.treeOf(unchanged, workspace))
	}
	// The trees are worth something only if they are computed as git does.
	if want := w.git(workspace, "rev-parse", base+"^{tree}"); trees[0] != want {
		w.Fatalf("before any call the workspace is the tree %s and should be %s", trees[0], want)
	}
	return trees
}

// git runs git here, as someone without any configuration would.
func (w *world) git(dir string, args ...string) string {
	w.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = dir, gitEnv()
	return strings.TrimSuffix(w.run(cmd), "\n")
}

func gitEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
}

// run runs a command and returns what it prints.
func (w *world) run(cmd *exec.Cmd) string {
	w.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		w.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out.String(), errOut.String())
	}
	return out.String()
}

// treeOf is the id of the git tree that the files of a folder make. It is
// computed from the files alone, with nothing of git or Clew in between.
func (w *world) treeOf(h hasher, folder string) string {
	w.Helper()
	id, err := h.folder(folder)
	if err != nil {
		w.Fatalf("read the files in %s: %v", folder, err)
	}
	return fmt.Sprintf("%x", id)
}

// hasher hashes as git does. It holds the files it knows, each as it was when it
// was read: one with the same time and size is not read again.
type hasher map[string]hashed

type hashed struct {
	modified time.Time
	size     int64
	id       []byte
}

// folder leaves out what a tree does not hold: .git and, as nil, folders
// without a file.
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
	if !is || !known.modified.Equal(info.ModTime()) || known.size != info.Size() {
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
