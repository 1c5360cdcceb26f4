package gitstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/namespaceid"
)

// A namespace that is made anew under an old name is another one, and the repositories of the old
// one are not its own. What a Store calls a namespace is the name of a folder, its key: the
// namespace's name for the first UID that used it, and the name, an @ and the UID for a later one.

// Namespaces tells which namespace has a name; see package namespaceid.
type Namespaces interface {
	Get(ctx context.Context, name string) (namespaceid.Namespace, error)
}

// folders finds the folder of the namespace that has a name now. It carries a grant out before
// the first use of the folder of the namespace that the grant is for.
type folders struct {
	store  *Store
	names  Namespaces
	grants []namespaceid.Grant
	log    logr.Logger

	mu   sync.Mutex
	keys map[string]string // by UID
}

// owner is the content of the file that says whose folder it is, if that has no UID in its name.
type owner struct {
	// UID is namespaceid.Unknown if the namespace was gone before UIDs were recorded.
	UID string `json:"uid"`
}

// nameOf returns the name of the namespace of a key.
func nameOf(key string) string {
	name, _, _ := strings.Cut(key, "@")
	return name
}

// of returns the key of a namespace. Clew's server may name one that is not there any more, as
// name@uid.
func (f *folders) of(ctx context.Context, namespace string) (string, *gitstoreapi.Refusal) {
	if f.names == nil {
		return namespace, nil
	}
	name, uid, former := strings.Cut(namespace, "@")
	if former {
		key, err := f.former(name, uid)
		if err != nil {
			return "", gitstoreapi.New(gitstoreapi.Unavailable, "the folder of the namespace %s cannot be read; try again", namespace)
		}
		return key, nil
	}
	found, err := f.names.Get(ctx, name)
	if errors.Is(err, namespaceid.ErrNone) {
		return "", gitstoreapi.New(gitstoreapi.NotFound, "there is no namespace %s", name)
	}
	var key string
	if err == nil {
		key, err = f.key(ctx, name, found)
	}
	if err != nil {
		f.log.Error(err, "cannot find out whose repositories those of a namespace are", "namespace", name)
		return "", gitstoreapi.New(gitstoreapi.Unavailable, "it cannot be found out whose repositories those of the namespace %s are; try again", name)
	}
	return key, nil
}

// key returns the key of a namespace that exists.
func (f *folders) key(ctx context.Context, name string, is namespaceid.Namespace) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if key, ok := f.keys[is.UID]; ok {
		return key, nil
	}
	key, err := f.claim(name, is)
	for _, grant := range f.grants {
		if err == nil && grant.Namespace == name && grant.UID != is.UID {
			key, err = f.carryOut(ctx, key, name, is.UID, grant.UID)
		}
	}
	if err != nil {
		return "", err
	}
	if f.keys == nil {
		f.keys = map[string]string{}
	}
	f.keys[is.UID] = key
	return key, nil
}

// claim returns the key of a namespace, apart from grants.
func (f *folders) claim(name string, is namespaceid.Namespace) (string, error) {
	own := name + "@" + is.UID
	if exists, err := f.exists(own); err != nil || exists {
		return own, err
	}
	exists, err := f.exists(name)
	if err != nil {
		return "", err
	}
	holder, err := f.owner(name)
	if err != nil {
		return "", err
	}
	switch {
	case holder == is.UID:
		return name, nil
	case holder != "":
		return own, nil
	case exists: // from before UIDs were recorded
		newest, err := f.newest(name)
		if err != nil {
			return "", err
		}
		if newest.Before(is.Created) {
			return own, f.give(name, namespaceid.Unknown)
		}
	}
	return name, f.give(name, is.UID)
}

// former returns the key of a namespace that may not exist any more. What is not there has a key
// without a folder.
func (f *folders) former(name, uid string) (string, error) {
	holder, err := f.owner(name)
	if err != nil || holder == uid || holder == "" {
		return name, err
	}
	key := name + "@" + uid
	if exists, err := f.exists(key); err != nil || exists || holder != namespaceid.Unknown {
		return key, err
	}
	return name, nil // the history may have recorded the UID, when the gitstore had not
}

// carryOut gives the folder of a former namespace to the one with the UID, whose folder is own. The
// grant is of no effect if the former one has none, or if another one has taken it over since.
func (f *folders) carryOut(ctx context.Context, own, name, uid, former string) (string, error) {
	key, err := f.former(name, former)
	if err != nil || key == own {
		return own, err
	}
	if exists, err := f.exists(key); err != nil || !exists {
		return own, err
	}
	if exists, err := f.exists(own); err != nil {
		return "", err
	} else if exists {
		if err := f.join(ctx, key, own); err != nil {
			return "", fmt.Errorf("join the folder %s with %s: %w", own, key, err)
		}
	}
	f.log.Info("the repositories of an earlier namespace have been given to the namespace that has its name now", "namespace", name, "formerUID", former, "uid", uid)
	if key == name {
		return name, f.give(name, uid)
	}
	now := name + "@" + uid
	if err := os.Rename(f.store.namespace(key), f.store.namespace(now)); err != nil {
		return "", err
	}
	return now, durable.SyncFolder(filepath.Join(f.store.root, "namespaces"))
}

