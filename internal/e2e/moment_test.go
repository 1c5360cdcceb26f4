//go:build e2e

package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// moment is everything that a rewind may change, as the node has it on the task's volume and the
// history in its store.
type moment struct {
	// files are the entries of the worktree by path, without the agent's own repository: their
	// kinds, permissions and contents. session are those of the agent's home.
	files, session map[string]entry
	// git is what the agent's repository says: HEAD, its branch, the index, and the branches but
	// those by which Clew keeps a state.
	git string
	// messages are those of the conversation, in order.
	messages []string
}

// entry is one file, folder or link.
type entry struct {
	kind    fs.FileMode // of git: a folder, a link, a file or an executable file
	perm    fs.FileMode
	content string // its digest, or the link's target
}

// readMoment reads the moment at which a task is.
func (w *world) readMoment(ctx context.Context, task string) moment {
	GinkgoHelper()
	volume := w.volumeFolder(ctx, w.namespace, task+"-workspace")
	m := moment{
		files:   readEntries(filepath.Join(volume, "worktree"), ".git"),
		session: readEntries(filepath.Join(volume, "home"), ""),
		git:     readGit(filepath.Join(volume, "worktree")),
	}
	for _, e := range w.conversation(ctx, task) {
		m.messages = append(m.messages, fmt.Sprintf("%d %s %s %v %v", e.Position, e.Role, e.Text, e.ToolCall, e.ToolResult))
	}
	return m
}

// readEntries reads everything below a folder, but one entry of it.
func readEntries(folder, except string) map[string]entry {
	GinkgoHelper()
	entries := map[string]entry{}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		name, _ := filepath.Rel(folder, path)
		if name == except {
			return fs.SkipDir
		}
		entries[name], err = readEntry(path)
		return err
	})
	Expect(err).NotTo(HaveOccurred())
	return entries
}

func readEntry(path string) (entry, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return entry{}, err
	}
	e := entry{kind: info.Mode().Type(), perm: info.Mode().Perm()}
	switch {
	case info.Mode().Type() == fs.ModeSymlink:
		e.perm = 0
		e.content, err = os.Readlink(path)
	case info.Mode().IsRegular():
		e.kind |= info.Mode().Perm() & 0o100
		var content []byte
		content, err = os.ReadFile(path)
		e.content = fmt.Sprintf("%x", sha256.Sum256(content))
	}
	return e, err
}

// readGit reads the agent's repository with the rights of its owner.
func readGit(worktree string) string {
	GinkgoHelper()
	info, err := os.Stat(worktree)
	Expect(err).NotTo(HaveOccurred())
	owner := info.Sys().(*syscall.Stat_t)
	var said strings.Builder
	for _, args := range [][]string{
		{"rev-parse", "HEAD"}, {"rev-parse", "--symbolic-full-name", "HEAD"}, {"ls-files", "--stage"},
		{"for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/", "refs/tags/"},
	} {
		git := exec.Command("git", append([]string{"-C", worktree, "-c", "safe.directory=*"}, args...)...)
		git.Env = []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_OPTIONAL_LOCKS=0", "PATH=" + os.Getenv("PATH")}
		git.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
		for line := range strings.Lines(run(git)) {
			if !strings.HasPrefix(line, "refs/heads/clew/") {
				said.WriteString(line)
			}
		}
	}
	return said.String()
}

// changesTo returns what becomes of each file of the worktree that git would store, by path.
// Permissions that git does not store make no change.
func (m moment) changesTo(next moment) map[string]string {
	changes := map[string]string{}
	before, after := gitFiles(m.files), gitFiles(next.files)
	for path, was := range before {
		is, stays := after[path]
		switch {
		case !stays:
			changes[path] = "D"
		case is != was:
			changes[path] = "M"
		}
	}
	for path := range after {
		if _, was := before[path]; !was {
			changes[path] = "A"
		}
	}
	return changes
}

// gitFiles returns the entries that a commit has: no folders, and nothing of nested repositories'
// own files.
func gitFiles(entries map[string]entry) map[string]entry {
	files := map[string]entry{}
	for path, e := range entries {
		if e.kind != fs.ModeDir && !slices.Contains(strings.Split(path, "/"), ".git") {
			e.perm = 0
			files[path] = e
		}
	}
	return files
}
