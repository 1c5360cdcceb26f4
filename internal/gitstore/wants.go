package gitstore

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/clew-dev/clew/internal/gitstore/refusal"
)

// maxWantBytes bounds the list of what a client wants: some 80,000 refs.
const maxWantBytes = 4 << 20

var wantLine = regexp.MustCompile(`^want ([0-9a-f]{40})(?: [^\n]*)?\n?$`)

// errNotWants is returned for a request of a fetch that version 0 of the protocol
// does not know.
var errNotWants = errors.New("the body does not begin with a list of wanted objects as git sends it")

// readWants reads the beginning of a git-upload-pack request, through the flush
// packet, and returns what it asks for and the bytes to hand on to git.
func readWants(body io.Reader) (wants []string, raw []byte, err error) {
	for {
		line, packet, err := readPacket(body, maxWantBytes-len(raw))
		raw = append(raw, packet...)
		if err != nil {
			return nil, raw, fmt.Errorf("%w: %w", errNotWants, err)
		}
		if line == nil {
			return wants, raw, nil
		}
		if match := wantLine.FindSubmatch(line); match != nil {
			wants = append(wants, string(match[1]))
		} else if len(wants) == 0 || !bytes.HasPrefix(line, []byte("shallow ")) && !bytes.HasPrefix(line, []byte("deepen")) {
			return nil, raw, errNotWants
		}
	}
}

// checkWants reads what a fetch asks for, makes sure that the caller may see it,
// and has the request ready for git. The objects of visible refs may be had, and
// commits that these lead to, which git itself checks; anything else is answered
// as what does not exist.
func (h *Handler) checkWants(c *call, request *backendRequest) (unseen string, refused *refusal.Refusal) {
	body := request.body
	if request.gzip {
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return "", refusal.New(refusal.BadRequest, "the body is not gzip: %v", err)
		}
		body, request.gzip = io.LimitReader(unpacked, maxFetchRequestBytes), false
	}
	wants, raw, err := readWants(body)
	if err != nil {
		return "", refusal.New(refusal.BadRequest, "%v", err)
	}
	if c.caller.Task != nil {
		// A pack that builds on what the client only says that it has would tell
		// of objects that it may not see.
		raw = bytes.Replace(raw, []byte(" thin-pack"), []byte(" x-no-thin"), 1)
	}
	request.body = io.MultiReader(bytes.NewReader(raw), body)
	seen, err := viewOf(c.caller).refs(c.request.Context(), h.store.git, c.repository.Path)
	if err != nil {
		return "", h.unavailable(c, err)
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
	kinds, err := h.store.git.runWith(c.request.Context(), nil, strings.NewReader(strings.Join(others, "\n")+"\n"), c.repository.Path,
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

// notOurs is what git says of an object that it does not give out.
func notOurs(id string) []byte { return packet([]byte("ERR upload-pack: not our ref " + id)) }
