package gitstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/durable"
)

// Store is the root folder and the repositories in it.
type Store struct {
	root string
	git  git

	// records are the records of tasks that are kept in memory.
	records recordCaches
	// creating prevents two requests from creating the same repository.
	creating sync.Mutex
}

// Repository is one bare repository.
type Repository struct {
	// Namespace and Name are as in the URL, without ".git".
	Namespace string
	Name      string
	// Path is the repository's folder.
	Path string
}

// Open prepares the root folder: it writes the configuration and the hook, and checks that
// git and the hook really run. gitMemory is how many bytes of memory one git process may
// use, 0 for no limit. hook is the command line of the pre-receive hook, which begins with
// an absolute path.
func Open(ctx context.Context, root string, gitMemory int64, hook []string) (*Store, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	binary, err := exec.LookPath("git")
	if err != nil {
		return nil, fmt.Errorf("git is required and not on the PATH: %w", err)
	}
	store := &Store{root: root, git: git{binary: binary, config: filepath.Join(root, "gitconfig"), memory: gitMemory, effort: newEffort(time.Now, runtime.GOMAXPROCS(0))}}
	for _, folder := range []string{"hooks", "namespaces"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			return nil, fmt.Errorf("the root folder cannot be prepared: %w", err)
		}
	}
	if err := store.writeHook(hook); err != nil {
		return nil, err
	}
	if err := durable.WriteShared(store.git.config, temporaryFiles, []byte(repositoryConfig(store.hooks())), 0o644); err != nil {
		return nil, fmt.Errorf("the configuration of the repositories cannot be written: %w", err)
	}
	if err := store.Probe(ctx); err != nil {
		return nil, err
	}
	return store, nil
}

// hooks returns the folder of the hooks.
func (s *Store) hooks() string { return filepath.Join(s.root, "hooks") }

// writeHook writes the script that git runs as pre-receive hook.
func (s *Store) writeHook(command []string) error {
	if len(command) == 0 || !filepath.IsAbs(command[0]) {
		return fmt.Errorf("the pre-receive hook must be given by an absolute path, not as %q", command)
	}
	var script strings.Builder
	script.WriteString("#!/bin/sh\nulimit -S -d \"$(ulimit -H -d)\" # see package capacity\nexec")
	for _, word := range command {
		script.WriteString(" '" + strings.ReplaceAll(word, "'", `'\''`) + "'")
	}
	script.WriteString("\n")
	if err := durable.WriteShared(filepath.Join(s.hooks(), "pre-receive"), temporaryFiles, []byte(script.String()), 0o755); err != nil {
		return fmt.Errorf("the pre-receive hook cannot be written: %w", err)
	}
	return nil
}

// Probe checks that git and the hook run: git silently skips a hook that it cannot
// execute, and pushes would go unchecked.
func (s *Store) Probe(ctx context.Context) error {
	if _, err := s.git.run(ctx, s.root, "--exec-path"); err != nil {
		return fmt.Errorf("git does not run: %w", err)
	}
	path := filepath.Join(s.hooks(), "pre-receive")
	hook := exec.CommandContext(ctx, path)
	hook.Env = append(s.git.environment(), hookProbe+"=1")
	if output, err := hook.CombinedOutput(); err != nil || strings.TrimSpace(string(output)) != hookProbeAnswer {
		return fmt.Errorf("the pre-receive hook %s does not run (is the volume mounted noexec?): %w: %s", path, err, output)
	}
	return nil
}

// hookReady cheaply checks, before each push, that git would run the hook.
func (s *Store) hookReady() error {
	const execute = 1
	path := filepath.Join(s.hooks(), "pre-receive")
	if err := syscall.Access(path, execute); err != nil {
		return fmt.Errorf("the pre-receive hook %s cannot be executed: %w", path, err)
	}
	return nil
}

// gitFor returns git with its processor time counted for the repository's namespace.
func (s *Store) gitFor(repository Repository) git { return s.git.workingFor(repository.Namespace) }

// repository returns the repository of that name without checking whether it exists. The
// names must have been validated.
func (s *Store) repository(namespace, name string) Repository {
	return Repository{Namespace: namespace, Name: name, Path: filepath.Join(s.namespace(namespace), name+".git")}
}

