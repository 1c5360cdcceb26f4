package gitstore

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// maxWantBytes bounds the list of wanted objects. It has room for some 80,000.
const maxWantBytes = 4 << 20

var (
	wantLine    = regexp.MustCompile(`^want ([0-9a-f]+)((?: [ -~]*)?)\n?$`)
	shallowLine = regexp.MustCompile(`^shallow ([0-9a-f]+)\n?$`)
)

// boundCapabilities are the protocol capabilities that a client may request which sees only a
// part of the repository. They change
// how git sends objects, not which. Thin packs are not among them: a delta against an object
// that the client merely claims to have would reveal an object that it may not see.
var boundCapabilities = []string{
	"multi_ack", "multi_ack_detailed", "no-done", "side-band", "side-band-64k", "ofs-delta", "no-progress", "include-tag",
	"agent", "object-format", "session-id",
}

var (
	// errNotWants is returned for a fetch request that is not of version 0 of the
	// protocol.
	errNotWants = errors.New("the body does not begin with a list of wanted objects as git sends it")
	// errShallow is returned for a shallow fetch of a client that sees only a part: git sends
	// the parents of any commit that a client calls shallow, without checking that the client
	// may see them.
	errShallow = errors.New("a task, and a reader who may not see everything in the repository, can fetch only whole histories: fetch without --depth, and into a repository that is not shallow")
)

// readWants reads the beginning of a git-upload-pack request, up to and including the
// flush packet. It returns the wanted objects, the commits that the client calls shallow,
// and the bytes to pass on to git. For a bound client, which sees only a part of the
// repository, these bytes contain only what was understood here.
func readWants(body io.Reader, bound bool) (wants, shallow []string, raw []byte, err error) {
	taken := 0
	for {
		line, whole, err := readPacket(body, maxWantBytes-taken)
		taken += len(whole)
		if err != nil {
			return nil, nil, raw, fmt.Errorf("%w: %w", errNotWants, err)
		}
		if line == nil {
			return wants, shallow, append(raw, whole...), nil
		}
		match := matchID(wantLine, line)
		commit := matchID(shallowLine, line)
		switch {
		case match != nil && bound:
			wants = append(wants, string(match[1]))
			whole = packet(fmt.Appendf(nil, "want %s%s\n", match[1], allowedCapabilities(string(match[2]))))
		case match != nil:
			wants = append(wants, string(match[1]))
		case len(wants) == 0 || commit == nil && !bytes.HasPrefix(line, []byte("deepen")):
			return nil, nil, raw, errNotWants
		case bound:
			return nil, nil, raw, errShallow
		case commit != nil:
			shallow = append(shallow, string(commit[1]))
		}
		raw = append(raw, whole...)
	}
}

// matchID matches a line whose form has an object id as its first group. It returns nil if
// the line does not match or the id is not a full one.
func matchID(form *regexp.Regexp, line []byte) [][]byte {
	match := form.FindSubmatch(line)
	if match == nil || !isObjectID(string(match[1])) {
		return nil
	}
	return match
}

// allowedCapabilities returns the requested capabilities that a bound client may use, each preceded by a
// space.
func allowedCapabilities(asked string) string {
	var kept strings.Builder
	for _, capability := range strings.Fields(asked) {
		if name, _, _ := strings.Cut(capability, "="); slices.Contains(boundCapabilities, name) {
			kept.WriteString(" " + capability)
		}
	}
	return kept.String()
}

// checkWants reads what a fetch asks for, checks that the caller may see it, and prepares
// the request for git. A caller may fetch the objects that visible refs point to, and
// commits that they reach, which git itself checks. Of anything else it returns the id, to
// be answered like an object that does not exist.
func (h *Handler) checkWants(c *call, shown view, request *backendRequest, zipped bool) (unseen string, refused *gitstoreapi.Refusal) {
	body := request.body
	if zipped {
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return "", gitstoreapi.New(gitstoreapi.BadRequest, "the body is not gzip: %v", err)
		}
		body = io.LimitReader(unpacked, maxFetchRequestBytes)
	}
	wants, shallow, raw, err := readWants(body, shown.folders != nil)
	if err != nil {
		return "", gitstoreapi.New(gitstoreapi.BadRequest, "%v", err)
	}
	request.body = io.MultiReader(bytes.NewReader(raw), body)
	seen, err := shown.refs(c.request.Context(), h.store.gitFor(c.repository), c.repository.Path)
	if err != nil {
		return "", h.unavailable(c, err)
	}
	if unseen, err := h.unreachable(c, shallow); err != nil {
		return "", h.unavailable(c, err)
	} else if unseen != "" {
		return unseen, nil
	}
	tips := map[string]bool{}
	for _, id := range seen {
		tips[id] = true
	}
	var others []string
	for _, want := range wants {
		if !tips[want] {
			others = append(others, want)
		}
	}
	if len(others) == 0 {
		return "", nil
	}
	kinds, err := h.store.gitFor(c.repository).runWith(c.request.Context(), nil, strings.NewReader(strings.Join(others, "\n")+"\n"), c.repository.Path,
		"--git-dir=.", "cat-file", "--batch-check=%(objectname) %(objecttype)")
	if err != nil {
		return "", h.unavailable(c, err)
	}
	for line := range strings.Lines(kinds) {
		// Git checks whether a visible ref reaches a commit, but only for commits.
		if id, kind, _ := strings.Cut(strings.TrimSpace(line), " "); kind != "commit" {
			return id, nil
		}
	}
	return "", nil
}

// unreachable returns one of the commits that a reader calls shallow and no ref reaches, ""
// if there is none. Git itself skips commits that do not exist.
func (h *Handler) unreachable(c *call, shallow []string) (string, error) {
	if len(shallow) == 0 {
		return "", nil
	}
	beyond, err := h.store.gitFor(c.repository).runWith(c.request.Context(), nil, strings.NewReader(strings.Join(shallow, "\n")+"\n"), c.repository.Path,
		"--git-dir=.", "rev-list", "--ignore-missing", "--not", "--all", "--not", "--stdin")
	for _, commit := range strings.Fields(beyond) {
		if slices.Contains(shallow, commit) {
			return commit, nil
		}
	}
	return "", err
}

// notOurs returns git's own error for an object that it does not serve.
func notOurs(id string) []byte { return packet([]byte("ERR upload-pack: not our ref " + id)) }
