package worktree

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/durable"
)

// Credentials grant access to a private repository.
type Credentials struct {
	// Username and Password are for HTTP. With a token as Password, Username may
	// be empty.
	Username, Password string
	// SSHKeyFile and SSHKnownHostsFile are the paths of a private key without a passphrase
	// and of the public keys of hosts. Both are required for ssh.
	SSHKeyFile, SSHKnownHostsFile string
}

// CloneRequest describes a clone of an origin.
type CloneRequest struct {
	// URL is the origin's https, http or ssh URL, or user@host:path, without credentials. If
	// it is "", Clone creates an empty repository with an unborn branch main.
	URL string
	// Ref is a branch, a tag or a commit; "" means the origin's default branch.
	Ref         string
	Credentials Credentials
	// CAFile is a bundle of certificate authorities to trust in addition to the
	// system's; "" means only the system's.
	CAFile string
	// Time is the time of the entries in the agent's reflog; zero means now.
	Time time.Time
}

// Refs under which the origin's branches and tags are kept.
const (
	originHeads = "refs/clew-origin/heads/"
	originTags  = "refs/clew-origin/tags/"
)

// Clone creates the worktree and the agent's repository from an origin, as git
// clone does: all branches and tags, the whole history, and the remote "origin"
// with the URL but no credentials. Submodules are not fetched. In the agent's
// repository gc.auto is 0, so that git does not repack it unasked.
//
// Clone does nothing if it has completed before and the agent's repository still
// exists. If it was killed, the next call starts over.
//
// Errors: InvalidURL, InvalidReference, RepositoryNotFound, AuthenticationFailed,
// RefNotFound, Unreachable, WorktreeNotEmpty, WorktreeMissing, StorageFull,
// GitFailed.
func (r *Repo) Clone(ctx context.Context, req CloneRequest) (Origin, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if req.Time.IsZero() {
		req.Time = time.Now()
	}
	work, home, err := r.openRoots()
	if err != nil {
		return Origin{}, err
	}
	defer closeRoots(work, home)
	if r.pristine != nil {
		// r.pristine belongs to GitDir; the worktree may have been deleted since.
		if _, err := work.lstat(gitName); err == nil {
			return r.pristine.Origin, r.endClone()
		} else if !errors.Is(err, unix.ENOENT) {
			return Origin{}, failIO(err, "inspect %s", work.path)
		}
	}
	c := &cloning{r: r, ctx: ctx, req: &req, work: work}
	if err := c.begin(); err != nil {
		return Origin{}, err
	}
	if req.URL != "" {
		if err := c.fetch(); err != nil {
			return Origin{}, err
		}
	} else {
		c.origin = Origin{Ref: "refs/heads/main", Branch: "main"}
	}
	if err := c.layOut(); err != nil {
		return Origin{}, err
	}
	// Hash the new files now, so that the first checkpoint does not have to.
	snap, err := r.scanRoots(ctx, work, home, 0, noLimit)
	if err != nil {
		return Origin{}, err
	}
	if err := work.sync(); err != nil {
		return Origin{}, failIO(err, "make %s durable", work.path)
	}
	if err := r.savePristine(c.pristine); err != nil {
		return Origin{}, err
	}
	r.remember(snap, baseline{})
	_ = r.saveCache() // losing the cache only costs time
	return c.origin, r.endClone()
}

// endClone removes the marker of an incomplete clone.
func (r *Repo) endClone() error {
	if err := os.Remove(r.own("cloning")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return failIO(err, "remove %s", r.own("cloning"))
	}
	return nil
}

// cloning is the state of one clone in progress.
type cloning struct {
	r        *Repo
	ctx      context.Context
	req      *CloneRequest
	work     *beneath
	url      string
	origin   Origin
	refs     []originRef
	pristine *pristine
}

// originRef is a branch or tag of the origin.
type originRef struct {
	name   string // refs/clew-origin/…
	oid    string
	commit string // the peeled commit, "" if the ref does not resolve to one
}

