package postgres_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

// long returns a text of about n bytes that does not repeat itself.
func long(n int, seed string) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%s line %d ünïcode %x\n", seed, i, sha256.Sum256([]byte(fmt.Sprint(seed, i))))
	}
	return b.String()
}

func piece(text string) history.Record { return history.Record{Piece: []byte(text)} }

// cutResult is a tool result that the daemon has cut into the pieces.
func cutResult(id string, pieces ...string) history.Record {
	p := &conversation.Pieces{}
	for _, text := range pieces {
		p.Hashes = append(p.Hashes, conversation.PieceHash(text))
		p.Bytes += int64(len(text))
	}
	return history.Record{Message: &conversation.Message{
		Role: conversation.RoleTool, ToolResult: &conversation.ToolResult{CallID: id, Output: pieces[0][:10], OutputPieces: p},
	}}
}

func (w *writer) text(p *conversation.Pieces) string {
	w.t.Helper()
	text, err := w.store.Text(w.t.Context(), w.task.Namespace, p)
	if err != nil {
		w.t.Fatalf("text: %v", err)
	}
	return text
}

func (w *writer) entries() []history.Entry {
	w.t.Helper()
	entries, err := w.store.Conversation(w.t.Context(), w.task.UID, 0, 100_000)
	if err != nil {
		w.t.Fatal(err)
	}
	return entries
}

var _ = Describe("Texts that are cut into pieces", func() {
	It("long texts are cut by the store", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		w := begin(t, openAt(t, dsn), taskNamed("a"), 1)
		text, input, output := long(20<<10, "text"), long(600<<10, "input"), long(17<<10, "output")
		w.append(history.Record{Message: &conversation.Message{
			Role: conversation.RoleAssistant, Text: text, ToolCall: &conversation.ToolCall{ID: "1", Name: "Write", Input: input},
		}}, history.Record{Message: &conversation.Message{
			Role: conversation.RoleTool, ToolResult: &conversation.ToolResult{CallID: "1", Output: output},
		}}, user(strings.Repeat("x", conversation.MaxInline)))

		e := w.entries()
		for name, tt := range map[string]struct {
			want, beginning string
			pieces          *conversation.Pieces
			count           int
		}{
			"text":   {text, e[0].Message.Text, e[0].Message.TextPieces, 1},
			"input":  {input, e[0].Message.ToolCall.Input, e[0].Message.ToolCall.InputPieces, 3},
			"output": {output, e[1].Message.ToolResult.Output, e[1].Message.ToolResult.OutputPieces, 1},
		} {
			if got := w.text(tt.pieces); got != tt.want || len(tt.pieces.Hashes) != tt.count {
				t.Errorf("%s: %d bytes in %d pieces, want %d in %d", name, len(got), len(tt.pieces.Hashes), len(tt.want), tt.count)
			}
			if !strings.HasPrefix(tt.want, tt.beginning) {
				t.Errorf("%s does not begin with the stored beginning", name)
			}
			if n := len(tt.beginning); n < conversation.PreviewBytes-4 || n > conversation.PreviewBytes {
				t.Errorf("%s has a beginning of %d bytes, want at most 4 fewer than %d", name, n, conversation.PreviewBytes)
			}
		}
		if e[2].Message.TextPieces != nil {
			t.Error("a text that fits was cut")
		}
		// The same text again takes no more space; one that differs at the end is another
		// message.
		w.append(history.Record{Message: &conversation.Message{Role: conversation.RoleUser, Text: text}}, user(text+"."))
		if got := count(t, dsn, "pieces"); got != 6 {
			t.Errorf("%d pieces, want 6", got)
		}
		if got := count(t, dsn, "pending_pieces"); got != 0 {
			t.Errorf("%d pieces wait for a message", got)
		}
	})

	It("pieces come before their message", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		w := begin(t, store, taskNamed("a"), 1)
		first, second := long(200<<10, "first"), long(100<<10, "second")
		w.append(call("1"), piece(first))
		w.append(piece(second))
		if got := count(t, dsn, "pending_pieces"); got != 2 {
			t.Errorf("%d pieces wait for their message, want 2", got)
		}
		w = begin(t, store, w.task, 2)
		w.append(cutResult("1", first, second, first))
		if got := count(t, dsn, "pending_pieces"); got != 0 {
			t.Errorf("%d pieces still wait", got)
		}
		e := w.entries()
		if got := w.text(e[1].Message.ToolResult.OutputPieces); got != first+second+first {
			t.Errorf("the text has %d bytes", len(got))
		}
		// Another namespace cannot read the text by its hashes.
		if _, err := store.Text(t.Context(), "elsewhere", e[1].Message.ToolResult.OutputPieces); !errors.Is(err, history.ErrCorrupted) {
			t.Errorf("another namespace: %v", err)
		}
	})

	It("a message whose piece never arrived is stored without it", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(cutResult("1", "here it begins, and the rest is lost"), user("next"))
		if d := cmp.Diff([]string{"result 1", "U next"}, w.texts()); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}
		if _, err := w.store.Text(t.Context(), "team", w.entries()[0].Message.ToolResult.OutputPieces); !errors.Is(err, history.ErrCorrupted) {
			t.Errorf("text: %v", err)
		}
	})

	It("a damaged piece is found", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		w := begin(t, openAt(t, dsn), taskNamed("a"), 1)
		w.append(user(long(40<<10, "x")))
		if _, err := connect(t, dsn).Exec(t.Context(), `UPDATE pieces SET data = set_byte(data, 7, 33)`); err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.Text(t.Context(), "team", w.entries()[0].Message.TextPieces); !errors.Is(err, history.ErrCorrupted) {
			t.Errorf("text: %v", err)
		}
		if _, err := w.store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{}); !errors.Is(err, history.ErrCorrupted) {
			t.Errorf("snapshot: %v", err)
		}
	})
})
