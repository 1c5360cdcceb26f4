package prepare

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/internal/clip"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// previewBytes is how much of each text is kept of an entry that is too old to be rendered
// whole.
const previewBytes = 4 << 10

// Only the newest entries keep previews, within maxPreviewBytes. Older ones keep
// traceBytes: they never reach a prompt, but their roles and call ids are still needed.
const (
	maxPreviewBytes = 4 << 20
	traceBytes      = 64
)

// history is the conversation in memory, kept whole only as far as it can
// appear in a prompt.
type history struct {
	// budget is the number of bytes of the newest entries that are kept whole.
	budget  int
	entries []*daemonv1.ConversationEntry
	// pending is the index from which on the user's messages are not answered by the agent.
	pending int
	// whole is the index of the first entry that is kept whole, size the bytes from there
	// to pending.
	whole, size int
	// previewed is the index of the first entry whose content is kept beyond a trace,
	// previews the bytes from there to whole.
	previewed, previews int
}

// add appends the next entry.
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

// split separates the conversation so far from the user messages that are pending, once all
// entries are added. head is the last position.
func (h *history) split() (past []*daemonv1.ConversationEntry, pending []string, head int64) {
	past = slices.Clone(h.entries[:h.pending])
	for _, e := range h.entries[h.pending:] {
		if e.GetMessage().GetRole() == daemonv1.Role_ROLE_USER {
			pending = append(pending, e.GetMessage().GetText())
		} else {
			past = append(past, shorten(e, previewBytes))
		}
	}
	if n := len(h.entries); n > 0 {
		head = h.entries[n-1].GetPosition()
	}
	return past, pending, head
}

func sizeOf(e *daemonv1.ConversationEntry) int {
	m := e.GetMessage()
	return len(m.GetText()) + len(m.GetRaw()) + len(m.GetToolCall().GetInput()) + len(m.GetToolResult().GetOutput())
}

// shorten keeps n bytes of each text of an entry and records the original sizes in it.
func shorten(e *daemonv1.ConversationEntry, n int) *daemonv1.ConversationEntry {
	if sizeOf(e) <= n {
		return e
	}
	e = proto.CloneOf(e)
	m := e.GetMessage()
	shortenText(&m.Text, &m.TextPieces, n)
	shortenText(&m.Raw, &m.RawPieces, n)
	if c := m.GetToolCall(); c != nil {
		shortenText(&c.Input, &c.InputPieces, n)
	}
	if r := m.GetToolResult(); r != nil {
		shortenText(&r.Output, &r.OutputPieces, n)
	}
	return e
}

func shortenText(text *string, whole **daemonv1.Pieces, n int) {
	if len(*text) <= n {
		return
	}
	if *whole == nil {
		*whole = &daemonv1.Pieces{Bytes: int64(len(*text))}
	}
	// Cloned so that the rest can be freed.
	*text = strings.Clone(clip.Bytes(*text, n))
}

// readHistory reads the conversation from the server.
func (p *preparer) readHistory(ctx context.Context) (*history, error) {
	var h *history
	err := p.retry(ctx, func() error {
		h = &history{budget: 2*int(p.limits().Bytes) + previewBytes}
		return wrapPlace(placeServer, p.cfg.Server.Conversation(ctx, func(e *daemonv1.ConversationEntry) error {
			h.add(e)
			return nil
		}))
	})
	return h, err
}
