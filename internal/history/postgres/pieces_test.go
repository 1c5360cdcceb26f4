package postgres_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
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
	GinkgoHelper()
	text, err := w.store.Text(w.t.Context(), w.task.Namespace, p)
	Expect(err).NotTo(HaveOccurred(), "text")
	return text
}

func (w *writer) entries() []history.Entry {
	GinkgoHelper()
	entries, err := w.store.Conversation(w.t.Context(), w.task.UID, 0, 100_000)
	Expect(err).NotTo(HaveOccurred())
	return entries
}

var _ = Describe("Texts that are cut into pieces", func() {
	var (
		t     testing.TB
		dsn   string
		store *postgres.Store
		w     *writer
	)
	BeforeEach(func() {
		t = GinkgoTB()
		dsn = pg.Database(t)
		store = openAt(t, dsn)
		w = begin(t, store, taskNamed("a"), 1)
	})

	It("long texts are cut by the store", func() {
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
			Expect(w.text(tt.pieces)).To(Equal(tt.want), "the %s", name)
			Expect(tt.pieces.Hashes).To(HaveLen(tt.count), "the pieces of the %s", name)
			Expect(tt.want).To(HavePrefix(tt.beginning), "the %s", name)
			Expect(len(tt.beginning)).To(And(
				BeNumerically(">=", conversation.PreviewBytes-4), BeNumerically("<=", conversation.PreviewBytes)),
				"the bytes of the %s's beginning: at most a character fewer than allowed", name)
		}
		Expect(e[2].Message.TextPieces).To(BeNil(), "a text that fits is not cut")

		By("storing the same text again, which takes no more space, and one that differs at the end")
		w.append(history.Record{Message: &conversation.Message{Role: conversation.RoleUser, Text: text}}, user(text+"."))
		Expect(count(t, dsn, "pieces")).To(Equal(6), "rows in pieces")
		Expect(count(t, dsn, "pending_pieces")).To(BeZero(), "pieces that wait for a message")
	})

	It("pieces come before their message", func(ctx SpecContext) {
		first, second := long(200<<10, "first"), long(100<<10, "second")
		w.append(call("1"), piece(first))
		w.append(piece(second))
		Expect(count(t, dsn, "pending_pieces")).To(Equal(2), "pieces that wait for their message")

		By("sending the message in the next attempt")
		w = begin(t, store, w.task, 2)
		w.append(cutResult("1", first, second, first))
		Expect(count(t, dsn, "pending_pieces")).To(BeZero(), "pieces that still wait")
		pieces := w.entries()[1].Message.ToolResult.OutputPieces
		Expect(w.text(pieces)).To(Equal(first + second + first))

		By("reading the text by its hashes from another namespace")
		Expect(store.Text(ctx, "elsewhere", pieces)).Error().To(MatchError(history.ErrCorrupted))
	})

	It("a message whose piece never arrived is stored without it", func(ctx SpecContext) {
		w.append(cutResult("1", "here it begins, and the rest is lost"), user("next"))
		Expect(w.texts()).To(HaveExactElements("result 1", "U next"))
		Expect(store.Text(ctx, "team", w.entries()[0].Message.ToolResult.OutputPieces)).Error().To(MatchError(history.ErrCorrupted))
	})

	It("a damaged piece is found", func(ctx SpecContext) {
		w.append(user(long(40<<10, "x")))
		Expect(connect(t, dsn).Exec(ctx, `UPDATE pieces SET data = set_byte(data, 7, 33)`)).Error().NotTo(HaveOccurred())
		Expect(store.Text(ctx, "team", w.entries()[0].Message.TextPieces)).Error().To(MatchError(history.ErrCorrupted))
		Expect(store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{})).Error().To(MatchError(history.ErrCorrupted))
	})
})
