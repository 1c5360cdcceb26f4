package worktree

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode"

	"github.com/clew-dev/clew/internal/clip"
)

// OriginPush is a push of one commit to one ref of a task's origin.
type OriginPush struct {
	// URL, Credentials and CAFile are those of CloneRequest.
	URL         string
	Credentials Credentials
	CAFile      string
	// Publication has the commit to push; Ref is the full name of the ref to push it to.
	Publication
	Ref string
	// Replaces is the commit that an earlier push of the task left in Ref: what it has above
	// Onto may be discarded. "" if there is none.
	Replaces string
	// Onto is the Onto of that push.
	Onto string
	// Earlier are other pushes of the task that Ref may still have.
	Earlier []OwnPush
	// Force allows to discard whatever Ref has when the push begins.
	Force bool
	// Announce leaves a push undone that is not announced, if nobody could tell later, from what Ref
	// has then, whose it was and what it kept. Such pushes are those of commits that Clew has not
	// made, and those over commits of others.
	Announce bool
	// Announced are the pushes that are.
	Announced []OwnPush
	// ProtectedPaths are patterns of files: a push that changes any of them fails, compared
	// with Base and with what Ref has.
	ProtectedPaths []string
	// Options are git's push options.
	Options []string
}

// OwnPush is a push of the task to its origin, of which it is known what it left there.
type OwnPush struct {
	// Commit was pushed.
	Commit string
	// Onto is the Onto of the push.
	Onto string
	// Unsure is set if the push may have kept less than that.
	Unsure bool
}

// DivergedError is the cause of an error with the reason Diverged, if the ref has a commit that
// is not known as the task's own.
type DivergedError struct{ Commit string }

func (e *DivergedError) Error() string { return "the ref has " + e.Commit }

// OriginPushed is the outcome of a push to the origin.
type OriginPushed struct {
	// Unannounced is set if the push was left undone because it is not announced: of Commit, and
	// with Onto, it would have been made.
	Unannounced bool
	// Unsure is set beside an error if Ref may have been changed all the same.
	Unsure bool
	// Already is set if Ref had the commit, so that nothing was pushed.
	Already bool
	// Onto is what Ref has of others: the newest commit in the history of what was pushed that
	// the task did not push itself. "" if there is none.
	Onto string
	// Answer is what the remote's hooks printed: printable text, at most maxAnswer bytes.
	Answer string
}

// PushRefusedError is the error of a push that the origin refused, with what its hooks
// printed. It is the cause of an error with the reason Rejected.
type PushRefusedError struct{ Answer string }

func (e *PushRefusedError) Error() string { return e.Answer }

const (
	// maxAnswer bounds what is kept of a remote's answer.
	maxAnswer = 1 << 10
	// maxPushes is how often a push is tried while others push to the same ref.
	maxPushes = 3
)

// PushOrigin pushes a commit to the origin, unless that has to be announced first. It never discards
// commits that others have pushed, unless Force allows it, and then only those that were there when it
// looked. It sends the credentials to the host of URL only.
//
// Errors: Diverged (with a DivergedError), Protected (with a ProtectedError), Rejected (with a
// PushRefusedError), AuthenticationFailed, InvalidURL, InvalidReference, RepositoryNotFound, Unreachable
// (a retry may succeed), GitFailed.
func (r *Repo) PushOrigin(ctx context.Context, p OriginPush) (OriginPushed, error) {
	r.packs.RLock()
	defer r.packs.RUnlock()
	c, err := r.pushing(ctx, p)
	if err != nil {
		return OriginPushed{}, err
	}
	for range maxPushes {
		var pushed OriginPushed
		if pushed, err = c.once(); !errors.Is(err, errMoved) {
			return pushed, err
		}
	}
	return OriginPushed{}, c.diverged(nil, "has just been moved by others")
}

// pushing is the state of one push to the origin.
type pushing struct {
	cloning
	push OriginPush
}

// pushing checks what a push is given.
func (r *Repo) pushing(ctx context.Context, p OriginPush) (*pushing, error) {
	if err := checkRefName(p.Ref); err != nil || !strings.HasPrefix(p.Ref, "refs/") {
		return nil, fail(InvalidReference, err, "%q is not a valid ref name", p.Ref)
	}
	if !isCommitID(p.Commit) {
		return nil, fail(InvalidReference, nil, "%q is not a commit id of 40 hexadecimal digits", p.Commit)
	}
	url, err := cleanURL(p.URL, r.local)
	if err == nil {
		err = checkSSH(url, p.Credentials)
	}
	if err != nil {
		return nil, err
	}
	return &pushing{cloning: cloning{r: r, ctx: ctx, url: url, req: &CloneRequest{URL: p.URL, Credentials: p.Credentials, CAFile: p.CAFile}}, push: p}, nil
}

