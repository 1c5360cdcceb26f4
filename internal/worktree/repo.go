package worktree

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/durable"
)

// Config says where things are and what the limits are.
type Config struct {
	// GitDir is the bare repository that holds the checkpoints. Open makes it
	// where it is absent. The agent must have no way to reach it.
	GitDir string
	// Worktree is the agent's working tree.
	Worktree string
	// Home is the agent's home folder; "" means that no session state is kept.
	Home string
	// HomeInclude lists the session state: paths below Home, with slashes, each of
	// whose names may be a pattern as in path.Match.
	HomeInclude []string
	// HomeExclude lists paths below Home that are neither captured nor changed.
	HomeExclude []string
	// MaxFileBytes is the size beyond which a file is listed as skipped; 0
	// means 64 MiB. For session state it is never less than that.
	MaxFileBytes int64
	// MaxGitFileBytes is the same for files inside a .git; 0 means 1 GiB.
	MaxGitFileBytes int64
	// MaxFiles is the number of files and folders beyond which nothing is
	// captured; 0 means 1,000,000.
	MaxFiles int
	// MaxListed is the length of the longest list in a result; 0 means 2,000.
	// Counts are always whole.
	MaxListed int
	// MaxPacks is the number of packs from which Maintain repacks; 0 means 40.
	MaxPacks int
	// Git is the git binary; "" means git from PATH.
	Git string
	// LockWait is how long Open waits for another holder of GitDir; 0 means 30
	// seconds.
	LockWait time.Duration
	// GitMemoryBytes is how much memory one git process may use; 0 for no limit.
	GitMemoryBytes int64
	// Secrets must not get into a checkpoint; nil means that there are none.
	Secrets Secrets
}

// Secrets finds the values that must not leave the volume. It is safe for
// concurrent use.
type Secrets interface {
	// Fingerprint is another number for another set of values, 0 for none.
	Fingerprint() uint32
	// Holds reports whether a value is in b.
	Holds(b []byte) bool
	// CopySame copies src to dst with as many asterisks in the place of each
	// value as it has bytes, and reports whether it found one.
	CopySame(dst io.Writer, src io.Reader) (n int64, found bool, err error)
}

const defaultMaxFileBytes = 64 << 20

func (c *Config) setDefaults() {
	if c.MaxFileBytes == 0 {
		c.MaxFileBytes = defaultMaxFileBytes
	}
	if c.MaxGitFileBytes == 0 {
		c.MaxGitFileBytes = 1 << 30
	}
	if c.MaxFiles == 0 {
		c.MaxFiles = 1_000_000
	}
	if c.MaxListed == 0 {
		c.MaxListed = 2_000
	}
	if c.MaxPacks == 0 {
		c.MaxPacks = 40
	}
	if c.Git == "" {
		c.Git = "git"
	}
	if c.LockWait == 0 {
		c.LockWait = 30 * time.Second
	}
	if c.Secrets != nil && c.Secrets.Fingerprint() == 0 {
		c.Secrets = nil
	}
}

// Repo is one worktree and the repository of its checkpoints. Its methods are
// safe for concurrent use. Those that read or write the worktree run one after
// another.
type Repo struct {
	cfg  Config
	lock *os.File

	// packs is held shared by what reads or adds objects without holding mu,
	// and alone by Maintain, which removes packs and leftovers. Maintain only
	// ever tries, so that nobody waits for it.
	packs sync.RWMutex

	mu       sync.Mutex
	cache    snapshot // what the last scan found
	base     baseline // which commits the cache is equal to
	ahead    *ahead   // what Warm stored beyond a commit; nil if it stored nothing
	rest     func()   // what Warm was given, while it works
	unsaved  int      // files read since the cache was saved
	pristine *pristine
	index    *indexTree // the agent's index, as last looked into
	synced   sync.Map   // folders of refs whose names are durable
	seen     seenState
	local    bool // lets tests clone from a path
}