// begin validates the request and empties a worktree that a killed clone left
// behind. It refuses a worktree that contains anything else.
func (c *cloning) begin() error {
	r := c.r
	if c.req.URL != "" {
		var err error
		if c.url, err = cleanURL(c.req.URL, r.local); err != nil {
			return err
		}
		if err = checkSSH(c.url, c.req.Credentials); err != nil {
			return err
		}
	}
	if c.req.Ref != "" {
		if err := checkRefName(c.req.Ref); err != nil {
			return fail(InvalidReference, err, "%q is not a valid branch, tag or commit", c.req.Ref)
		}
	}
	marker := r.own("cloning")
	if _, err := os.Stat(marker); err != nil {
		empty, err := c.work.isEmpty()
		if err != nil {
			return failIO(err, "list %s", c.work.path)
		}
		if !empty {
			return fail(WorktreeNotEmpty, nil, "the worktree %s contains files that were not created by a clone; empty it or restore a checkpoint", c.work.path)
		}
		return failIO(durable.WriteShared(marker, tempPattern, nil, 0o600), "write %s", marker)
	}
	fd, err := c.work.openFolder("")
	if err != nil {
		return failIO(err, "list %s", c.work.path)
	}
	l := &lister{buf: make([]byte, 16<<10)}
	err = l.readNames(fd, nil)
	closeFD(fd)
	for _, name := range l.names {
		if err == nil && name != "lost+found" {
			err = c.work.removeAll(name)
		}
	}
	return failIO(err, "empty the worktree %s", c.work.path)
}

// cleanURL validates the URL of an origin and returns it in the form passed to git.
func cleanURL(text string, local bool) (string, error) {
	bad := func(why string) (string, error) {
		return "", fail(InvalidURL, nil, "the repository URL %s; write it like https://host/path.git, ssh://git@host/path.git or git@host:path.git", why)
	}
	if local && strings.HasPrefix(text, "file:///") {
		return text, nil
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return bad("contains spaces or control characters")
	}
	if cleanSSH(text) {
		return text, nil
	}
	if !strings.Contains(text, "://") {
		return bad("has no scheme")
	}
	u, err := url.Parse(text)
	if err != nil || u.Opaque != "" {
		return bad("cannot be parsed")
	}
	switch _, password := u.User.Password(); {
	case password || (u.User != nil && u.Scheme != "ssh"):
		return bad("contains credentials, which belong in a Secret")
	case u.Scheme == "ssh":
		return bad("is not a plain ssh URL with a user, a host and a path")
	case u.Scheme != "https" && u.Scheme != "http":
		return bad("has the scheme " + fmt.Sprintf("%q", u.Scheme) + ", but only https, http and ssh are allowed")
	case u.Hostname() == "" || strings.HasPrefix(u.Host, "-"):
		return bad("has no valid host")
	case u.RawQuery != "" || u.Fragment != "":
		return bad("has a query or a fragment")
	}
	return u.String(), nil
}

// originEnv returns the environment for git commands that contact the origin.
func (c *cloning) originEnv() []string {
	var env []string
	set := func(key, value string) { env = append(env, key+"="+value) }
	// Proxies are configured by the cluster, not by the agent: git uses those of
	// this process.
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if v := os.Getenv(name); v != "" {
			set(name, v)
		}
	}
	if c.req.CAFile != "" {
		set("GIT_SSL_CAINFO", c.req.CAFile)
	}
	cred := c.req.Credentials
	switch {
	case IsSSH(c.url):
		set("GIT_SSH_COMMAND", sshCommand(cred))
		set("GIT_SSH_VARIANT", "ssh")
	case cred.Password != "":
		env = append(env, headerEnv(c.authorization())...)
	}
	return env
}

// authorization returns the value of the Authorization header with the credentials.
func (c *cloning) authorization() string {
	user := c.req.Credentials.Username
	if user == "" {
		user = "x-access-token"
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+c.req.Credentials.Password))
}