// errMoved is the error of a push whose ref was moved since it was read.
var errMoved = errors.New("the ref was moved")

// once reads the ref and pushes if that is allowed.
func (c *pushing) once() (OriginPushed, error) {
	at, err := c.remoteRef()
	if err != nil {
		return OriginPushed{}, err
	}
	if at == c.push.Commit {
		onto, err := c.ontoOfAnother(at)
		return OriginPushed{Already: true, Onto: onto}, err
	}
	onto, err := c.keep(at)
	if err != nil {
		return OriginPushed{}, err
	}
	if err := c.checkProtected(at); err != nil {
		return OriginPushed{}, err
	}
	if !c.announced(at, onto) {
		return OriginPushed{Unannounced: true, Onto: onto}, nil
	}
	pushed, err := c.send(at)
	pushed.Onto = onto
	return pushed, err
}

// keep returns what a push over the commit at keeps of others: at itself, or what the task
// pushed at onto. It fails if that would be discarded, and Force does not allow it.
func (c *pushing) keep(at string) (string, error) {
	others, was := at, "is at "
	own, known := c.own(at)
	if known {
		others, was = own.Onto, "was, before the task pushed to it, at "
	}
	if others == "" {
		return "", nil
	}
	ahead, err := c.descends(others)
	switch {
	case err != nil:
		return "", err
	case ahead:
		return others, nil
	case c.push.Force:
		return c.remains(others)
	}
	var unknown error
	if !known {
		unknown = &DivergedError{Commit: at}
	}
	return "", c.diverged(unknown, was+others+", a commit that is not part of what is published")
}

// announced reports whether a push over the commit at, which keeps onto of others, may be made. One
// of a commit that Clew has made, over nothing or the task's own push, is known by that commit, and
// keeps what is known already.
func (c *pushing) announced(at, onto string) bool {
	own, known := c.own(at)
	return !c.push.Announce || c.push.OnTop && (at == "" || known && !own.Unsure) ||
		slices.Contains(c.push.Announced, OwnPush{Commit: c.push.Commit, Onto: onto})
}

// own returns the push of the task that left a commit in the ref, if one is known. Of several
// pushes of the same commit that kept different things, none is; one that is unsure holds for all.
func (c *pushing) own(at string) (own OwnPush, known bool) {
	switch at {
	case "":
		return OwnPush{}, false
	case c.push.Replaces:
		return OwnPush{Commit: at, Onto: c.push.Onto}, true
	}
	contradictory := false
	for _, p := range c.push.Earlier {
		switch {
		case p.Commit != at:
		case p.Unsure:
			return p, true
		default:
			contradictory = contradictory || known && own.Onto != p.Onto
			own, known = p, true
		}
	}
	return own, known && !contradictory
}

// remains returns the newest commit that a push leaves of a history which it discards.
func (c *pushing) remains(of string) (string, error) {
	if _, err := c.r.resolve(c.ctx, of); ReasonOf(err) == CheckpointNotFound {
		of = c.push.Base // of the others' commits, at most those before it are here
	}
	common, err := c.r.mergeBase(c.ctx, of, c.push.Commit)
	if common == emptyTree.String() {
		return "", err
	}
	return common, err
}

// ontoOfAnother returns the Onto of the push that left Commit in the ref, as far as it is
// known: a pod that ended before it could report may have pushed it, onto any of the agent's
// commits.
func (c *pushing) ontoOfAnother(at string) (string, error) {
	if own, known := c.own(at); known {
		return own.Onto, nil
	}
	if !c.push.OnTop {
		return at, nil
	}
	parents, err := c.r.gitText(c.ctx, "log", "-1", "--format=%P", "--end-of-options", at)
	return parents, failGit(err, "read the parent of %s", at)
}

func (c *pushing) diverged(cause error, what string) error {
	return fail(Diverged, cause, "%s of %s %s: others have pushed to it. Publish to another branch, merge theirs, or allow to discard theirs with ForceWithLease", c.push.Ref, c.url, what)
}

// remoteRef returns the commit of the ref, "" if it does not exist, and follows redirects on
// the origin's own host.
func (c *pushing) remoteRef() (string, error) {
	for range maxRedirects {
		out, _, err := c.run("ls-remote", "--refs", "--quiet", "--end-of-options", c.url, c.push.Ref)
		if ReasonOf(err) == InvalidURL {
			followed, refused := c.follow()
			if refused != nil {
				return "", refused
			}
			if followed {
				continue
			}
		}
		return parseRefs(out, "\t", c.push.Ref)[c.push.Ref], err
	}
	return "", fail(InvalidURL, nil, "the repository %s redirects too many times; set the URL to its final address", c.url)
}

