package worktree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/durable"
)

// pristineRef keeps the pristine commit reachable and, through its parents, the
// origin's history.
const pristineRef = "refs/clew-origin/pristine"

// pristine describes the agent's repository before the agent ran: the pack files
// that need not be captured, since GitDir has their objects.
type pristine struct {
	Commit string         `json:"commit"` // the pristine commit
	Origin Origin         `json:"origin"`
	Files  []pristineFile `json:"files"`

	byPath map[string]oid
}

type pristineFile struct {
	Path  string `json:"path"` // below the worktree
	OID   string `json:"oid"`  // of the content, as a blob
	Bytes int64  `json:"bytes"`
}

// Origin is what a worktree was created from.
type Origin struct {
	// URL is the origin, without credentials; "" for an empty repository.
	URL string `json:"url,omitempty"`
	// Ref is what the requested ref resolved to: refs/heads/x, refs/tags/x or a
	// commit id.
	Ref string `json:"ref,omitempty"`
	// Branch is the branch checked out; "" if HEAD is detached.
	Branch string `json:"branch,omitempty"`
	// Base is the commit checked out; "" for an empty repository. It is the
	// parent of a task's first checkpoint.
	Base string `json:"base,omitempty"`
}

// holds reports whether the pristine repository had a file at path with this
// content.
func (p *pristine) holds(path string, id oid) bool {
	if p == nil || !strings.HasPrefix(path, gitName+"/objects/") || id.isZero() {
		return false
	}
	return p.byPath[path] == id
}

// index fills byPath from Files.
func (p *pristine) index() error {
	p.byPath = map[string]oid{}
	for _, f := range p.Files {
		id, err := parseOID(f.OID)
		if err != nil {
			return err
		}
		p.byPath[f.Path] = id
	}
	return nil
}