// join moves what is in the folder of one key into that of another: whole repositories, or the refs
// and objects of those that both have, and fences. It may be repeated after a crash.
func (f *folders) join(ctx context.Context, key, from string) error {
	repositories, err := f.store.namespaceRepositories(from)
	if err != nil {
		return err
	}
	for _, repository := range repositories {
		into := f.store.repository(key, repository.Name)
		exists, err := into.exists()
		switch {
		case err != nil:
		case exists:
			err = f.fetch(ctx, into, repository)
		default:
			err = os.Rename(repository.Path, into.Path)
		}
		if err != nil {
			return fmt.Errorf("the repository %s: %w", repository.Name, err)
		}
	}
	if _, err := f.store.fences(key); err != nil {
		return err
	}
	records, err := filepath.Glob(filepath.Join(globEscape(f.store.namespace(from)), "fences", "*"))
	if err != nil {
		return err
	}
	for _, record := range records {
		if err := os.Rename(record, filepath.Join(f.store.namespace(key), "fences", filepath.Base(record))); err != nil {
			return err
		}
	}
	for _, folder := range []string{"fences", "."} {
		if err := durable.SyncFolder(filepath.Join(f.store.namespace(key), folder)); err != nil {
			return err
		}
	}
	return os.RemoveAll(f.store.namespace(from))
}

// fetch copies the refs of a repository, and what they reach, into another one. A branch that both
// have stays as it is there.
func (f *folders) fetch(ctx context.Context, into, from Repository) error {
	git := f.store.gitFor(into)
	listed, err := git.run(ctx, from.Path, "--git-dir=.", "for-each-ref", "--format=%(refname)")
	if err != nil {
		return err
	}
	has, err := git.run(ctx, into.Path, "--git-dir=.", "for-each-ref", "--format=%(refname)")
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for ref := range strings.Lines(has) {
		known[ref] = true
	}
	var specs strings.Builder
	for ref := range strings.Lines(listed) {
		if !known[ref] {
			name := strings.TrimSuffix(ref, "\n")
			fmt.Fprintf(&specs, "%s:%s\n", name, name)
		}
	}
	if specs.Len() == 0 {
		return nil
	}
	// The objects were checked when they were received.
	_, err = git.runWith(ctx, nil, strings.NewReader(specs.String()), into.Path,
		"--git-dir=.", "-c", "protocol.file.allow=always", "-c", "fetch.fsckObjects=false", "fetch", "--quiet", "--no-tags", "--no-auto-gc", "--no-write-fetch-head", "--stdin", from.Path)
	if err != nil {
		return err
	}
	return syncFolders(filepath.Join(into.Path, "refs"))
}

// exists reports whether there is a folder of a key.
func (f *folders) exists(key string) (bool, error) {
	_, err := os.Stat(f.store.namespace(key))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// ownerFile is the path of the file that says whose folder the one with a namespace's name is.
func (f *folders) ownerFile(name string) string {
	return filepath.Join(f.store.namespace(name), "owner.json")
}

// owner returns the UID of the namespace whose folder the one with its name is; empty if that was
// not recorded.
func (f *folders) owner(name string) (string, error) {
	content, err := os.ReadFile(f.ownerFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var o owner
	if err := json.Unmarshal(content, &o); err != nil {
		return "", fmt.Errorf("the file %s is damaged: %w; write the UID of the namespace into it", f.ownerFile(name), err)
	}
	return o.UID, nil
}

// give records whose folder the one with a namespace's name is.
func (f *folders) give(name, uid string) error {
	if err := makeFolder(f.store.root, f.store.namespace(name)); err != nil {
		return err
	}
	content, err := json.Marshal(owner{UID: uid})
	if err != nil {
		return err
	}
	return durable.WriteShared(f.ownerFile(name), temporaryFiles, append(content, '\n'), 0o644)
}

// newest returns when an attempt of a task of a namespace was last recorded for the first time.
func (f *folders) newest(key string) (newest time.Time, err error) {
	records, err := filepath.Glob(filepath.Join(globEscape(f.store.namespace(key)), "fences", "*.json"))
	for _, record := range records {
		info, err := os.Stat(record)
		if err != nil {
			return newest, err
		}
		if info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	return newest, err
}
