package gateway_test

import (
	"crypto/sha256"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/testing/cases"
)

func piece(sequence int64, text string) *daemonv1.Record {
	return &daemonv1.Record{Sequence: sequence, Time: timestamppb.Now(), Attempt: 1, Body: &daemonv1.Record_Piece{Piece: &daemonv1.Piece{Data: []byte(text)}}}
}

func named(texts ...string) *daemonv1.Pieces {
	p := &daemonv1.Pieces{}
	for _, text := range texts {
		hash := sha256.Sum256([]byte(text))
		p.Hashes, p.Bytes = append(p.Hashes, hash[:]), p.Bytes+int64(len(text))
	}
	return p
}

var _ = Describe("Texts in pieces", func() {
	// Cut texts are returned in full up to a mebibyte, and with their pieces beyond.
	It("cut texts are returned", func() {
		f := serve()
		f.begin("a1")
		var records []*daemonv1.Record
		var texts []string
		for i := range 5 {
			texts = append(texts, strings.Repeat(fmt.Sprint(i), 250<<10))
			records = append(records, piece(int64(i+1), texts[i]))
		}
		output := func(sequence int64, pieces ...string) *daemonv1.Record {
			return message(sequence, &daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, ToolResult: &daemonv1.ToolResult{
				CallId: "1", Output: pieces[0][:10], OutputPieces: named(pieces...),
			}})
		}
		f.append("a1", append(records, output(6, texts[:2]...), output(7, texts...), output(8, "never came, the rest"))...)
		entries := f.conversation("a1", 0)
		Expect(len(entries)).To(Equal(3), "messages")

		By("reading a text of less than a mebibyte")
		whole := entries[0].GetMessage().GetToolResult()
		Expect(whole.GetOutput() == texts[0]+texts[1]).To(BeTrue(), "the whole text, not these %d bytes", len(whole.GetOutput()))
		Expect(whole.GetOutputPieces()).To(BeNil(), "it is no longer cut")

		for i, want := range []struct {
			name   string
			pieces *daemonv1.Pieces
		}{{"a longer text", named(texts...)}, {"a text of which a piece is missing", named("never came, the rest")}} {
			By("reading " + want.name)
			result := entries[i+1].GetMessage().GetToolResult()
			Expect(result.GetOutputPieces()).To(BeComparableTo(want.pieces, protocmp.Transform()), want.name)
			Expect(len(result.GetOutput())).To(Equal(10), "bytes of the beginning of %s", want.name)
		}
	})

	Describe("invalid pieces are refused", func() {
		for name, record := range cases.Sorted(map[string]*daemonv1.Record{
			"too long":       piece(1, strings.Repeat("x", 256<<10+1)),
			"no SHA-256":     message(1, &daemonv1.Message{Text: "x", TextPieces: &daemonv1.Pieces{Hashes: [][]byte{{1, 2, 3}}, Bytes: 1}}),
			"negative bytes": message(1, &daemonv1.Message{Raw: "x", RawPieces: &daemonv1.Pieces{Bytes: -1}}),
		}) {
			It(name, func() {
				f := serve()
				f.begin("a1")
				_, err := f.tryAppend("a1", record)
				Expect(err).To(beRefused(connect.CodeInvalidArgument))
			})
		}
	})

	// What the daemon records about sessions and risky tools is returned with the
	// checkpoint, and a move leads to the position that it names.
	It("checkpoints and moves carry their newer fields", func() {
		f := serve()
		f.begin("a1")
		checkpoint := &daemonv1.CheckpointRecord{
			Number: 1, Commit: "c", RiskyTool: &daemonv1.RiskyTool{Name: "Bash", CallId: "1", Before: true},
			Session: &daemonv1.AgentSession{Agent: "ClaudeCode", Id: "s", Version: "1", Model: "m"},
		}
		user := daemonv1.Role_ROLE_USER
		f.append("a1", text(1, user, "1"), text(2, user, "2"), text(3, user, "3"), &daemonv1.Record{
			Sequence: 4, Time: timestamppb.Now(), Attempt: 1, Body: &daemonv1.Record_Checkpoint{Checkpoint: checkpoint},
		})
		latest := f.begin("a1").GetLatestCheckpoint()
		Expect(latest.GetRiskyTool()).To(BeComparableTo(checkpoint.RiskyTool, protocmp.Transform()))
		Expect(latest.GetSession()).To(BeComparableTo(checkpoint.Session, protocmp.Transform()))

		moved := f.move("a1", &daemonv1.MoveConversationRequest{OperationId: "op", Checkpoint: 1, Position: 2})
		Expect(moved.GetPosition()).To(BeEquivalentTo(2))
		_, err := f.tryMove("a1", &daemonv1.MoveConversationRequest{OperationId: "op2", Position: -1})
		Expect(err).To(beRefused(connect.CodeInvalidArgument), "a position below 0")
	})
})
