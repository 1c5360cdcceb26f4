// Package volume opens the daemon's part of a task's volume: the spool, the journal and the
// repository of checkpoints. Only one process at a time can have a volume open.
package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/capacity"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/worktree"
)

// Paths are the folders where the parts of a task's volume are mounted.
type Paths struct {
	// Worktree is the agent's working tree, Home its home.
	Worktree, Home string
	// State is the daemon's own folder, out of the agent's reach.
	State string
}

// Volume is an open volume.
type Volume struct {
	paths Paths

	Spool   *spool.Spool
	Journal *journal.Journal
	Repo    *worktree.Repo
}

// Open opens a volume. While another process has it open (one of an older attempt, say,
// that has yet to find out that it is fenced off) it waits until ctx ends. secrets, if not
// nil, are kept out of checkpoints.
func Open(ctx context.Context, paths Paths, cfg daemonapi.Config, secrets worktree.Secrets) (*Volume, error) {
	include, err := homeInclude(cfg)
	if err != nil {
		return nil, err
	}
	s, err := openSpool(ctx, filepath.Join(paths.State, "spool"))
	if err != nil {
		return nil, err
	}
	s.SetMargin(spool.Margin{Bytes: cfg.SpoolMargin.Bytes, Age: time.Duration(cfg.SpoolMargin.Seconds) * time.Second})
	v := &Volume{paths: paths, Spool: s}
	if v.Journal, err = journal.Open(filepath.Join(paths.State, "journal.json"), s.CheckOwner); err != nil {
		s.Close()
		return nil, err
	}
	v.Repo, err = worktree.Open(ctx, worktree.Config{
		GitDir: filepath.Join(paths.State, "git"), Worktree: paths.Worktree,
		Home: paths.Home, HomeInclude: include, HomeExclude: homeExclude(cfg), MaxFileBytes: cfg.Policy.MaxFileBytes,
		GitMemoryBytes: capacity.ForGit(capacity.MemoryLimit()), Secrets: secrets,
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return v, nil
}

// homeInclude returns the paths of the agent's home that every checkpoint contains: the
// sessions of an agent of known type, and what the user names; for an agent of type Exec,
// the whole home if the user names nothing.
func homeInclude(cfg daemonapi.Config) ([]string, error) {
	adapter, err := agent.For(cfg.AgentType)
	if err != nil {
		return nil, err
	}
	var include []string
	for _, p := range slices.Concat(adapter.StatePaths(), cfg.StatePaths) {
		include = append(include, filepath.Clean(p))
	}
	if len(include) == 0 {
		return []string{"."}, nil
	}
	if slices.Contains(include, ".") {
		return []string{"."}, nil
	}
	slices.Sort(include)
	return slices.Compact(include), nil
}

// credentials are the paths, below a home, where programs keep their logins. They are
// excluded from checkpoints that contain a whole home: an agent of type Exec may log in to
// anything while it runs.
var credentials = []string{
	".aws", ".azure", ".cargo/credentials", ".cargo/credentials.toml", ".config/gcloud", ".config/gh", ".config/git/credentials",
	".config/glab-cli", ".config/hub", ".config/op", ".config/containers/auth.json", ".docker/config.json", ".gem/credentials",
	".git-credentials", ".gnupg", ".kube", ".m2/settings-security.xml", ".m2/settings.xml", ".netrc", ".npmrc", ".pgpass",
	".pypirc", ".ssh", ".terraform.d/credentials.tfrc.json", ".vault-token", ".yarnrc.yml",
	".claude/.credentials.json", ".codex/auth.json", ".gemini/oauth_creds.json", ".local/share/opencode/auth.json", ".qwen/oauth_creds.json",
}

// homeExclude returns the paths of the agent's home that no checkpoint contains, unless the
// user names them.
func homeExclude(cfg daemonapi.Config) []string {
	named := func(path string) bool {
		return slices.ContainsFunc(cfg.StatePaths, func(p string) bool {
			p = filepath.Clean(p)
			return p == path || strings.HasPrefix(path, p+"/") || strings.HasPrefix(p, path+"/")
		})
	}
	return slices.DeleteFunc(slices.Clone(credentials), named)
}

func openSpool(ctx context.Context, dir string) (*spool.Spool, error) {
	for {
		s, err := spool.Open(dir)
		if !errors.Is(err, spool.ErrLocked) {
			return s, err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("another daemon still has the volume open: %w", err)
		}
	}
}

// Sync returns when everything written to the volume, by any process, is on disk. Worktree,
// home and the daemon's own folder are parts of one file system.
func (v *Volume) Sync() error {
	dir, err := os.Open(v.paths.State)
	if err == nil {
		err = errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
	}
	if err != nil {
		return fmt.Errorf("sync the volume: %w", err)
	}
	return nil
}

// Close closes the volume.
func (v *Volume) Close() error { return errors.Join(v.Repo.Close(), v.Spool.Close()) }

// Remote returns a function that returns the gitstore's address with the current token.
// caFile is "" or the path returned by CAFile.
func Remote(url, tokenFile, caFile string) func() (worktree.Remote, error) {
	return func() (worktree.Remote, error) {
		token, err := gatewayclient.Token(tokenFile)
		if err != nil {
			return worktree.Remote{}, err
		}
		return worktree.Remote{URL: url, Token: token, CAFile: caFile}, nil
	}
}

// CAFile writes a bundle of certificates to a file for git, and returns its path, or "" for
// an empty bundle. remove deletes the file.
func CAFile(bundle string) (path string, remove func(), err error) {
	if bundle == "" {
		return "", func() {}, nil
	}
	f, err := os.CreateTemp("", "clew-ca-*.pem")
	if err != nil {
		return "", nil, fmt.Errorf("write the CA bundle: %w", err)
	}
	_, err = f.WriteString(bundle)
	if err := errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
		return "", nil, fmt.Errorf("write the CA bundle: %w", err)
	}
	return f.Name(), func() { os.Remove(f.Name()) }, nil
}