// baseline names the commits whose content the stat cache holds. A field is ""
// if the cache was filled by a scan that was not checkpointed.
type baseline struct {
	code, state         string
	codeTree, stateTree oid
	// said is what the state commit says of itself, if this process wrote it.
	said *saidOfState
}

// saidOfState is a part of a state commit's Meta, and where the whole of it is.
type saidOfState struct {
	agent AgentGit
	meta  oid
}

// Open opens the repository at cfg.GitDir, making it where it is absent, and
// removes what a killed process left there. It waits up to cfg.LockWait for
// another process, or git processes that outlived one, to let go of it.
func Open(ctx context.Context, cfg Config) (*Repo, error) {
	cfg.setDefaults()
	for _, p := range slices.Concat(cfg.HomeInclude, cfg.HomeExclude) {
		if p != "." && (p == "" || filepath.Clean(p) != p || filepath.IsAbs(p) || strings.HasPrefix(p+"/", "../")) {
			return nil, fail(GitFailed, nil, "the session state path %q is not a clean path below the home; write it like .claude or .codex/sessions", p)
		}
	}
	for _, p := range cfg.HomeInclude {
		if _, err := path.Match(p, ""); err != nil {
			return nil, fail(GitFailed, err, "the session state path %q is not a pattern; write a backslash before each *, ? or [ that is part of a name", p)
		}
	}
	for _, sub := range []string{"objects/pack", "objects/info", "refs/heads", "info", "clew"} {
		if err := os.MkdirAll(filepath.Join(cfg.GitDir, sub), 0o700); err != nil {
			return nil, failIO(err, "make the repository %s", cfg.GitDir)
		}
	}
	r := &Repo{cfg: cfg}
	if err := r.takeLock(ctx); err != nil {
		return nil, err
	}
	if err := r.prepareGitDir(); err != nil {
		r.lock.Close()
		return nil, err
	}
	r.loadCache()
	return r, nil
}

// Close saves the stat cache and lets go of the repository.
func (r *Repo) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lock == nil {
		return nil
	}
	err := r.saveCache()
	r.lock.Close()
	r.lock = nil
	return err
}

// takeLock takes an flock that git processes inherit: a process that outlives
// a killed daemon keeps the lock until it has ended.
func (r *Repo) takeLock(ctx context.Context) error {
	f, err := os.OpenFile(r.own("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return failIO(err, "open the lock of %s", r.cfg.GitDir)
	}
	for deadline := time.Now().Add(r.cfg.LockWait); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			r.lock = f
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return failIO(err, "lock %s", r.cfg.GitDir)
		}
		if time.Now().After(deadline) {
			f.Close()
			return fail(InUse, nil, "another process uses the repository %s; stop it first", r.cfg.GitDir)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// own is the path of a file of ours inside the repository.
func (r *Repo) own(name string) string { return filepath.Join(r.cfg.GitDir, "clew", name) }

// attributesText keeps git from changing bytes by what a .gitattributes says.
const attributesText = "* -text -eol -filter -merge -ident -working-tree-encoding !diff\n"

const configText = `[core]
	repositoryformatversion = 0
	filemode = true
	bare = true
	logAllRefUpdates = false
`

// prepareGitDir writes the files that make GitDir a repository and reaps what
// killed processes left.
func (r *Repo) prepareGitDir() error {
	for name, text := range map[string]string{"HEAD": "ref: refs/heads/main\n", "config": configText, "info/attributes": attributesText} {
		path := filepath.Join(r.cfg.GitDir, name)
		if have, err := os.ReadFile(path); err == nil && string(have) == text {
			continue
		}
		if err := durable.WriteShared(path, besideFiles, []byte(text), 0o600); err != nil {
			return failIO(err, "write %s", path)
		}
	}
	if _, err := r.reap(); err != nil {
		return err
	}
	return r.loadPristine()
}

// besideFiles names files that are written before they take their place, as git names
// its own: Maintain takes away those that a crash left.
const besideFiles = "tmp_clew_*"
