package worktree

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

// Remote is the repository that checkpoints are pushed to and fetched from.
type Remote struct {
	URL string // https or http
	// Token is sent as the password of the user clew by HTTP Basic.
	Token string
	// CAFile is a bundle of the certificate authorities to trust; "" means the system's.
	CAFile string

	grafts string // path of a file with additional parents of commits, or ""
}

// RefUpdate is an update of one ref of a remote.
type RefUpdate struct {
	Source string // a commit id or a local ref
	Name   string // the ref on the remote
	// Force moves the ref to a commit that does not contain its present one.
	Force bool
}

func (m Remote) env() []string {
	var env []string
	if m.CAFile != "" {
		// Without GIT_SSL_CAPATH git also trusts the system's authorities, and takes
		// 30 ms to read them each time.
		env = append(env, "GIT_SSL_CAINFO="+m.CAFile, "GIT_SSL_CAPATH="+os.DevNull)
	}
	if m.Token != "" {
		env = append(env, headerEnv("Basic "+base64.StdEncoding.EncodeToString([]byte("clew:"+m.Token)))...)
	}
	if m.grafts != "" {
		env = append(env, "GIT_GRAFT_FILE="+m.grafts)
	}
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// remote runs a git command that contacts m.
func (r *Repo) remote(ctx context.Context, m Remote, args ...string) ([]byte, error) {
	if _, err := cleanURL(m.URL, r.local); err != nil {
		return nil, err
	}
	r.packs.RLock()
	defer r.packs.RUnlock()
	options := []string{
		"-c", "protocol.https.allow=always", "-c", "protocol.http.allow=always",
		"-c", "http.followRedirects=false", "-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60",
		"-c", "fetch.unpackLimit=1", "-c", "push.negotiate=false", "-c", "advice.pushUpdateRejected=false",
		"-c", "advice.graftFileDeprecated=false",
	}
	if r.local {
		options = append(options, "-c", "protocol.file.allow=always")
	}
	out, err := r.git(ctx, gitCall{args: append(options, args...), env: m.env()})
	var e *gitError
	if errors.As(err, &e) {
		e.stderr = strings.TrimSpace(e.stderr + "\n" + string(out)) // where a push reports the cause
	}
	if err != nil && ctx.Err() == nil {
		err = failRemote(err, m.URL)
	}
	return out, err
}

// Push updates refs of a remote, all or none. Without Force, if a ref exists and is not an
// ancestor of its Source, the push is Rejected.
//
// Errors: Unreachable (a retry may succeed), AuthenticationFailed, RepositoryNotFound,
// Rejected (with the remote's message), CheckpointNotFound (for a Source),
// MemoryExceeded.
func (r *Repo) Push(ctx context.Context, m Remote, updates ...RefUpdate) error {
	if len(updates) == 0 {
		return nil
	}
	args := []string{"push", "--quiet", "--porcelain", "--atomic", "--no-thin", "--no-verify", "--no-follow-tags", "--recurse-submodules=no", "--end-of-options", m.URL}
	var sources, states []string
	for _, u := range updates {
		if err := checkRefName(u.Name); err != nil || !strings.HasPrefix(u.Name, "refs/") {
			return fail(InvalidReference, err, "%q is not a valid ref name", u.Name)
		}
		sources = append(sources, u.Source)
	}
	ids, err := r.commitIDs(ctx, sources)
	if err != nil {
		return err
	}
	for i, u := range updates {
		force := ""
		if u.Force {
			force = "+"
		}
		args = append(args, force+ids[i].String()+":"+u.Name)
		if refname.IsState(u.Name) {
			states = append(states, ids[i].String())
		}
	}
	m.grafts = r.graft(ctx, states)
	defer os.Remove(m.grafts)
	_, err = r.remote(ctx, m, args...)
	if err != nil && m.grafts != "" && lacksObjects(err) {
		// The remote has lost the state that it was known to have, or hides it.
		r.forgetState(ctx)
		m.grafts = ""
		_, err = r.remote(ctx, m, args...)
	}
	if err != nil {
		if _, missing := r.resolveAll(ctx, sources); missing != nil && ctx.Err() == nil {
			return missing
		}
		return err
	}
	r.recordState(ctx, states)
	return nil
}

// commitIDs returns the ids of commits. If all names are ids, it does not check that the
// commits exist: Push does so if it fails.
func (r *Repo) commitIDs(ctx context.Context, names []string) ([]oid, error) {
	ids := make([]oid, 0, len(names))
	for _, name := range names {
		id, err := parseOID(name)
		if err != nil {
			return r.resolveAll(ctx, names)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// CheckPush checks that a remote would accept a push, without pushing anything.
//
// Errors: those of Push that do not depend on what is pushed.
func (r *Repo) CheckPush(ctx context.Context, m Remote) error {
	// Nothing matches this pattern: git contacts the remote and has nothing to push.
	const nothing = "refs/clew-nothing/*:refs/clew-nothing/*"
	_, err := r.remote(ctx, m, "push", "--quiet", "--dry-run", "--no-verify", "--no-follow-tags", "--recurse-submodules=no", "--end-of-options", m.URL, nothing)
	return err
}

// lacksObjects reports whether a remote rejected a push because of missing objects. The
// words are those of git and of the gitstore, which may be of another version.
func lacksObjects(err error) bool {
	return strings.Contains(err.Error(), "missing necessary objects") || strings.Contains(err.Error(), gitstoreapi.MissingObjects)
}

// CheckSendable checks that this repository has every object that a push of the commits
// in ids would send to a remote that already has those in has. It contacts no remote.
// Errors: CheckpointCorrupted, MemoryExceeded, GitFailed.
func (r *Repo) CheckSendable(ctx context.Context, ids, has []string) error {
	r.packs.RLock()
	defer r.packs.RUnlock()
	var in strings.Builder
	for _, id := range ids {
		in.WriteString(id + "\n")
	}
	for _, id := range has {
		in.WriteString("^" + id + "\n")
	}
	_, err := r.git(ctx, gitCall{args: []string{"-c", "pack.threads=1", "pack-objects", "--quiet", "--revs", "--stdout"},
		stdin: strings.NewReader(in.String()), stdout: io.Discard})
	if err == nil {
		return nil
	}
	stderr := stderrOf(err)
	if outOfMemory.MatchString(stderr) || slices.ContainsFunc(damageWords, func(words string) bool { return strings.Contains(stderr, words) }) {
		return r.failCorrupt(err, "send what %s holds", r.cfg.GitDir)
	}
	return failGit(err, "read what %s would send", r.cfg.GitDir)
}

// damageWords are the words with which git reports a missing or damaged object.
var damageWords = []string{"corrupt", "bad object", "bad tree", "missing", "unable to read", "could not read", "inflate", "could not parse", "unable to parse", "is empty", "hash mismatch"}

// RemoteDamaged reports whether a fetch failed because git at the remote could not read an object.
// That it suspects a corruption is not enough: it says so whenever it dies, and so if it is killed.
func RemoteDamaged(err error) bool {
	const suspicion = "possible repository corruption"
	text := stderrOf(err)
	if !strings.Contains(text, suspicion) {
		return false
	}
	for line := range strings.Lines(strings.ToLower(text)) {
		said, remote := strings.CutPrefix(line, "remote: ")
		damage := func(words string) bool { return strings.Contains(said, words) }
		if remote && !strings.Contains(said, suspicion) && slices.ContainsFunc(damageWords, damage) {
			return true
		}
	}
	return false
}

// remoteState is the ref of the last state commit that the remote is known to have.
// Git omits only objects of ancestors that the remote has, but state commits are
// siblings: without this it would send the whole state with each of them.
const remoteState = "refs/clew-remote/state"

// pushesPerUpdate is the number of pushes after which remoteState is updated. An
// outdated ref makes the next process's first push a little larger; updating it with
// each push would cost an additional git process each time.
const pushesPerUpdate = 16

// seenState is this process's knowledge of remoteState.
type seenState struct {
	mu     sync.Mutex
	known  bool   // state is valid, even if it is ""
	state  string // a commit id, or "" if the remote has none
	pushes int    // number of pushes since the ref was updated
}

// graft writes a file that makes remoteState a parent of the pushed states during a
// push, and returns its path. It returns "" if that would gain nothing, or after any
// error: then the push only takes longer.
func (r *Repo) graft(ctx context.Context, states []string) (file string) {
	known := r.seenState(ctx)
	states = slices.DeleteFunc(slices.Clone(states), func(id string) bool { return id == known })
	if known == "" || len(states) == 0 {
		return ""
	}
	parents, err := r.gitText(ctx, append([]string{"rev-list", "--no-walk=unsorted", "--parents", "--end-of-options"}, states...)...)
	if err != nil {
		return ""
	}
	f, err := os.CreateTemp(r.own(""), "tmp_grafts_*")
	if err != nil {
		return ""
	}
	_, err = f.WriteString(strings.ReplaceAll(parents, "\n", " "+known+"\n") + " " + known + "\n")
	if errors.Join(err, f.Close()) != nil {
		os.Remove(f.Name())
		return ""
	}
	return f.Name()
}

// seenState returns the commit id of remoteState, or "" if there is none.
func (r *Repo) seenState(ctx context.Context) string {
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	if !r.seen.known {
		id, err := r.gitText(ctx, "rev-parse", "--verify", "--quiet", remoteState+"^{commit}")
		if err != nil {
			return ""
		}
		r.seen.state, r.seen.known = id, true
	}
	return r.seen.state
}

// forget makes seenState read the ref again. Maintain calls it before it drops objects:
// the ref keeps its commit reachable, but a commit recorded since then only in memory
// may be dropped.
func (s *seenState) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = false
}

// recordState makes the last of states, given by ids or refs, the remoteState.
func (r *Repo) recordState(ctx context.Context, states []string) {
	if len(states) == 0 {
		return
	}
	last := states[len(states)-1]
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	known := r.seen.known && isCommitID(last)
	if known && r.seen.pushes < pushesPerUpdate {
		r.seen.state, r.seen.pushes = last, r.seen.pushes+1
		return
	}
	// If this fails, the only cost is a larger push.
	_, err := r.git(ctx, gitCall{args: []string{"update-ref", "--end-of-options", remoteState, last}})
	r.seen.state, r.seen.known, r.seen.pushes = last, err == nil && isCommitID(last), 0
}

// forgetState deletes remoteState.
func (r *Repo) forgetState(ctx context.Context) {
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	_, err := r.git(ctx, gitCall{args: []string{"update-ref", "-d", remoteState}}) // see recordState
	r.seen.state, r.seen.known = "", err == nil
}

// Fetch fetches refs of a remote to local refs with the same names, overwriting
// them. Errors: RefNotFound, Unreachable, AuthenticationFailed, RepositoryNotFound,
// StorageFull.
func (r *Repo) Fetch(ctx context.Context, m Remote, refs ...string) error {
	if len(refs) == 0 {
		return nil
	}
	args := []string{"fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--end-of-options", m.URL}
	for _, ref := range refs {
		if err := checkRefName(ref); err != nil || !strings.HasPrefix(ref, "refs/") {
			return fail(InvalidReference, err, "%q is not a valid ref name", ref)
		}
		args = append(args, "+"+ref+":"+ref)
	}
	if _, err := r.remote(ctx, m, args...); err != nil {
		return err
	}
	r.recordState(ctx, slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { return !refname.IsState(ref) }))
	return failIO(r.syncRefs(refs...), "make what was fetched durable")
}

// RemoteRefs returns the refs of a remote whose names begin with prefix, a path that
// ends in a slash, with their object ids. It fails as Fetch does.
func (r *Repo) RemoteRefs(ctx context.Context, m Remote, prefix string) (map[string]string, error) {
	if err := checkRefName(strings.TrimSuffix(prefix, "/")); err != nil {
		return nil, fail(InvalidReference, err, "%q is not a valid ref prefix", prefix)
	}
	out, err := r.remote(ctx, m, "ls-remote", "--refs", "--quiet", "--end-of-options", m.URL, strings.TrimSuffix(prefix, "/")+"/*")
	if err != nil {
		return nil, err
	}
	return parseRefs(out, "\t", prefix), nil
}

// Refs returns the local refs whose names begin with prefix, with their object ids.
func (r *Repo) Refs(ctx context.Context, prefix string) (map[string]string, error) {
	out, err := r.git(ctx, gitCall{args: []string{"for-each-ref", "--format=%(objectname)%09%(refname)"}})
	if err != nil {
		return nil, failGit(err, "list the refs of %s", r.cfg.GitDir)
	}
	return parseRefs(out, "\t", prefix), nil
}

func parseRefs(out []byte, sep, prefix string) map[string]string {
	refs := map[string]string{}
	for line := range bytes.Lines(out) {
		id, name, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), sep)
		if ok && strings.HasPrefix(name, prefix) {
			refs[name] = id
		}
	}
	return refs
}