func (r *Repo) loadPristine() error {
	raw, err := os.ReadFile(r.own("pristine.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return failIO(err, "read %s", r.own("pristine.json"))
	}
	var p pristine
	if err := json.Unmarshal(raw, &p); err != nil {
		return failIO(err, "read %s", r.own("pristine.json"))
	}
	if err := p.index(); err != nil {
		return failIO(err, "read %s", r.own("pristine.json"))
	}
	r.pristine = &p
	return nil
}

func (r *Repo) savePristine(p *pristine) error {
	if err := p.index(); err != nil {
		return failIO(err, "write %s", r.own("pristine.json"))
	}
	raw, err := encodeJSON(p)
	if err == nil {
		err = durable.WriteShared(r.own("pristine.json"), tempPattern, raw, 0o600)
	}
	if err != nil {
		return failIO(err, "write %s", r.own("pristine.json"))
	}
	r.pristine = p
	return nil
}

// Origin returns what the worktree was created from. ok is false if neither Clone
// nor Restore has created a worktree with this repository yet.
func (r *Repo) Origin() (origin Origin, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pristine == nil {
		return Origin{}, false
	}
	return r.pristine.Origin, true
}

// Names in the pristine commit's tree.
const (
	pristineOrigin = "origin.json"
	pristineTags   = "tags.pack"
)

// commitPristine creates the pristine commit. Its parents are the tips of the
// origin; its tree records where they came from and contains, as a pack, the tag
// objects, which cannot be parents of a commit. others are the objects that refs
// name and that are not commits. The same tips give the same commit, so that tasks
// of one origin share it.
func (r *Repo) commitPristine(ctx context.Context, origin Origin, tips, others []string) (string, error) {
	var pack []byte
	if len(others) > 0 {
		revs := strings.Join(others, "\n") + "\n--not\n" + strings.Join(tips, "\n") + "\n"
		out, err := r.git(ctx, gitCall{
			args:  []string{"-c", "pack.threads=1", "pack-objects", "--revs", "--stdout", "-q"},
			stdin: strings.NewReader(revs),
		})
		if err != nil {
			return "", failGit(err, "pack the tags of the origin")
		}
		pack = out
	}
	about, err := encodeJSON(Origin{URL: origin.URL, Base: origin.Base, Ref: origin.Ref, Branch: origin.Branch})
	if err != nil {
		return "", failIO(err, "describe the origin")
	}
	im, err := r.startImport(ctx)
	if err != nil {
		return "", err
	}
	aboutID, packID := im.blob(about), oid{}
	if pack != nil {
		packID = im.blob(pack)
	}
	im.commit(pristineRef, 1, time.Unix(0, 0), "Pristine repository\n")
	sort.Strings(tips)
	for i, tip := range tips {
		if i == 0 {
			im.printf("from %s\n", tip)
		} else if tip != tips[i-1] {
			im.printf("merge %s\n", tip)
		}
	}
	im.printf("deleteall\n")
	im.modify(modeFile, aboutID, pristineOrigin)
	if pack != nil {
		im.modify(modeFile, packID, pristineTags)
	}
	im.endCommit()
	commit := im.markOf(1)
	if err := im.finish(); err != nil {
		return "", failGit(err, "record the origin in %s", r.cfg.GitDir)
	}
	return commit.String(), nil
}

// rebuildPristine writes packs to the agent's object store with everything that is
// reachable from the pristine commit's parents, and with the tags. It returns the
// files of the packs.
func (r *Repo) rebuildPristine(ctx context.Context, work *beneath, commit string) ([]pristineFile, error) {
	scratch, err := os.MkdirTemp(r.own(""), "tmp_packs_")
	if err != nil {
		return nil, failIO(err, "create a folder in %s", r.own(""))
	}
	defer os.RemoveAll(scratch)
	_, err = r.git(ctx, gitCall{
		args:  []string{"-c", "pack.threads=2", "pack-objects", "--revs", "--non-empty", "-q", "--delta-base-offset", filepath.Join(scratch, "pack")},
		stdin: strings.NewReader(commit + "^@\n"),
	})
	if err != nil {
		return nil, r.failCorrupt(err, "rebuild the agent's repository from the pristine commit %s", commit)
	}
	tags, err := r.git(ctx, gitCall{args: []string{"cat-file", "blob", commit + ":" + pristineTags}})
	switch {
	case interrupted(err):
		return nil, failGit(err, "read the tags of the pristine commit %s", commit)
	case err == nil: // otherwise the commit has no tags
		file := filepath.Join(scratch, "tags.tmp")
		if err := os.WriteFile(file, tags, 0o600); err != nil {
			return nil, failIO(err, "write %s", file)
		}
		sum := tags[max(0, len(tags)-20):]
		name := filepath.Join(scratch, fmt.Sprintf("pack-%x.pack", sum))
		if err := os.Rename(file, name); err != nil {
			return nil, failIO(err, "write %s", name)
		}
		if _, err := r.git(ctx, gitCall{args: []string{"index-pack", name}}); err != nil {
			return nil, r.failCorrupt(err, "unpack the tags of the pristine commit %s", commit)
		}
	}
	return r.copyPacks(work, scratch)
}

// copyPacks copies the packs in a folder to the agent's object store and returns
// the copies. They are never hard links, through which the agent could damage the
// originals.
func (r *Repo) copyPacks(work *beneath, from string) ([]pristineFile, error) {
	names, err := filepath.Glob(filepath.Join(from, "pack-*"))
	if err != nil {
		return nil, failIO(err, "list %s", from)
	}
	// An index makes its pack visible to git, so the indexes are copied last.
	sort.Slice(names, func(a, b int) bool {
		ai, bi := strings.HasSuffix(names[a], ".idx"), strings.HasSuffix(names[b], ".idx")
		if ai != bi {
			return bi
		}
		return names[a] < names[b]
	})
	const store = gitName + "/objects/pack"
	if err := work.makeFolders(store); err != nil {
		return nil, failIO(err, "create %s/%s", work.path, store)
	}
	var files []pristineFile
	for _, name := range names {
		if ext := filepath.Ext(name); ext != ".pack" && ext != ".idx" && ext != ".rev" {
			continue
		}
		f, err := r.copyIn(work, name, store+"/"+filepath.Base(name))
		if err != nil {
			return nil, failIO(err, "copy a pack into %s/%s", work.path, store)
		}
		files = append(files, f)
	}
	return files, nil
}

// copyIn copies the file from to the path to below the worktree.
func (r *Repo) copyIn(work *beneath, from, to string) (pristineFile, error) {
	src, err := os.Open(from)
	if err != nil {
		return pristineFile{}, err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return pristineFile{}, err
	}
	var id oid
	err = work.replace(to, 0o444, func(f *os.File) error {
		var whole bool
		var err error
		if id, whole, err = hashBlob(f, src, info.Size(), nil); err == nil && !whole {
			err = fmt.Errorf("%s was truncated while it was copied", from)
		}
		return err
	})
	return pristineFile{Path: to, OID: id.String(), Bytes: info.Size()}, err
}
