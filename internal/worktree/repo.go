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

// Config holds the paths and limits of a Repo.
type Config struct {
	// GitDir is the bare repository that holds the checkpoints. Open creates it if
	// it does not exist. The agent must not be able to access it.
	GitDir string
	// Worktree is the agent's working tree.
	Worktree string
	// Home is the agent's home folder; "" means that session state is not captured.
	Home string
	// HomeInclude lists the session state as slash-separated paths below Home. Each
	// element of a path may be a pattern as in path.Match.
	HomeInclude []string
	// HomeExclude lists paths below Home that are neither captured nor changed.
	HomeExclude []string
	// MaxFileBytes is the size of the largest file that is captured; larger ones
	// are listed as skipped. 0 means 64 MiB. For session state it is never less than
	// that.
	MaxFileBytes int64
	// MaxGitFileBytes is MaxFileBytes for files inside a .git; 0 means 1 GiB.
	MaxGitFileBytes int64
	// MaxFiles is the number of files and folders beyond which operations fail with
	// TooManyFiles; 0 means 1,000,000.
	MaxFiles int
	// MaxListed bounds the lists in results; 0 means 2,000. Counts are never
	// truncated.
	MaxListed int
	// MaxPacks is the number of packs at which Maintain repacks; 0 means 40.
	MaxPacks int
	// MaxReplacedBytes is how much of what Warm has stored may be replaced before Maintain
	// drops it; 0 means 64 MiB. It is never less than a tenth of all packs.
	MaxReplacedBytes int64
	// Git is the git binary; "" means git in PATH.
	Git string
	// LockWait is how long Open waits for the lock of GitDir; 0 means 30 seconds.
	LockWait time.Duration
	// GitMemoryBytes is the memory limit of each git process; 0 means no limit.
	GitMemoryBytes int64
	// Secrets finds the values that must not get into a checkpoint; nil means that
	// there are none.
	Secrets Secrets
}

// Secrets finds and masks the values that must not leave the volume.
// Implementations are safe for concurrent use.
type Secrets interface {
	// Fingerprint identifies the set of values; it is 0 for the empty set.
	Fingerprint() uint32
	// Holds reports whether b contains a value.
	Holds(b []byte) bool
	// CopySame copies src to dst without changing its length, with each value
	// replaced by as many asterisks as it has bytes. It reports whether it found one.
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
	if c.MaxReplacedBytes == 0 {
		c.MaxReplacedBytes = 64 << 20
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
// safe for concurrent use. Those that read or write the worktree exclude each
// other.
type Repo struct {
	cfg  Config
	lock *os.File

	// packs is read-locked by methods that read or add objects without holding mu,
	// and locked by Maintain, which removes packs and leftovers. Maintain only uses
	// TryLock, so that nothing ever waits for it.
	packs sync.RWMutex

	mu       sync.Mutex
	cache    snapshot // result of the last scan
	base     baseline // the commits that the cache matches
	ahead    *ahead   // the commit that Warm built on; nil if it stored nothing since the last checkpoint
	throttle func()   // the argument of Warm while it runs, otherwise nil
	unsaved  int      // number of files read since the cache was saved
	replaced int64    // bytes of packs that replaced what Warm had stored, since Maintain dropped objects
	pristine *pristine
	index    *indexTree // the agent's index, as last parsed
	synced   sync.Map   // folders of refs whose own names are durable
	seen     seenState
	local    bool // allows file URLs, for tests
}

// baseline names the commits whose content the stat cache matches. A field is ""
// if the cache was filled by a scan without a checkpoint.
type baseline struct {
	code, state         string
	codeTree, stateTree oid
	// summary describes the state commit, if this process wrote it; nil otherwise.
	summary *stateSummary
}

// stateSummary is part of a state commit's Meta, and the blob with all of it.
type stateSummary struct {
	agent AgentGit
	meta  oid
}

// Open opens the repository at cfg.GitDir, creating it if it does not exist, and
// removes the leftovers of killed processes. It waits up to cfg.LockWait for
// another process, or a git process that outlived one, to release the lock.
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
			return nil, failIO(err, "create the repository %s", cfg.GitDir)
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

// Close saves the stat cache and releases the lock of the repository.
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

// takeLock takes an flock that git processes inherit: one that outlives a killed
// daemon keeps the lock until it exits.
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

// own returns the path of one of this package's own files inside the repository.
func (r *Repo) own(name string) string { return filepath.Join(r.cfg.GitDir, "clew", name) }

// attributesText keeps a .gitattributes from making git convert content.
const attributesText = "* -text -eol -filter -merge -ident -working-tree-encoding !diff\n"

const configText = `[core]
	repositoryformatversion = 0
	filemode = true
	bare = true
	logAllRefUpdates = false
`

// prepareGitDir writes the files that make GitDir a repository and removes the
// leftovers of killed processes.
func (r *Repo) prepareGitDir() error {
	for name, text := range map[string]string{"HEAD": "ref: refs/heads/main\n", "config": configText, "info/attributes": attributesText} {
		path := filepath.Join(r.cfg.GitDir, name)
		if have, err := os.ReadFile(path); err == nil && string(have) == text {
			continue
		}
		if err := durable.WriteShared(path, tempPattern, []byte(text), 0o600); err != nil {
			return failIO(err, "write %s", path)
		}
	}
	if _, err := r.reap(); err != nil {
		return err
	}
	return r.loadPristine()
}

// tempPattern names the temporary files of durable.WriteShared. It has the prefix of git's
// own temporary files, so that reap deletes those that a crash left behind.
const tempPattern = "tmp_clew_*"
