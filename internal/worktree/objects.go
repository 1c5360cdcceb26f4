package worktree

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// failCorrupt returns CheckpointCorrupted for an error of git or of a parser that read
// objects of a checkpoint. If git failed before it could establish damage, it returns what
// failGit does.
func (r *Repo) failCorrupt(err error, format string, args ...any) error {
	if r.inconclusive(err) || outOfSpace(stderrOf(err)) {
		return failGit(err, format, args...)
	}
	return fail(CheckpointCorrupted, err, "cannot "+format+": an object is missing or damaged; use another checkpoint, or fetch this one again", args...)
}

// eachObject reads the objects with these ids, in this order, and calls f with the
// type, size and content of each. f must read all of the content, which is hashed
// while it is read. An object that is missing or does not match its id is
// CheckpointCorrupted.
func (r *Repo) eachObject(ctx context.Context, ids []oid, f func(i int, kind string, size int64, content io.Reader) error) error {
	return r.eachObjectIn(ctx, nil, ids, f)
}

// eachObjectIn is eachObject with an environment in which git finds more objects.
func (r *Repo) eachObjectIn(ctx context.Context, env []string, ids []oid, f func(i int, kind string, size int64, content io.Reader) error) error {
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var list bytes.Buffer
	for _, id := range ids {
		list.WriteString(id.String())
		list.WriteByte('\n')
	}
	cmd, stderr := r.command(ctx, gitCall{args: []string{"cat-file", "--batch", "--buffer"}, env: env, stdin: &list})
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return failIO(err, "start git cat-file")
	}
	if err := cmd.Start(); err != nil {
		return failIO(err, "start git cat-file")
	}
	out := bufio.NewReaderSize(stdout, 256<<10)
	for i, id := range ids {
		if err = readObject(out, id, func(kind string, size int64, content io.Reader) error { return f(i, kind, size, content) }); err != nil {
			break
		}
	}
	var e *damage
	// If the output ends early, git is ending by itself and its stderr says why.
	if err != nil && (!errors.As(err, &e) || !e.early) {
		cancel()
	}
	_, _ = io.Copy(io.Discard, out)
	werr := cmd.Wait()
	if werr != nil {
		werr = &gitError{command: "cat-file", stderr: stderr.String(), err: werr}
	}
	switch {
	case e != nil && e.early && r.inconclusive(werr):
		return failGit(werr, "read the object %s of %s", e.id, r.cfg.GitDir)
	case e != nil:
		if text := strings.TrimSpace(stderr.String()); text != "" {
			e.what += " (" + text + ")"
		}
		return fail(CheckpointCorrupted, nil, "object %s in %s %s; use another checkpoint, or fetch this one again", e.id, r.cfg.GitDir, e.what)
	case err == nil:
		return werr
	}
	return err
}

// damage is the error for an object that is missing or does not match its id.
type damage struct {
	id   oid
	what string
	// early is true if git's output ended before the object did.
	early bool
}

func (d *damage) Error() string { return fmt.Sprintf("object %s %s", d.id, d.what) }

// readObject reads one response of git cat-file --batch.
func readObject(out *bufio.Reader, id oid, f func(kind string, size int64, content io.Reader) error) error {
	line, err := out.ReadString('\n')
	if err != nil {
		return &damage{id: id, what: "cannot be read", early: true}
	}
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return &damage{id: id, what: "is missing"}
	}
	size, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || size < 0 {
		return &damage{id: id, what: "has no size"}
	}
	h := sha1.New()
	fmt.Fprintf(h, "%s %d\x00", fields[1], size)
	limited := &io.LimitedReader{R: out, N: size}
	err = f(fields[1], size, io.TeeReader(limited, h))
	if limited.N > 0 {
		if _, ended := out.Peek(1); err != nil && ended == nil {
			return err
		}
		return &damage{id: id, what: "is truncated", early: true}
	}
	if err != nil {
		return err
	}
	if sum(h) != id {
		return &damage{id: id, what: "has content that does not match its id"}
	}
	if _, err := out.Discard(1); err != nil {
		return &damage{id: id, what: "is truncated", early: true}
	}
	return nil
}