// descends reports whether the commit that is pushed descends from another one.
func (c *pushing) descends(ancestor string) (bool, error) {
	if _, err := c.r.resolve(c.ctx, ancestor); ReasonOf(err) == CheckpointNotFound {
		return false, nil // all ancestors are here
	}
	_, err := c.r.git(c.ctx, gitCall{args: []string{"merge-base", "--is-ancestor", "--end-of-options", ancestor, c.push.Commit}})
	var e *gitError
	if errors.As(err, &e) && strings.TrimSpace(e.stderr) == "" && !interrupted(err) {
		return false, nil
	}
	if err != nil {
		return false, c.r.failCorrupt(err, "compare the histories of %s and %s", ancestor, c.push.Commit)
	}
	return true, nil
}

// send pushes, provided that the ref is still at the given commit.
func (c *pushing) send(at string) (OriginPushed, error) {
	args := []string{"push", "--porcelain", "--no-progress", "--no-verify", "--no-signed", "--no-follow-tags", "--recurse-submodules=no", "--force-with-lease=" + c.push.Ref + ":" + at}
	for _, option := range c.push.Options {
		args = append(args, "--push-option="+option)
	}
	out, stderr, err := c.run(append(args, "--end-of-options", c.url, c.push.Commit+":"+c.push.Ref)...)
	pushed := OriginPushed{Answer: answerOf(stderr)}
	if err == nil {
		return pushed, nil
	}
	if c.ctx.Err() != nil {
		return OriginPushed{Unsure: true}, err
	}
	switch text := stderr + "\n" + string(out); {
	case strings.Contains(text, "(stale info)") || strings.Contains(text, "(fetch first)") || strings.Contains(text, "(remote ref does not exist)"):
		return OriginPushed{}, errMoved
	case strings.Contains(text, "(no new changes)"): // Gerrit has this commit already
		return OriginPushed{Already: true, Answer: pushed.Answer}, nil
	case strings.Contains(text, "receiving end does not support push options"):
		return OriginPushed{}, fail(Rejected, &PushRefusedError{"it does not take push options"}, "the repository %s refused the push: remove pushOptions", c.url)
	case ReasonOf(err) == Rejected:
		said := pushed.Answer
		if why := refusalOf(string(out)); why != "" {
			said = strings.TrimSpace(why + "\n" + said)
		}
		return OriginPushed{}, fail(Rejected, &PushRefusedError{said}, "the repository %s refused the push", c.url)
	}
	reason := ReasonOf(err)
	return OriginPushed{Unsure: reason != AuthenticationFailed && reason != RepositoryNotFound && reason != InvalidURL}, err
}

// run runs a git command that contacts the origin, never another host. It returns standard
// output and standard error, also of a success.
func (c *pushing) run(args ...string) (out []byte, stderr string, err error) {
	options := []string{"-c", "protocol.https.allow=always", "-c", "protocol.http.allow=always", "-c", "protocol.ssh.allow=always",
		"-c", "http.followRedirects=false", "-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60", "-c", "push.negotiate=false"}
	if c.r.local {
		options = append(options, "-c", "protocol.file.allow=always")
	}
	cmd, said := c.r.command(c.ctx, gitCall{args: slices.Concat(options, args), env: c.originEnv()})
	out, err = cmd.Output()
	if err == nil {
		return out, said.String(), nil
	}
	if c.ctx.Err() != nil {
		return nil, "", c.ctx.Err()
	}
	failed := &gitError{command: args[0], stderr: strings.TrimSpace(said.String() + "\n" + string(out)), err: err}
	return out, said.String(), failRemote(failed, c.url)
}

// answerOf returns what the remote's hooks printed.
func answerOf(stderr string) string {
	var lines []string
	for line := range strings.Lines(stderr) {
		if said, ok := strings.CutPrefix(line, "remote:"); ok {
			if said = printable(said); said != "" {
				lines = append(lines, said)
			}
		}
	}
	return clip.Marked(strings.Join(lines, "\n"), maxAnswer)
}

// refusalOf returns the reason that git push --porcelain prints for a ref, without the
// parentheses around it.
func refusalOf(out string) string {
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "!\t") {
			continue
		}
		_, why, _ := strings.Cut(line, " (")
		return clip.Marked(strings.TrimSuffix(printable(why), ")"), maxAnswer)
	}
	return ""
}

// printable returns a line without what a terminal would act on.
func printable(line string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case r == unicode.ReplacementChar || !unicode.IsPrint(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(line, "")))
}
