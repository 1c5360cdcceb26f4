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

// maxWantBytes bounds the list of what a client wants: some 80,000 refs.
const maxWantBytes = 4 << 20

var (
	wantLine    = regexp.MustCompile(`^want ([0-9a-f]+)((?: [ -~]*)?)\n?$`)
	shallowLine = regexp.MustCompile(`^shallow ([0-9a-f]+)\n?$`)
)

// capabilities are those that a task's client may ask for. They change how git
// tells what it sends, and not what: no thin packs, since one that builds on what
// the client only says that it has would tell of objects that it may not see.
var capabilities = []string{
	"multi_ack", "multi_ack_detailed", "no-done", "side-band", "side-band-64k", "ofs-delta", "no-progress", "include-tag",
	"agent", "object-format", "session-id",
}

var (
	// errNotWants is returned for a request of a fetch that version 0 of the
	// protocol does not know.
	errNotWants = errors.New("the body does not begin with a list of wanted objects as git sends it")
	// errShallow: git sends the parents of whatever commit a client calls shallow,
	// without a look at whether the client may see it.
	errShallow = errors.New("a task fetches whole histories: fetch without --depth, and into a repository that is not shallow")
)

// readWants reads the beginning of a git-upload-pack request, through the flush
// packet, and returns what it asks for, the commits that the client calls shallow,
// and the bytes to hand on to git. Of a task, these are what was understood here
// alone.
func readWants(body io.Reader, task bool) (wants, shallow []string, raw []byte, err error) {
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
		match := naming(wantLine, line)
		commit := naming(shallowLine, line)
		switch {
		case match != nil && task:
			wants = append(wants, string(match[1]))
			whole = packet(fmt.Appendf(nil, "want %s%s\n", match[1], allowed(string(match[2]))))
		case match != nil:
			wants = append(wants, string(match[1]))
		case len(wants) == 0 || commit == nil && !bytes.HasPrefix(line, []byte("deepen")):
			return nil, nil, raw, errNotWants
		case task:
			return nil, nil, raw, errShallow
		case commit != nil:
			shallow = append(shallow, string(commit[1]))
		}
		raw = append(raw, whole...)
	}
}

// naming is what a line says that begins with the id of an object; nil if it says
// anything else.
func naming(form *regexp.Regexp, line []byte) [][]byte {
	match := form.FindSubmatch(line)
	if match == nil || !isObjectID(string(match[1])) {
		return nil
	}
	return match
}

// allowed are the capabilities of a line that a task may ask for, each after a
// space.
func allowed(asked string) string {
	var kept strings.Builder
	for _, capability := range strings.Fields(asked) {
		if name, _, _ := strings.Cut(capability, "="); slices.Contains(capabilities, name) {
			kept.WriteString(" " + capability)
		}
	}
	return kept.String()
}

// checkWants reads what a fetch asks for, makes sure that the caller may see it,
// and has the request ready for git. The objects of visible refs may be had, and
// commits that these lead to, which git itself checks; anything else is answered
// as what does not exist.
func (h *Handler) checkWants(c *call, request *backendRequest, zipped bool) (unseen string, refused *gitstoreapi.Refusal) {
	body := request.body
	if zipped {
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return "", gitstoreapi.New(gitstoreapi.BadRequest, "the body is not gzip: %v", err)
		}
		body = io.LimitReader(unpacked, maxFetchRequestBytes)
	}
	wants, shallow, raw, err := readWants(body, c.caller.Task != nil)
	if err != nil {
		return "", gitstoreapi.New(gitstoreapi.BadRequest, "%v", err)
	}
	request.body = io.MultiReader(bytes.NewReader(raw), body)
	seen, err := viewOf(c.caller).refs(c.request.Context(), h.store.gitFor(c.repository), c.repository.Path)
	if err != nil {
		return "", h.unavailable(c, err)
	}
	if unseen, err := h.unreached(c, shallow); err != nil {
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
		// Git looks whether a visible ref leads to a commit, and only to a commit.
		if id, kind, _ := strings.Cut(strings.TrimSpace(line), " "); kind != "commit" {
			return id, nil
		}
	}
	return "", nil
}

// unreached is one of the commits that a reader calls shallow and that no ref leads
// to; empty if there is none. Commits that are not there git itself passes over.
func (h *Handler) unreached(c *call, shallow []string) (string, error) {
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

// notOurs is what git says of an object that it does not give out.
func notOurs(id string) []byte { return packet([]byte("ERR upload-pack: not our ref " + id)) }