// resolve returns the id of the commit that a ref or an id resolves to.
func (r *Repo) resolve(ctx context.Context, name string) (oid, error) {
	if err := checkRefName(name); err != nil {
		return noOID, fail(InvalidReference, err, "%q is not a valid ref or commit id", name)
	}
	text, err := r.gitText(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", name+"^{commit}")
	if err == nil {
		var id oid
		if id, err = parseOID(text); err == nil {
			return id, nil
		}
	}
	if interrupted(err) {
		return noOID, failGit(err, "look up the commit %s in %s", name, r.cfg.GitDir)
	}
	switch _, e := r.git(ctx, gitCall{args: []string{"rev-parse", "--verify", "--quiet", "--end-of-options", name}}); {
	case interrupted(e):
		return noOID, failGit(e, "look up %s in %s", name, r.cfg.GitDir)
	case e == nil && !isCommitID(name):
		return noOID, fail(CheckpointCorrupted, err, "the commit of %s is missing or damaged in %s; use another checkpoint, or fetch this one again", name, r.cfg.GitDir)
	}
	return noOID, fail(CheckpointNotFound, nil, "the repository %s has no commit %s", r.cfg.GitDir, name)
}

// resolveAll is resolve for many names at the cost of one process.
func (r *Repo) resolveAll(ctx context.Context, names []string) ([]oid, error) {
	var ask strings.Builder
	for _, name := range names {
		if err := checkRefName(name); err != nil {
			return nil, fail(InvalidReference, err, "%q is not a valid ref or commit id", name)
		}
		ask.WriteString(name + "^{commit}\n")
	}
	out, err := r.git(ctx, gitCall{args: []string{"cat-file", "--batch-check=%(objectname)"}, stdin: strings.NewReader(ask.String())})
	if err != nil {
		return nil, failGit(err, "look up commits in %s", r.cfg.GitDir)
	}
	ids := make([]oid, 0, len(names))
	for line := range strings.Lines(string(out)) {
		if len(ids) == len(names) {
			break
		}
		id, err := parseOID(strings.TrimSuffix(line, "\n"))
		if err != nil { // resolve returns the right error
			if id, err = r.resolve(ctx, names[len(ids)]); err != nil {
				return nil, err
			}
		}
		ids = append(ids, id)
	}
	if len(ids) < len(names) {
		return nil, fail(GitFailed, nil, "git looked up only %d of %d commits in %s", len(ids), len(names), r.cfg.GitDir)
	}
	return ids, nil
}

// commitInfo is the part of a commit object that this package uses.
type commitInfo struct {
	tree    oid
	parents []oid
	ours    bool // it says that Clew made it, which an agent can say as well
}

// readCommit reads and verifies a commit object.
func (r *Repo) readCommit(ctx context.Context, id oid) (commitInfo, error) {
	var c commitInfo
	err := r.eachObject(ctx, []oid{id}, func(_ int, kind string, _ int64, content io.Reader) error {
		text, err := io.ReadAll(content)
		if err == nil && kind != "commit" {
			return &damage{id: id, what: "is a " + kind + ", not a commit"}
		}
		if err == nil {
			c, err = parseCommit(text)
		}
		return err
	})
	return c, err
}

// parseCommit parses the content of a commit object.
func parseCommit(text []byte) (c commitInfo, err error) {
	for line := range bytes.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		switch key {
		case "tree":
			c.tree, err = parseOID(value)
		case "parent":
			var p oid
			p, err = parseOID(value)
			c.parents = append(c.parents, p)
		case "author":
		case "committer":
			c.ours = strings.HasPrefix(value, identity+" ")
		default:
			return c, err
		}
		if err != nil {
			return c, err
		}
	}
	return c, err
}

// readTree returns the tree of a commit and the tree's id. Trees are not checked for
// damage, unlike those that readTarget reads.
func (r *Repo) readTree(ctx context.Context, commit string) (*dir, oid, error) {
	id, err := r.resolve(ctx, commit)
	if err != nil {
		return nil, noOID, err
	}
	c, err := r.readCommit(ctx, id)
	if err != nil {
		return nil, noOID, err
	}
	d, _, err := r.listTree(ctx, c.tree)
	return d, c.tree, err
}

// listTree lists a tree recursively. It also returns the ids of all its trees, the root
// included.
func (r *Repo) listTree(ctx context.Context, tree oid) (*dir, []oid, error) {
	if tree == emptyTree {
		return &dir{}, nil, nil
	}
	out, err := r.git(ctx, gitCall{args: []string{"ls-tree", "-r", "-t", "-z", "--full-tree", "--end-of-options", tree.String()}})
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		return nil, nil, r.failCorrupt(err, "read the tree %s", tree)
	}
	d, trees, err := parseTree(out)
	if err != nil {
		return nil, nil, r.failCorrupt(err, "read the tree %s", tree)
	}
	return d, append(trees, tree), nil
}

// readBlob returns the content of a blob and fails if it has more than limit bytes.
func (r *Repo) readBlob(ctx context.Context, id oid, limit int64) ([]byte, error) {
	var text []byte
	err := r.eachObject(ctx, []oid{id}, func(_ int, _ string, size int64, content io.Reader) (err error) {
		if size > limit {
			return fmt.Errorf("object %s has %d bytes, and at most %d are allowed here", id, size, limit)
		}
		text, err = io.ReadAll(content)
		return err
	})
	return text, err
}
