package worktree

import (
	"fmt"
	"os"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// closeFD closes a descriptor that was only read from, so its error is ignored.
func closeFD(fd int) { _ = unix.Close(fd) }

// writeGit writes the agent's repository as git clone would, except for objects
// and index. It must include everything git requires of a repository and nothing
// that makes git run a program.
func (c *cloning) writeGit() error {
	for _, dir := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks", "logs/refs/heads"} {
		if err := c.work.makeFolders(gitName + "/" + dir); err != nil {
			return err
		}
	}
	files := map[string]string{
		"HEAD":         c.head(),
		"config":       c.config(),
		"description":  "Unnamed repository; edit this file 'description' to name the repository.\n",
		"info/exclude": "# Patterns of files that git is to ignore in this repository only.\n",
		"packed-refs":  c.packedRefs(),
	}
	if head := c.remoteHead(); head != "" {
		if err := c.work.makeFolders(gitName + "/refs/remotes/origin"); err != nil {
			return err
		}
		files["refs/remotes/origin/HEAD"] = "ref: refs/remotes/origin/" + head + "\n"
	}
	if c.origin.Base != "" {
		line := fmt.Sprintf("%s %s %s %d +0000\tclone: from %s\n", noOID, c.origin.Base, identity, c.req.Time.Unix(), c.url)
		files["logs/HEAD"] = line
		if c.origin.Branch != "" {
			files["logs/refs/heads/"+c.origin.Branch] = line
			if parent, _ := splitPath(c.origin.Branch); parent != "" {
				if err := c.work.makeFolders(gitName + "/logs/refs/heads/" + parent); err != nil {
					return err
				}
			}
		}
	}
	for name, text := range files {
		err := c.work.replace(gitName+"/"+name, 0o644, func(f *os.File) error {
			_, err := f.WriteString(text)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *cloning) head() string {
	if c.origin.Branch != "" {
		return "ref: refs/heads/" + c.origin.Branch + "\n"
	}
	return c.origin.Base + "\n"
}

func (c *cloning) config() string {
	var b strings.Builder
	b.WriteString("[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n[gc]\n\tauto = 0\n")
	if c.url == "" {
		return b.String()
	}
	fmt.Fprintf(&b, "[remote \"origin\"]\n\turl = %s\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n", configQuote(c.url))
	if c.origin.Branch != "" {
		fmt.Fprintf(&b, "[branch %s]\n\tremote = origin\n\tmerge = %s\n", configQuote(c.origin.Branch), configQuote("refs/heads/"+c.origin.Branch))
	}
	return b.String()
}

// configQuote quotes a value or a section name of a git configuration.
func configQuote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

// remoteHead returns the branch that refs/remotes/origin/HEAD points to: the
// origin's default branch, if the request named no ref.
func (c *cloning) remoteHead() string {
	if c.req.Ref == "" && c.origin.Base != "" {
		return c.origin.Branch
	}
	return ""
}

// packedRefs returns a packed-refs file with the branches and tags of the origin
// and the branch that is checked out.
func (c *cloning) packedRefs() string {
	type line struct{ name, oid, peeled string }
	var lines []line
	for _, ref := range c.refs {
		switch {
		case strings.HasPrefix(ref.name, originHeads):
			lines = append(lines, line{name: "refs/remotes/origin/" + ref.name[len(originHeads):], oid: ref.oid})
		case strings.HasPrefix(ref.name, originTags):
			l := line{name: "refs/tags/" + ref.name[len(originTags):], oid: ref.oid}
			if ref.commit != ref.oid {
				l.peeled = ref.commit
			}
			lines = append(lines, l)
		}
	}
	if c.origin.Branch != "" && c.origin.Base != "" {
		lines = append(lines, line{name: "refs/heads/" + c.origin.Branch, oid: c.origin.Base})
	}
	sort.Slice(lines, func(a, b int) bool { return lines[a].name < lines[b].name })
	var b strings.Builder
	b.WriteString("# pack-refs with: peeled sorted \n")
	for _, l := range lines {
		fmt.Fprintf(&b, "%s %s\n", l.oid, l.name)
		if l.peeled != "" {
			fmt.Fprintf(&b, "^%s\n", l.peeled)
		}
	}
	return b.String()
}
