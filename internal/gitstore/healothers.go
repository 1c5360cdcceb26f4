package gitstore

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

const (
	// maxHealers is how many other repositories are searched for lacking objects.
	maxHealers = 100
	// maxHealings is how often a checkpoint is healed and verified again: what a damaged folder
	// contains shows once it is healed.
	maxHealings = 8
)

// healed verifies a checkpoint, and heals it from other repositories of its namespace.
func (h *Handler) healed(c *call, v *verifier, uid string, number int64) (gitstoreapi.Verification, error) {
	found, err := v.checkpoint(uid, number)
	for range maxHealings {
		if err != nil || len(found.Damage) == 0 {
			break
		}
		if err = h.lacking.add(c.repository, uid, found.Damage); err != nil || h.healFromOthers(c, found.Damage) == 0 {
			break
		}
		found, err = v.checkpoint(uid, number)
	}
	return found, err
}

// healFromOthers brings objects that a checkpoint lacks from other repositories of the namespace,
// such as that of the same origin by another address, and returns how many there were. An object is
// what its id says, so it does not matter where it comes from. If that fails, others may bring them.
func (h *Handler) healFromOthers(c *call, damage []gitstoreapi.Damage) (count int) {
	var ids []string
	for _, d := range damage {
		if isObjectID(d.Object) {
			ids = append(ids, d.Object)
		}
	}
	slices.Sort(ids)
	others, err := h.store.namespaceRepositories(c.repository.Namespace)
	for _, other := range others[:min(len(others), maxHealers)] {
		if other.Path == c.repository.Path || len(ids) == 0 || err != nil {
			continue
		}
		var brought map[string]bool
		if brought, err = h.healFrom(c, other, ids); len(brought) == 0 {
			continue
		}
		count += len(brought)
		ids = slices.DeleteFunc(ids, func(id string) bool { return brought[id] })
		c.log.Info("objects that were missing or damaged are there again", "count", len(brought), "repository", c.repository.Name, "from", other.Name)
	}
	if err != nil && c.request.Context().Err() == nil {
		c.log.Error(err, "a checkpoint could not be healed from other repositories", "repository", c.repository.Name)
	}
	return count
}

// healFrom brings those of the objects that another repository has.
func (h *Handler) healFrom(c *call, other Repository, ids []string) (map[string]bool, error) {
	intact, err := h.intactIn(c.request.Context(), other, ids)
	if err != nil || len(intact) == 0 {
		return nil, err
	}
	brought, err := h.takeFrom(c, other, ids, intact)
	if err != nil {
		return nil, err
	}
	return brought, h.noteHealed(c, brought)
}

// takeFrom makes those of the objects part of the repository that are intact in another one.
func (h *Handler) takeFrom(c *call, other Repository, ids, intact []string) (map[string]bool, error) {
	ctx := c.request.Context()
	used, err := c.repository.use(ctx)
	if err != nil {
		return nil, err
	}
	defer used.Close()
	folder, err := os.MkdirTemp(filepath.Join(c.repository.Path, "objects"), quarantinePrefix+"heal-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	pack, index := filepath.Join(folder, "new.pack"), filepath.Join(folder, "new.idx")
	if err := h.packFrom(ctx, other, intact, pack); err != nil {
		return nil, err
	}
	brought, refused := h.indexHealing(c, ids, pack, index)
	if refused != nil {
		return nil, refused
	}
	return brought, h.install(c, pack, index, brought)
}

// intactIn returns those of the objects that a repository has as they were stored.
func (h *Handler) intactIn(ctx context.Context, repository Repository, ids []string) (intact []string, err error) {
	v := &verifier{ctx: ctx, store: h.store, git: h.store.gitFor(repository), repository: repository}
	r := &objectReader{v: v}
	defer r.close()
	for _, id := range ids {
		_, _, wrong, err := r.read(id)
		if err != nil {
			return nil, err
		}
		if wrong == "" {
			intact = append(intact, id)
		}
	}
	return intact, nil
}

// packFrom writes a pack of objects of a repository.
func (h *Handler) packFrom(ctx context.Context, repository Repository, ids []string, path string) error {
	used, err := repository.use(ctx)
	if err != nil {
		return err
	}
	defer used.Close()
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	g := h.store.gitFor(repository)
	command := g.command(ctx, repository.Path, "--git-dir=.", "pack-objects", "--quiet", "--stdout")
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(strings.Join(ids, "\n")+"\n"), file, io.Discard
	command.ExtraFiles = []*os.File{used}
	if err = g.start(command); err == nil {
		err = g.wait(command)
	}
	return errors.Join(err, file.Sync(), file.Close())
}
