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

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/refname"
)

// Remote is the repository that checkpoints are pushed to and fetched from.
type Remote struct {
	URL string // https or http
	// Token is sent as the password of the user clew by HTTP Basic.
	Token string
	// CAFile is a bundle of the certificate authorities to trust; "" is the system's.
	CAFile string

	grafts string // a file with further parents of commits, if any
}

// RefUpdate asks for a ref of a remote.
type RefUpdate struct {
	Source string // a commit id or a local ref
	Name   string // the ref on the remote
}

func (m Remote) env() []string {
	var env []string
	if m.CAFile != "" {
		// Without a folder that holds none, git trusts the system's authorities as well,
		// and takes 30 ms to read them each time.
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

// remote runs a git command that talks to m.
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
		e.stderr = strings.TrimSpace(e.stderr + "\n" + string(out)) // a push says there why
	}
	if err != nil && ctx.Err() == nil {
		err = failRemote(err, m.URL)
	}
	return out, err
}

// Push updates refs of a remote, all or none, and never by force: a ref that is
// there already and is not an ancestor is Rejected.
//
// Errors: Unreachable (try again), AuthenticationFailed, RepositoryNotFound,
// Rejected (the message is the remote's), CheckpointNotFound (a Source), MemoryExceeded.
func (r *Repo) Push(ctx context.Context, m Remote, updates ...RefUpdate) error {
	if len(updates) == 0 {
		return nil
	}
	args := []string{"push", "--quiet", "--porcelain", "--atomic", "--no-thin", "--no-verify", "--no-follow-tags", "--recurse-submodules=no", "--end-of-options", m.URL}
	var sources, states []string
	for _, u := range updates {
		if err := checkRefName(u.Name); err != nil || !strings.HasPrefix(u.Name, "refs/") {
			return fail(InvalidReference, err, "%q cannot be the name of a ref", u.Name)
		}
		sources = append(sources, u.Source)
	}
	ids, err := r.named(ctx, sources)
	if err != nil {
		return err
	}
	for i, u := range updates {
		args = append(args, ids[i].String()+":"+u.Name)
		if refname.IsState(u.Name) {
			states = append(states, ids[i].String())
		}
	}
	m.grafts = r.graft(ctx, states)
	defer os.Remove(m.grafts)
	_, err = r.remote(ctx, m, args...)
	if err != nil && m.grafts != "" && lacksObjects(err) {
		// It has lost what it was seen to have, or does not show it any more.
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
	r.noteState(ctx, states)
	return nil
}

// named returns the ids of commits. Those that are named by their ids are not looked
// for: a push that fails is told apart then.
func (r *Repo) named(ctx context.Context, names []string) ([]oid, error) {
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

// CheckPush asks a remote whether it would take any push, without one.
//
// Errors: those of Push that are not of what is pushed.
func (r *Repo) CheckPush(ctx context.Context, m Remote) error {
	// A pattern that nothing matches: git asks the remote, and then has nothing to do.
	const nothing = "refs/clew-nothing/*:refs/clew-nothing/*"
	_, err := r.remote(ctx, m, "push", "--quiet", "--dry-run", "--no-verify", "--no-follow-tags", "--recurse-submodules=no", "--end-of-options", m.URL, nothing)
	return err
}

// lacksObjects reports whether a remote refused a push for want of objects.
func lacksObjects(err error) bool {
	return strings.Contains(err.Error(), "missing necessary objects") || strings.Contains(err.Error(), "objects that it does not bring")
}

// Sendable reports why a push of commits could not be made of what this
// repository holds, to a remote that has others. It talks to nobody. Errors:
// CheckpointCorrupted, MemoryExceeded, GitFailed.
func (r *Repo) Sendable(ctx context.Context, ids, has []string) error {
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
	said := stderrOf(err)
	if outOfMemory.MatchString(said) || slices.ContainsFunc(damageWords, func(words string) bool { return strings.Contains(said, words) }) {
		return r.failCorrupt(err, "send what %s holds", r.cfg.GitDir)
	}
	return failGit(err, "read what %s would send", r.cfg.GitDir)
}

// damageWords are the words by which git tells of a missing or damaged object.
var damageWords = []string{"corrupt", "bad object", "bad tree", "missing", "unable to read", "could not read", "inflate", "could not parse", "unable to parse", "is empty", "hash mismatch"}

// remoteState is the last state commit that the remote was seen to have. Git
// sends what no ancestor holds that the remote has, but state commits are
// siblings: by itself it would send the whole state with each of them.
const remoteState = "refs/clew-remote/state"

// notesBetween is how many pushes go by until remoteState is written again. An old
// one costs a push that is a little larger; writing it is a process more for each.
const notesBetween = 16

// seenState is remoteState as this process knows it.
type seenState struct {
	mu      sync.Mutex
	known   bool   // whether state is known; it may be that there is none
	state   string // a commit's id, or ""
	unnoted int    // pushes since it was written
}

// graft writes a file that, for the time of a push, makes remoteState a parent
// of the states to be pushed. "" if there is nothing to gain: then, as after any
// error here, the push takes longer and is the same otherwise.
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

// seenState is the remoteState, "" if there is none.
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

// forget has remoteState read again, as it is before objects are dropped: its ref
// keeps the commit that it names, and nothing may keep one that was noted since.
func (s *seenState) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = false
}

// noteState makes the last of some states, ids or refs, the remoteState.
func (r *Repo) noteState(ctx context.Context, states []string) {
	if len(states) == 0 {
		return
	}
	last := states[len(states)-1]
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	known := r.seen.known && isCommitID(last)
	if known && r.seen.unnoted < notesBetween {
		r.seen.state, r.seen.unnoted = last, r.seen.unnoted+1
		return
	}
	// A lost note costs a larger push only.
	_, err := r.git(ctx, gitCall{args: []string{"update-ref", "--end-of-options", remoteState, last}})
	r.seen.state, r.seen.known, r.seen.unnoted = last, err == nil && isCommitID(last), 0
}

// forgetState forgets what remote was seen to have.
func (r *Repo) forgetState(ctx context.Context) {
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	_, err := r.git(ctx, gitCall{args: []string{"update-ref", "-d", remoteState}}) // as noteState
	r.seen.state, r.seen.known = "", err == nil
}

// Fetch brings refs of a remote here, under the same names, replacing what
// these names stood for. Errors: RefNotFound, Unreachable,
// AuthenticationFailed, RepositoryNotFound, StorageFull.
func (r *Repo) Fetch(ctx context.Context, m Remote, refs ...string) error {
	if len(refs) == 0 {
		return nil
	}
	args := []string{"fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--end-of-options", m.URL}
	for _, ref := range refs {
		if err := checkRefName(ref); err != nil || !strings.HasPrefix(ref, "refs/") {
			return fail(InvalidReference, err, "%q cannot be the name of a ref", ref)
		}
		args = append(args, "+"+ref+":"+ref)
	}
	if _, err := r.remote(ctx, m, args...); err != nil {
		return err
	}
	r.noteState(ctx, slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { return !refname.IsState(ref) }))
	return failIO(r.syncRefs(refs...), "make what was fetched durable")
}