// namespace returns the folder of a namespace.
func (s *Store) namespace(name string) string {
	return filepath.Join(s.root, "namespaces", name)
}

// exists reports whether the repository has been created.
func (r Repository) exists() (bool, error) {
	_, err := os.Stat(r.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// useLock returns the path of a lock file that every user of the repository holds shared,
// git processes included, and whoever removes leftovers or objects holds exclusively.
func (r Repository) useLock() string { return filepath.Join(r.Path, "clew-in-use") }

// gate returns the path of a lock file that every user of the repository holds shared
// briefly, before it takes useLock. Whoever needs the repository exclusively locks the gate
// to keep new users out.
func (r Repository) gate() string { return filepath.Join(r.Path, "clew-gate") }

// fences returns the fences of a namespace, and creates their folder if it is missing.
func (s *Store) fences(namespace string) (fences, error) {
	folder := filepath.Join(s.namespace(namespace), "fences")
	return fences{folder: folder, cache: s.records.cache(namespace)}, makeFolder(s.root, folder)
}

// create creates the repository unless it exists. It appears complete or not at all.
func (s *Store) create(ctx context.Context, repository Repository) error {
	s.creating.Lock()
	defer s.creating.Unlock()
	if exists, err := repository.exists(); err != nil || exists {
		return err
	}
	namespace := s.namespace(repository.Namespace)
	if err := makeFolder(s.root, namespace); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp(namespace, ".tmp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary) // no effect once the folder is renamed
	if err := os.Chmod(temporary, 0o755); err != nil {
		return err
	}
	if err := s.fill(ctx, temporary); err != nil {
		return fmt.Errorf("the repository %s/%s cannot be created: %w", repository.Namespace, repository.Name, err)
	}
	if err := os.Rename(temporary, repository.Path); err != nil {
		return err
	}
	return durable.SyncFolder(namespace)
}

// fill durably turns an empty folder into a bare repository. The include gives people who
// run git in the folder the same configuration that the gitstore's own git processes get
// from their environment.
func (s *Store) fill(ctx context.Context, folder string) error {
	if _, err := s.git.run(ctx, folder, "init", "--quiet", "--bare", "--template=", "--object-format=sha1", "--initial-branch=main", "."); err != nil {
		return err
	}
	config := "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n[include]\n\tpath = ../../../gitconfig\n"
	if err := durable.WriteShared(filepath.Join(folder, "config"), temporaryFiles, []byte(config), 0o644); err != nil {
		return err
	}
	head, err := os.Open(filepath.Join(folder, "HEAD"))
	if err != nil {
		return err
	}
	if err := errors.Join(head.Sync(), head.Close()); err != nil {
		return err
	}
	return syncFolders(folder)
}

// Repositories lists the repositories of all namespaces.
func (s *Store) Repositories() ([]Repository, error) {
	paths, err := filepath.Glob(filepath.Join(globEscape(s.root), "namespaces", "*", "*.git"))
	if err != nil {
		return nil, err
	}
	var found []Repository
	for _, path := range paths {
		namespace, name := filepath.Base(filepath.Dir(path)), strings.TrimSuffix(filepath.Base(path), ".git")
		if namespaceName.MatchString(namespace) && repositoryName.MatchString(name) {
			found = append(found, Repository{Namespace: namespace, Name: name, Path: path})
		}
	}
	return found, nil
}

// globEscape escapes a path so that it matches only itself in a glob pattern.
func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// makeDurable syncs the folders in which a push of the task created entries. Git has
// synced the files themselves.
func (r Repository) makeDurable(task Task) error {
	folders := []string{filepath.Join(r.Path, "objects", "pack"), filepath.Join(r.Path, "objects")}
	for _, refs := range []string{checkpointRefs + task.UID, branchRefs + task.Name} {
		if err := syncFolders(filepath.Join(r.Path, refs)); err != nil {
			return err
		}
	}
	folders = append(folders,
		filepath.Join(r.Path, checkpointRefs), filepath.Join(r.Path, branchRefs),
		filepath.Join(r.Path, "refs", "heads"), filepath.Join(r.Path, "refs"), r.Path)
	for _, folder := range folders {
		if err := durable.SyncFolder(folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
