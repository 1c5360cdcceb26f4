package worktree

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/clew-dev/clew/internal/refname"
)

// codeTips returns the commits whose history whoever may read code may read: those of the refs
// of code and of agents' own commits, and the origin's branches and tags as a state knows them.
func (r *Repo) codeTips(ctx context.Context, state string) ([]string, error) {
	refs, err := r.Refs(ctx, refname.Checkpoints)
	if err != nil {
		return nil, err
	}
	tips := map[string]bool{}
	for ref, id := range refs {
		if refname.IsCode(ref) {
			tips[id] = true
		}
	}
	id, err := r.resolve(ctx, state)
	if err != nil {
		return nil, err
	}
	c, err := r.readCommit(ctx, id)
	if err == nil && len(c.parents) > 0 {
		c, err = r.readCommit(ctx, c.parents[0]) // the pristine commit
		for _, tip := range c.parents {
			tips[tip.String()] = true
		}
	}
	return slices.Sorted(maps.Keys(tips)), err
}

// own returns those of the objects that the known commits do not reach. The agent's repository
// must have them all: the other objects of this repository are those of states, this task's or
// another's.
func (h *headImport) own(ids []oid) ([]oid, error) {
	lacking, err := h.missing(ids, h.onlyAside())
	if err != nil || len(lacking) == 0 {
		return ids, err
	}
	if err := h.unpackLoose(lacking); err != nil {
		return nil, err
	}
	if lacking, err = h.missing(lacking, h.onlyAside()); err != nil {
		return nil, err
	}
	unknown, err := h.unknown(lacking)
	if err == nil && len(unknown) > 0 {
		err = h.wantPacked(unknown)
	}
	if err != nil {
		return nil, err
	}
	known := map[oid]bool{}
	for _, id := range lacking {
		known[id] = true
	}
	for _, id := range unknown {
		delete(known, id)
	}
	return slices.DeleteFunc(ids, func(id oid) bool { return known[id] }), nil
}

// wantPacked returns an error unless packs of the agent have the objects. It does not say
// which one is missing, nor that the repository has it.
func (h *headImport) wantPacked(ids []oid) error {
	if err := h.unpackPacks(); err != nil {
		return err
	}
	missing, err := h.missing(ids, h.onlyAside())
	if err == nil && len(missing) > 0 {
		return h.incomplete(nil)
	}
	return err
}

// onlyAside is an environment in which git finds nothing but what is unpacked.
func (h *headImport) onlyAside() []string { return []string{"GIT_OBJECT_DIRECTORY=" + h.aside} }

// missing returns those of the objects that git does not find.
func (h *headImport) missing(ids []oid, env []string) (missing []oid, err error) {
	out, err := h.r.git(h.ctx, gitCall{args: []string{"cat-file", "--batch-check=%(objectname)"}, env: env, stdin: strings.NewReader(lines(ids))})
	if err != nil {
		return nil, failGit(err, "look up objects in %s", h.r.cfg.GitDir)
	}
	i := 0
	for line := range strings.Lines(string(out)) {
		if strings.HasSuffix(line, " missing\n") && i < len(ids) {
			missing = append(missing, ids[i])
		}
		i++
	}
	return missing, nil
}

// unknown returns those of the objects that the known commits do not reach.
func (h *headImport) unknown(ids []oid) ([]oid, error) {
	if len(ids) == 0 || len(h.known) == 0 {
		return ids, nil
	}
	ctx, done := context.WithCancel(h.ctx)
	defer done()
	list := &crossOff{left: map[oid]bool{}, done: done}
	for _, id := range ids {
		list.left[id] = true
	}
	// In this order, what an agent has taken back from a recent commit is found early.
	_, err := h.r.git(ctx, gitCall{args: []string{"rev-list", "--objects", "--no-object-names", "--in-commit-order", "--stdin"},
		stdin: strings.NewReader(strings.Join(h.known, "\n") + "\n"), stdout: list})
	if err != nil && len(list.left) > 0 {
		return nil, failGit(err, "list what the checkpoints in %s reach", h.r.cfg.GitDir)
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id oid) bool { return !list.left[id] }), nil
}

// crossOff removes the ids that are written to it, one a line, from those that are left, and
// calls done when none is.
type crossOff struct {
	left map[oid]bool
	done func()
	part []byte // of a line
}

func (c *crossOff) Write(p []byte) (int, error) {
	c.part = append(c.part, p...)
	for {
		line, rest, whole := bytes.Cut(c.part, []byte("\n"))
		if !whole {
			break
		}
		if id, err := parseOID(string(line)); err == nil {
			delete(c.left, id)
		}
		c.part = rest
	}
	if len(c.left) == 0 {
		c.done()
	}
	return len(p), nil
}

// lines writes one id a line.
func lines(ids []oid) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(id.String() + "\n")
	}
	return b.String()
}
