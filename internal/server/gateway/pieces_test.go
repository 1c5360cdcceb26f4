package gateway_test

import (
	"crypto/sha256"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
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
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
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
		if _, err := f.append("a1", append(records, output(6, texts[:2]...), output(7, texts...), output(8, "never came, the rest"))...); err != nil {
			t.Fatal(err)
		}
		got, err := f.conversation("a1", 0)
		if err != nil || len(got) != 3 {
			t.Fatalf("%d messages, %v", len(got), err)
		}
		whole := got[0].GetMessage().GetToolResult()
		if whole.GetOutput() != texts[0]+texts[1] || whole.GetOutputPieces() != nil {
			t.Errorf("%d bytes, pieces %v", len(whole.GetOutput()), whole.GetOutputPieces())
		}
		for i, want := range []*daemonv1.Pieces{named(texts...), named("never came, the rest")} {
			result := got[i+1].GetMessage().GetToolResult()
			if d := cmp.Diff(want, result.GetOutputPieces(), protocmp.Transform()); d != "" || len(result.GetOutput()) != 10 {
				t.Errorf("message %d: %d bytes, pieces (-want +got):\n%s", i+2, len(result.GetOutput()), d)
			}
		}
	})

	It("invalid pieces are refused", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.begin("a1")
		tests := map[string]*daemonv1.Record{
			"too long":       piece(1, strings.Repeat("x", 256<<10+1)),
			"no SHA-256":     message(1, &daemonv1.Message{Text: "x", TextPieces: &daemonv1.Pieces{Hashes: [][]byte{{1, 2, 3}}, Bytes: 1}}),
			"negative bytes": message(1, &daemonv1.Message{Raw: "x", RawPieces: &daemonv1.Pieces{Bytes: -1}}),
		}
		for name, record := range tests {
			if _, err := f.append("a1", record); connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Errorf("%s: %v", name, err)
			}
		}
	})

	// What the daemon records about sessions and risky tools is returned with the
	// checkpoint, and a move leads to the position that it names.
	It("checkpoints and moves carry their newer fields", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.begin("a1")
		checkpoint := &daemonv1.CheckpointRecord{
			Number: 1, Commit: "c", RiskyTool: &daemonv1.RiskyTool{Name: "Bash", CallId: "1", Before: true},
			Session: &daemonv1.AgentSession{Agent: "ClaudeCode", Id: "s", Version: "1", Model: "m"},
		}
		user := daemonv1.Role_ROLE_USER
		_, err := f.append("a1", text(1, user, "1"), text(2, user, "2"), text(3, user, "3"), &daemonv1.Record{
			Sequence: 4, Time: timestamppb.Now(), Attempt: 1, Body: &daemonv1.Record_Checkpoint{Checkpoint: checkpoint},
		})
		if err != nil {
			t.Fatal(err)
		}
		latest := f.begin("a1").GetLatestCheckpoint()
		if d := cmp.Diff(checkpoint.RiskyTool, latest.GetRiskyTool(), protocmp.Transform()); d != "" {
			t.Errorf("risky tool (-want +got):\n%s", d)
		}
		if d := cmp.Diff(checkpoint.Session, latest.GetSession(), protocmp.Transform()); d != "" {
			t.Errorf("session (-want +got):\n%s", d)
		}
		moved, err := f.client("a1").MoveConversation(t.Context(), connect.NewRequest(&daemonv1.MoveConversationRequest{OperationId: "op", Checkpoint: 1, Position: 2}))
		if err != nil || moved.Msg.GetPosition().GetPosition() != 2 {
			t.Errorf("moved to %v, %v", moved, err)
		}
		_, err = f.client("a1").MoveConversation(t.Context(), connect.NewRequest(&daemonv1.MoveConversationRequest{OperationId: "op2", Position: -1}))
		if connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("a position below 0: %v", err)
		}
	})
})
