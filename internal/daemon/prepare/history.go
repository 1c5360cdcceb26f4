package prepare

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/internal/clip"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// previewBytes is what is kept of each text of an entry that is too old to be
// rendered whole.
const previewBytes = 4 << 10

// Only the newest previews have room; of entries that are older still, traces
// are kept: no prompt gets to them, but who answered whom is looked at.
const (
	maxPreviewBytes = 4 << 20
	traceBytes      = 64
)

// history is the conversation in memory, of which only as much is kept whole as
// can get into a prompt.
type history struct {
	// budget is how many bytes of the newest entries are kept whole.
	budget  int
	entries []*daemonv1.ConversationEntry
	// pending is where the user's messages begin that the agent has not answered.
	pending int
	// whole is the first entry that is kept whole, size the bytes from there to
	// pending.
	whole, size int
	// previewed is the first entry of which more than a trace is kept, previews
	// the bytes from there to whole.
	previewed, previews int
}

// add takes the next entry in.
func (h *history) add(e *daemonv1.ConversationEntry) {
	h.entries = append(h.entries, e)
	if !byAgent(e.GetMessage()) && e.GetMessage().GetToolResult() == nil {
		return
	}
	for ; h.pending < len(h.entries); h.pending++ {
		h.entries[h.pending] = shorten(h.entries[h.pending], h.budget)
		h.size += sizeOf(h.entries[h.pending])
	}
	for ; h.size > h.budget && h.whole < h.pending-1; h.whole++ {
		h.size -= sizeOf(h.entries[h.whole])
		h.entries[h.whole] = shorten(h.entries[h.whole], previewBytes)
		h.previews += sizeOf(h.entries[h.whole])
	}
	for ; h.previews > maxPreviewBytes && h.previewed < h.whole; h.previewed++ {
		h.previews -= sizeOf(h.entries[h.previewed])
		h.entries[h.previewed] = shorten(h.entries[h.previewed], traceBytes)
	}
}

// end tells apart what is pending when all entries were added.
func (h *history) end() (told []*daemonv1.ConversationEntry, pending []string, head int64) {
	told = slices.Clone(h.entries[:h.pending])
	for _, e := range h.entries[h.pending:] {
		if e.GetMessage().GetRole() == daemonv1.Role_ROLE_USER {
			pending = append(pending, e.GetMessage().GetText())
		} else {
			told = append(told, shorten(e, previewBytes))
		}
	}
	if n := len(h.entries); n > 0 {
		head = h.entries[n-1].GetPosition()
	}
	return told, pending, head
}

func sizeOf(e *daemonv1.ConversationEntry) int {
	m := e.GetMessage()
	return len(m.GetText()) + len(m.GetRaw()) + len(m.GetToolCall().GetInput()) + len(m.GetToolResult().GetOutput())
}

// shorten keeps n bytes of each text of an entry, and says so in the entry.
func shorten(e *daemonv1.ConversationEntry, n int) *daemonv1.ConversationEntry {
	if sizeOf(e) <= n {
		return e
	}
	e = proto.CloneOf(e)
	m := e.GetMessage()
	short(&m.Text, &m.TextPieces, n)
	short(&m.Raw, &m.RawPieces, n)
	if c := m.GetToolCall(); c != nil {
		short(&c.Input, &c.InputPieces, n)
	}
	if r := m.GetToolResult(); r != nil {
		short(&r.Output, &r.OutputPieces, n)
	}
	return e
}

func short(text *string, whole **daemonv1.Pieces, n int) {
	if len(*text) <= n {
		return
	}
	if *whole == nil {
		*whole = &daemonv1.Pieces{Bytes: int64(len(*text))}
	}
	// A copy, so that the rest can be freed.
	*text = strings.Clone(clip.Bytes(*text, n))
}

// readHistory reads the conversation as the server has it.
func (p *preparer) readHistory(ctx context.Context) (*history, error) {
	var h *history
	err := p.retry(ctx, func() error {
		h = &history{budget: 2*int(p.limits().Bytes) + previewBytes}
		return of(placeServer, p.cfg.Server.Conversation(ctx, func(e *daemonv1.ConversationEntry) error {
			h.add(e)
			return nil
		}))
	})
	return h, err
}