// DeleteRefs deletes local refs. The next repack by Maintain drops the objects that
// are no longer reachable.
func (r *Repo) DeleteRefs(ctx context.Context, refs ...string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var in strings.Builder
	for _, ref := range refs {
		if err := checkRefName(ref); err != nil || !strings.HasPrefix(ref, "refs/") {
			return fail(InvalidReference, err, "%q is not a valid ref name", ref)
		}
		in.WriteString("delete " + ref + "\n")
	}
	if err := r.markDrop(); err != nil {
		return err
	}
	_, err := r.git(ctx, gitCall{args: []string{"update-ref", "--stdin"}, stdin: strings.NewReader(in.String())})
	return failGit(err, "delete refs of %s", r.cfg.GitDir)
}

// DropState deletes the ref of another task's state, once what is needed of it was restored.
// Nothing else then keeps its objects, except for the origin's history.
func (r *Repo) DropState(ctx context.Context, ref string) error {
	r.forgetState(ctx)
	return r.DeleteRefs(ctx, ref)
}

// deleteRefs deletes all local refs below a prefix.
func (r *Repo) deleteRefs(ctx context.Context, prefix string) error {
	refs, err := r.Refs(ctx, prefix)
	if err != nil || len(refs) == 0 {
		return err
	}
	var in strings.Builder
	for ref := range refs {
		in.WriteString("delete " + ref + "\n")
	}
	_, err = r.git(ctx, gitCall{args: []string{"update-ref", "--stdin"}, stdin: strings.NewReader(in.String())})
	return failGit(err, "delete refs of %s", r.cfg.GitDir)
}