// headerEnv passes an Authorization header to git through the environment, so that
// it appears neither in the list of processes nor in a log.
func headerEnv(value string) []string {
	return []string{
		"GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=http.extraHeader",
		"GIT_CONFIG_VALUE_0=Authorization: " + value,
	}
}

func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// remote runs a git command that contacts the origin.
func (c *cloning) remote(args ...string) ([]byte, error) {
	allow := []string{"-c", "protocol.https.allow=always", "-c", "protocol.http.allow=always", "-c", "protocol.ssh.allow=always"}
	if c.r.local {
		allow = append(allow, "-c", "protocol.file.allow=always")
	}
	allow = append(allow, "-c", "fetch.unpackLimit=1", "-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60")
	var redirects []string
	if c.req.Credentials.Password != "" {
		redirects = []string{"-c", "http.followRedirects=false"} // see follow
	}
	out, err := c.r.git(c.ctx, gitCall{args: slices.Concat(allow, redirects, args), env: c.originEnv()})
	if err != nil && c.ctx.Err() == nil {
		err = failRemote(err, c.url)
	}
	return out, err
}

// findOrigin follows the origin's redirects. Without credentials git follows them
// itself.
func (c *cloning) findOrigin() error {
	if c.req.Credentials.Password == "" || IsSSH(c.url) {
		return nil
	}
	for range maxRedirects {
		_, err := c.remote("ls-remote", "--quiet", "--end-of-options", c.url, "HEAD")
		if ReasonOf(err) != InvalidURL {
			return err
		}
		followed, refused := c.follow()
		if refused != nil {
			return refused
		}
		if !followed {
			return err
		}
	}
	return fail(InvalidURL, nil, "the repository %s redirects too many times; set the URL to its final address", c.url)
}

// fetch fetches the origin's history and resolves the requested ref.
func (c *cloning) fetch() error {
	r := c.r
	if err := r.deleteRefs(c.ctx, "refs/clew-origin/"); err != nil {
		return err
	}
	if err := c.findOrigin(); err != nil {
		return err
	}
	fetch := []string{"fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--end-of-options", c.url}
	if _, err := c.remote(append(fetch, "+refs/heads/*:"+originHeads+"*", "+refs/tags/*:"+originTags+"*")...); err != nil {
		return err
	}
	if err := c.readRefs(); err != nil {
		return err
	}
	c.origin.URL = c.url
	ref := c.req.Ref
	if ref == "" {
		return c.defaultBranch()
	}
	for _, try := range []struct{ prefix, at, as string }{
		{"refs/heads/", originHeads, "refs/heads/"}, {"refs/tags/", originTags, "refs/tags/"},
		{"", originHeads, "refs/heads/"}, {"", originTags, "refs/tags/"},
	} {
		short, ok := strings.CutPrefix(ref, try.prefix)
		if found := c.find(try.at + short); ok && found != nil && found.commit != "" {
			c.origin.Ref, c.origin.Base = try.as+short, found.commit
			if try.as == "refs/heads/" {
				c.origin.Branch = short
			}
			return nil
		}
	}
	if isCommitID(ref) {
		return c.fetchCommit(strings.ToLower(ref), fetch)
	}
	return fail(RefNotFound, nil, "the repository %s has no branch, tag or commit %q", c.url, ref)
}

// fetchCommit resolves a commit that may not be the tip of a branch or tag.
func (c *cloning) fetchCommit(id string, fetch []string) error {
	exists := func() (bool, error) {
		_, err := c.r.git(c.ctx, gitCall{args: []string{"cat-file", "-e", id + "^{commit}"}})
		if interrupted(err) {
			return false, failGit(err, "look up the commit %s in %s", id, c.r.cfg.GitDir)
		}
		return err == nil, nil
	}
	known, err := exists()
	if err != nil {
		return err
	}
	if !known {
		_, missing := c.remote(append(fetch, id+":refs/clew-origin/commit")...)
		if missing != nil && ReasonOf(missing) != RefNotFound {
			return missing
		}
		if known, err = exists(); err != nil {
			return err
		}
		if missing != nil || !known {
			return fail(RefNotFound, nil, "the repository %s has no commit %s, or does not serve it", c.url, id)
		}
		c.refs = append(c.refs, originRef{name: "refs/clew-origin/commit", oid: id, commit: id})
	}
	c.origin.Ref, c.origin.Base = id, id
	return nil
}