// RemoteRefs lists the refs of a remote whose names begin with prefix, a path
// that ends in a slash. Errors: as of Fetch.
func (r *Repo) RemoteRefs(ctx context.Context, m Remote, prefix string) (map[string]string, error) {
	if err := checkRefName(strings.TrimSuffix(prefix, "/")); err != nil {
		return nil, fail(InvalidReference, err, "%q cannot be the beginning of a ref", prefix)
	}
	out, err := r.remote(ctx, m, "ls-remote", "--refs", "--quiet", "--end-of-options", m.URL, strings.TrimSuffix(prefix, "/")+"/*")
	if err != nil {
		return nil, err
	}
	return parseRefs(out, "\t", prefix), nil
}

// Refs lists the refs of the local repository whose names begin with prefix.
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

// DeleteRefs removes local refs. What nothing else leads to is dropped when
// Maintain repacks next.
func (r *Repo) DeleteRefs(ctx context.Context, refs ...string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var in strings.Builder
	for _, ref := range refs {
		if err := checkRefName(ref); err != nil || !strings.HasPrefix(ref, "refs/") {
			return fail(InvalidReference, err, "%q cannot be the name of a ref", ref)
		}
		in.WriteString("delete " + ref + "\n")
	}
	if err := durable.WriteShared(r.own(dropMarker), besideFiles, nil, 0o600); err != nil {
		return failIO(err, "write %s", r.own(dropMarker))
	}
	_, err := r.git(ctx, gitCall{args: []string{"update-ref", "--stdin"}, stdin: strings.NewReader(in.String())})
	return failGit(err, "delete refs of %s", r.cfg.GitDir)
}

// deleteRefs removes all local refs below a prefix.
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

// remoteErrors are the words by which git tells what went wrong with a remote,
// the more telling ones first.
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
	{"Host key verification failed", AuthenticationFailed},
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
}

// outOfMemory finds git's own lack of memory; the remote's is told of on lines
// that begin otherwise.
var outOfMemory = regexp.MustCompile(`(?mi)^(?:fatal|error): .*(?:out of memory|cannot allocate memory)`)

// failRemote gives an error of talking to a remote its reason.
func failRemote(err error, url string) error {
	text := stderrOf(err)
	if outOfMemory.MatchString(text) {
		return fail(MemoryExceeded, err, "git needs more memory for the repository %s than Clew's container in the task's pod may use; "+moreMemory, url)
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
			return fail(InvalidURL, err, "the repository %s redirects to another address, where its credentials are not sent; set the URL to that address", url)
		case AuthenticationFailed:
			return fail(AuthenticationFailed, err, "the repository %s does not accept the credentials", url)
		case RepositoryNotFound:
			return fail(RepositoryNotFound, err, "there is no repository at %s, or the credentials may not see it", url)
		}
		return fail(Unreachable, err, "the repository %s cannot be reached", url)
	}
	return fail(GitFailed, err, "git failed while talking to %s", url)
}