// remoteErrors maps the words with which git reports a failure of a remote to
// reasons, the most specific first.
var remoteErrors = []struct {
	words  string
	reason Reason
}{
	{"No space left on device", StorageFull},
	{"Disk quota exceeded", StorageFull},
	{"couldn't find remote ref", RefNotFound},
	{"not our ref", RefNotFound},
	{"Server does not allow request for unadvertised object", RefNotFound},
	{"remote error: want ", RefNotFound}, // "<commit> not valid": JGit, and so Gerrit
	{"[remote rejected]", Rejected},
	{"[rejected]", Rejected},
	{"pre-receive hook declined", Rejected},
	{"unpack failed", Rejected},
	{"remote unpack failed", Rejected},
	{"Authentication failed", AuthenticationFailed},
	{"could not read Username", AuthenticationFailed},
	{"could not read Password", AuthenticationFailed},
	{"Permission denied", AuthenticationFailed},
	{"returned error: 301", InvalidURL},
	{"returned error: 302", InvalidURL},
	{"returned error: 303", InvalidURL},
	{"returned error: 307", InvalidURL},
	{"returned error: 308", InvalidURL},
	{"returned error: 401", AuthenticationFailed},
	{"returned error: 403", AuthenticationFailed},
	{"returned error: 404", RepositoryNotFound},
	{"epository not found", RepositoryNotFound},
	{"does not appear to be a git repository", RepositoryNotFound},
	{"Could not resolve host", Unreachable},
	{"Could not resolve hostname", Unreachable},
	{"No route to host", Unreachable},
	{"Network is unreachable", Unreachable},
	{"Connection closed", Unreachable},
	{"Broken pipe", Unreachable},
	{"Failed to connect", Unreachable},
	{"Connection refused", Unreachable},
	{"Connection timed out", Unreachable},
	{"Connection reset", Unreachable},
	{"timed out", Unreachable},
	{"unable to access", Unreachable},
	{"returned error: 5", Unreachable},
	{"returned error: 429", Unreachable},
	{"the remote end hung up", Unreachable},
	{"early EOF", Unreachable},
	{"RPC failed", Unreachable},
	{"not found", RepositoryNotFound},
	{"Could not read from remote repository", RepositoryNotFound}, // by ssh, after what the host says
}

