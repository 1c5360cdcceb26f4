package gitstore

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"strings"
)

// noteHealed replaces objects that are there again, among those that are lacking, by those that they
// name and that are lacking as well. The caller must not use the repository at the time: whoever
// needs it exclusively keeps new users out.
func (h *Handler) noteHealed(c *call, healed map[string]bool) error {
	below, err := h.below(c, healed)
	if err != nil {
		return err
	}
	return h.lacking.replace(c.repository, healed, below)
}

// below returns, for each of some objects that are there again, the objects that it names itself and
// that are missing or damaged.
func (h *Handler) below(c *call, healed map[string]bool) (map[string][]string, error) {
	v := verifier{ctx: c.request.Context(), store: h.store, git: h.store.gitFor(c.repository), repository: c.repository}
	r := &objectReader{v: &v}
	defer r.close()
	wrong := map[string]bool{}
	lacking := func(id string) (bool, error) {
		if _, read := wrong[id]; !read {
			_, _, what, err := r.read(id)
			if err != nil {
				return false, err
			}
			wrong[id] = what != ""
		}
		return wrong[id], nil
	}
	found := map[string][]string{}
	for id := range healed {
		kind, content, what, err := r.read(id)
		if err != nil {
			return nil, err
		}
		if what != "" {
			continue // it was damaged again: a verification will find that
		}
		for _, named := range namedBy(kind, content) {
			lacks, err := lacking(named)
			if err != nil {
				return nil, err
			}
			if lacks && !healed[named] {
				found[id] = append(found[id], named)
			}
		}
	}
	return found, nil
}

// namedBy returns the ids of the objects that a commit or a tree names.
func namedBy(kind string, content []byte) (ids []string) {
	switch kind {
	case "commit":
		for line := range strings.Lines(string(content)) {
			key, id, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			if key != "tree" && key != "parent" {
				break
			}
			ids = append(ids, id)
		}
	case "tree":
		for len(content) > 0 {
			head, rest, _ := bytes.Cut(content, []byte{0})
			mode, _, _ := strings.Cut(string(head), " ")
			if len(rest) < sha1.Size {
				break
			}
			if id := hex.EncodeToString(rest[:sha1.Size]); mode != nestedRepository {
				ids = append(ids, id)
			}
			content = rest[sha1.Size:]
		}
	}
	return ids
}