// defaultBranch asks the origin which branch its HEAD points to.
func (c *cloning) defaultBranch() error {
	out, err := c.remote("ls-remote", "--symref", "--end-of-options", c.url, "HEAD")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		value, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if name != "HEAD" {
			continue
		}
		branch, symbolic := strings.CutPrefix(value, "ref: refs/heads/")
		if found := c.find(originHeads + branch); symbolic && found != nil && checkRefName(branch) == nil {
			c.origin.Branch, c.origin.Ref, c.origin.Base = branch, "refs/heads/"+branch, found.commit
			return nil
		}
		if isCommitID(value) && !symbolic && c.origin.Base == "" {
			c.origin.Ref, c.origin.Base = value, value // a detached HEAD
		}
	}
	if c.origin.Base == "" {
		c.origin.Branch, c.origin.Ref = "main", "refs/heads/main" // an empty origin
	}
	return nil
}

// find returns the fetched ref with this name, or nil.
func (c *cloning) find(name string) *originRef {
	for i := range c.refs {
		if c.refs[i].name == name {
			return &c.refs[i]
		}
	}
	return nil
}

// readRefs lists the fetched refs and peels them to commits.
func (c *cloning) readRefs() error {
	out, err := c.r.git(c.ctx, gitCall{args: []string{"for-each-ref", "--format=%(objectname) %(refname)", "refs/clew-origin/"}})
	if err != nil {
		return failGit(err, "list the branches of %s", c.url)
	}
	var ask strings.Builder
	for line := range strings.Lines(string(out)) {
		id, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		c.refs = append(c.refs, originRef{name: name, oid: id})
		ask.WriteString(id + "^{}\n")
	}
	out, err = c.r.git(c.ctx, gitCall{args: []string{"cat-file", "--batch-check=%(objectname) %(objecttype)"}, stdin: strings.NewReader(ask.String())})
	if err != nil {
		return failGit(err, "list the branches of %s", c.url)
	}
	i := 0
	for line := range strings.Lines(string(out)) {
		id, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		if i < len(c.refs) && kind == "commit" {
			c.refs[i].commit = id
		}
		i++
	}
	return nil
}

// layOut writes the agent's repository and lets git populate the worktree.
func (c *cloning) layOut() error {
	if err := c.writeGit(); err != nil {
		return failIO(err, "write the agent's repository in %s", c.work.path)
	}
	files, err := c.r.copyPacks(c.work, filepath.Join(c.r.cfg.GitDir, "objects/pack"))
	if err != nil {
		return err
	}
	if c.origin.Base != "" {
		// This process has just created the repository and no agent has seen it: this
		// is the only time git runs in a repository of the agent's. Here git converts
		// line endings and the like as the origin's attributes say.
		_, err := c.r.git(c.ctx, gitCall{
			args:    []string{"-c", "core.bare=false", "-c", "checkout.workers=2", "-c", "core.fsync=none", "read-tree", "-m", "-u", "--end-of-options", c.origin.Base},
			gitDir:  filepath.Join(c.work.path, gitName),
			workDir: c.work.path,
		})
		if err != nil {
			return failGit(err, "check out %s in %s", c.origin.Base, c.work.path)
		}
	}
	var tips, others []string
	for _, ref := range c.refs {
		if ref.commit != "" {
			tips = append(tips, ref.commit)
		}
		if ref.commit != ref.oid {
			others = append(others, ref.oid)
		}
	}
	commit, err := c.r.commitPristine(c.ctx, c.origin, tips, others)
	c.pristine = &pristine{Commit: commit, Origin: c.origin, Files: files}
	return err
}