// outOfMemory matches messages of the local git that it is out of memory. Messages
// of the remote have another prefix.
var outOfMemory = regexp.MustCompile(`(?mi)^(?:fatal|error): .*(?:out of memory|cannot allocate memory)`)

// failRemote wraps an error of a git command that contacted a remote.
func failRemote(err error, url string) error {
	text := stderrOf(err)
	if outOfMemory.MatchString(text) {
		return fail(MemoryExceeded, err, "git needs more memory for the repository %s than Clew's container in the task's pod may use; "+moreMemory, url)
	}
	if err := failSSH(err, url); err != nil {
		return err
	}
	for _, known := range remoteErrors {
		if !strings.Contains(text, known.words) {
			continue
		}
		switch known.reason {
		case StorageFull:
			return fail(StorageFull, err, "the volume is full while talking to %s; free space or enlarge the volume", url)
		case RefNotFound:
			return fail(RefNotFound, err, "the repository %s has no such branch, tag or commit", url)
		case Rejected:
			return fail(Rejected, err, "the repository %s refused the push", url)
		case InvalidURL:
			return fail(InvalidURL, err, "the repository %s redirects to another address, to which credentials are not sent; set the URL to that address", url)
		case AuthenticationFailed:
			return fail(AuthenticationFailed, err, "the repository %s does not accept the credentials", url)
		case RepositoryNotFound:
			return fail(RepositoryNotFound, err, "there is no repository at %s, or the credentials do not grant access to it", url)
		}
		return fail(Unreachable, err, "the repository %s cannot be reached", url)
	}
	return fail(GitFailed, err, "git failed while talking to %s", url)
}
